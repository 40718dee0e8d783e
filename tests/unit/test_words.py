"""Source code and documents are written in plain English: they contain no phrase of the list below."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]

#: Folders whose Python files and documents contain none of these phrases.
PLAIN: Final = ("benchmarks", "coord_control", "dagster_defs", "deploy", "docs", "examples", "scripts")
#: Folders below these that may contain them: notes on decisions are not rewritten.
EXEMPT: Final = ("docs/decisions",)

#: What to look for -> what to say instead. A blank also matches a line break inside a docstring, comment or message.
BETTER: Final = {
    r"; None:": "`None if ...`, or `None for ...`",
    r"nobody": "name the part that does not do it, or say `nothing`, `no driver`, `no reader`",
    r"somebody": "name the part that does it, or say `another process`, `the user`",
    r"whoever": "name it: the caller, the user, the reader",
    r"of (?:its|their|his|our|my) own": "`its own X`, `a separate X`",
    r"(?:is|are|was|were|be|been|being) told": "receives, learns, is notified",
    r"on (?:its|their) way": "in transit, pending",
    r"anew": "again, from scratch",
    r"(?:go|goes|going|gone|went) on": "resume, continue, keep running",
    r"beside": "next to, in parallel with, besides",
    r"for ever": "forever, permanently",
    r"(?:give|gives|gave|given|giving) up": "abort, cancel, abandon",
    r"under way": "in progress",
    r"now and then": "periodically",
    r"(?:say|says|said) so": "name what is logged, returned or raised",
    r"(?:is|are|was|were|be|been|being) said": "is logged, is reported, is documented",
}

#: A blank, or a line break with what stands around it: a comment sign, or the quotes between two pieces of a message.
_GAP: Final = r"""(?: |[ \t]*["']?\n[ \t]*(?:\#:?[ \t]*|[fr]?["'][ ]?)?)"""

#: A text, the phrase to be found in it, and the line of it.
FOUND: Final = [
    ('"""Return the claim; None: it is free."""', "; None:", 1),
    ("# Nobody reads it.", "Nobody", 1),
    ("x = 1  #: whoever asks", "whoever", 1),
    ("a line\nWhat somebody wants", "somebody", 2),
    ("threads of their own", "of their own", 1),
    ("a thread of its\n    own", "of its\n    own", 1),
    ("# the job goes\n# on", "goes\n# on", 1),
    ("    #: it is\n    #: told", "is\n    #: told", 1),
    ('("it was given "\n "up")', 'given "\n "up', 1),
    ('("it was given"\n f" up")', 'given"\n f" up', 1),
    ("an event on its way", "on its way", 1),
    ("written anew", "anew", 1),
    ("it went on", "went on", 1),
    ("a file beside it", "beside", 1),
    ("kept for ever", "for ever", 1),
    ("gave up", "gave up", 1),
    ("a restore under way", "under way", 1),
    ("asks now and then", "now and then", 1),
    ("and says so", "says so", 1),
    ("it is said once", "is said", 1),
]


class Hit(NamedTuple):
    line: int
    phrase: str
    better: str


def _pattern(phrase: str) -> re.Pattern[str]:
    edges = [r"\b" if end.isalnum() or end in "()" else "" for end in (phrase[0], phrase[-1])]
    return re.compile(edges[0] + phrase.replace(" ", _GAP) + edges[1], re.IGNORECASE)


PATTERNS: Final = {_pattern(phrase): better for phrase, better in BETTER.items()}


def hits(text: str) -> Iterator[Hit]:
    for pattern, better in PATTERNS.items():
        for match in pattern.finditer(text):
            yield Hit(text.count("\n", 0, match.start()) + 1, match[0], better)


def sources(folder: str) -> list[Path]:
    exempt = [CHECKOUT / name for name in EXEMPT]
    found = sorted(path for kind in ("*.py", "*.md") for path in (CHECKOUT / folder).rglob(kind))
    return [path for path in found if not any(path.is_relative_to(other) for other in exempt)]


def faults(paths: Iterable[Path]) -> list[str]:
    return [
        f"{path.relative_to(CHECKOUT)}:{hit.line}: {hit.phrase!r}: better: {hit.better}"
        for path in paths
        for hit in hits(path.read_text(encoding="utf-8"))
    ]


def test_the_listed_folders_exist() -> None:
    assert all(sources(folder) for folder in PLAIN)
    assert all((CHECKOUT / name).exists() for name in EXEMPT)


@pytest.mark.parametrize("folder", PLAIN)
def test_code_and_documents_are_in_plain_words(folder: str) -> None:
    found = faults(sources(folder))
    assert not found, "\n".join(found)


def test_the_readme_is_in_plain_words() -> None:
    found = faults([CHECKOUT / "README.md"])
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("text", "phrase", "line"), FOUND)
def test_a_phrase_is_found_with_its_line(text: str, phrase: str, line: int) -> None:
    assert [(hit.phrase, hit.line) for hit in hits(text)] == [(phrase, line)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=BETTER)
def test_each_phrase_of_the_list_is_found_in_a_text(pattern: re.Pattern[str]) -> None:
    assert any(pattern.search(text) for text, _, _ in FOUND)


@pytest.mark.parametrize(
    "text",
    [
        "besides the others",
        "for every job",
        "the driver's own thread",
        "a category on top",
        "renewed",
        "`None` for all",
        "an on-going call",
    ],
)
def test_other_words_are_left_alone(text: str) -> None:
    assert not list(hits(text))
