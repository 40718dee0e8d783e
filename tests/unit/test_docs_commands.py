"""Every command in pages and docstrings is one that ``coordctl`` understands, and every variable one that is read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from coord_control.control.settings import ControlSettings
from tests.command_kit import COMMAND, parsed
from tests.docs_kit import blocks, name_of, pages, prose
from tests.places import CHECKOUT

#: What works at once, whatever else is said; some of it changes the user's shell.
EAGER: Final = frozenset({"--help", "--version", "--install-completion", "--show-completion"})

_INLINE: Final = re.compile(r"`((?:[^`\n]|\n(?!\n))*\bcoordctl (?:[^`\n]|\n(?!\n))+)`")
_DRAWING: Final = re.compile(r"[\u2500-\u257f]")  # lines of boxes
_SHELL: Final = frozenset({"", "bash", "console", "sh", "shell", "text", "ini"})
_ENDS: Final = frozenset({"|", "||", "&&", "&", ";", ")", ">", ">>", "<", "2>"})
_START: Final = re.compile(r"(?:^|[|&;(=!]|\$ |\bexec \S+ (?:-- )?)\s*(?:[A-Z_]+=\S+\s+)*(?:\S*/)?coordctl\b")
#: In docstrings and comments of Python.
_QUOTED: Final = re.compile(r"``(coordctl [^`]+)``")
_BREAK: Final = re.compile(r"\s*\n\s*(?:#:? )?")
_VARIABLE: Final = re.compile(r"\bCOORD_[A-Z0-9_]*[A-Z0-9]\b")
#: Metavariables of prose: `coordctl savepoint ...`, a list of names, or what is meant to be left out.
_LEFT_OUT: Final = frozenset({"...", "…"})


def command_lines(text: str) -> Iterator[list[str]]:
    """The arguments of each ``coordctl`` in a piece of shell."""
    for line in text.replace("\\\n", " ").splitlines():
        if not _START.search(line):
            continue
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
        words.whitespace_split = True
        found: list[str] | None = None
        for word in words:
            if found is None:
                found = [] if word.rsplit("/", 1)[-1] == "coordctl" else None
            elif word in _ENDS:
                yield found
                found = None
            else:
                found.append(word)
        if found is not None:
            yield found


def refusal(arguments: Sequence[str], *, is_complete: bool = True) -> str | None:
    """Why ``coordctl`` would refuse a command line, None when it would not; it parses it, and runs nothing.

    Scripts of the pages are empty files below the current folder.

    Args:
        is_complete: values and arguments may not be missing, nor be mere placeholders.
    """
    if set(arguments) & EAGER:
        return None
    if behind := _ours_behind_script(arguments):
        return f"{behind} stands behind the script, whose own options those are"
    words = [word.lstrip("/") if word.endswith(".py") else word for word in arguments]
    for script in (Path(word) for word in words if word.endswith(".py")):
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch()
    try:
        parsed(words)
    except Exception as error:  # click's, from whichever copy of click typer brings
        names = {each.__name__ for each in type(error).__mro__}
        if "UsageError" not in names:
            raise
        is_tolerated = bool(names & {"BadOptionUsage", "BadParameter", "NoArgsIsHelpError"}) and not is_complete
        return None if is_tolerated else str(error)
    return None


def _ours_behind_script(arguments: Sequence[str]) -> list[str]:
    """Options of ``coordctl run`` that it would hand to the script instead."""
    if list(arguments[:1]) != ["run"]:
        return []
    script = next((at for at, word in enumerate(arguments) if word.endswith(".py") or word == "SCRIPT"), len(arguments))
    ours = {option for parameter in COMMAND.commands["run"].params for option in parameter.opts if option[0] == "-"}
    return [word for word in arguments[script:] if word in ours]


@pytest.fixture(autouse=True)
def _folder_for_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_blocks() -> list[tuple[str, list[str]]]:
    return [
        (str(block), arguments)
        for page in pages()
        for block in blocks(page)
        if block.language in _SHELL and not _DRAWING.search(block.text)
        for arguments in command_lines(block.text)
    ]


def in_sentences() -> list[tuple[str, list[str]]]:
    return [
        (name_of(page), arguments)
        for page in pages()
        for text in _INLINE.findall(prose(page))
        for arguments in command_lines(text.replace("\n", " "))
        if not _LEFT_OUT & set(arguments)
    ]


def in_sources() -> list[tuple[str, list[str]]]:
    return [
        (path.relative_to(CHECKOUT).as_posix(), arguments)
        for folder in ("coord_control", "dagster_defs", "examples", "benchmarks", "tests")
        for path in sorted((CHECKOUT / folder).rglob("*.py"))
        for text in _QUOTED.findall(path.read_text(encoding="utf-8"))
        for arguments in command_lines(_BREAK.sub(" ", text))
        if not _LEFT_OUT & set(arguments)
    ]


def test_every_command_in_a_block_can_be_typed_as_it_is() -> None:
    lines = in_blocks()
    assert len(lines) > 20
    refused = [f"{where}: coordctl {shlex.join(line)}: {why}" for where, line in lines if (why := refusal(line))]
    assert not refused


@pytest.mark.parametrize("found", [in_sentences, in_sources])
def test_every_command_in_a_sentence_has_options_that_exist(found: Callable[[], list[tuple[str, list[str]]]]) -> None:
    lines = found()
    assert len(lines) > 30
    refused = [
        f"{where}: coordctl {shlex.join(line)}: {why}"
        for where, line in lines
        if (why := refusal(line, is_complete=False))
    ]
    assert not refused


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("coordctl restore flights 7 --as copy --no-verify", None),
        ("coordctl restore flights 7 --into copy", "No such option"),
        ("coordctl event send flights", "Missing"),
        ("coordctl savepoint take flights", "take"),
        ("coordctl jobs flights", "unexpected extra argument"),
        ("coordctl checkpoint list flights --state nice", "'nice'"),
        ("coordctl stop flights --timeout soon", "soon"),
        ("coordctl run tour.py --grace 30", "behind the script"),
        ("coordctl run tour.py --no-such-option-of-ours 3 &", None),
    ],
)
def test_the_check_refuses_what_coordctl_would_refuse(line: str, why: str | None) -> None:
    (arguments,) = command_lines(line)
    found = refusal(arguments)
    assert (found is None) if why is None else (found is not None and why in found), found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("COORD_ROOT=/x .venv/bin/coordctl jobs --json | jq .  # all", [["jobs", "--json"]]),
        (
            "coordctl db grants me \\\n  --payloads && coordctl db check",
            [["db", "grants", "me", "--payloads"], ["db", "check"]],
        ),
        ("docker compose exec flights coordctl jobs", [["jobs"]]),
        ("kubectl --namespace streams exec deploy/exporter -- coordctl stop flights", [["stop", "flights"]]),
        ("echo coordctls", []),
        ("coordctl event send j o T '{\"a\": 1}'", [["event", "send", "j", "o", "T", '{"a": 1}']]),
    ],
)
def test_command_lines_are_found_in_shell(text: str, lines: list[list[str]]) -> None:
    assert list(command_lines(text)) == lines


def test_every_variable_in_the_pages_is_read_by_something() -> None:
    settings = {"COORD_CONTROL", *(f"COORD_CONTROL_{name.upper()}" for name in ControlSettings.model_fields)}
    read = set(settings)
    for pattern in ("coord_control/**/*.py", "dagster_defs/**/*.py", "tests/**/*.py", "Makefile"):
        for path in CHECKOUT.glob(pattern):
            if path.name != "test_docs_commands.py":
                read |= set(_VARIABLE.findall(path.read_text(encoding="utf-8")))
    unknown = {
        f"{name_of(page)}: {name}"
        for page in pages()
        for name in _VARIABLE.findall(page.read_text(encoding="utf-8"))
        if name not in read and not any(each.startswith(f"{name}_") for each in read)
    }
    assert not unknown
