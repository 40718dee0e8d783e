from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.cli.output import human_seconds, human_time, plain, print_json, print_table, reported, say
from coord_control.errors import CommandFailed
from tests.control_kit import NASTY, NOON

_ANY = st.text(st.characters(codec="utf-8"))


def _is_obeyed(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Zl", "Zp") and character not in "\n\t"


@given(_ANY)
def test_no_terminal_obeys_plain_text(text: str) -> None:
    assert not any(map(_is_obeyed, plain(text)))
    assert not set("\u202e\u2066\u200f\x1b\x9b") & set(plain(text))


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"])))
def test_everything_else_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


@given(st.dictionaries(_ANY, _ANY))
def test_json_means_the_same_and_no_terminal_obeys_it(value: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("typer.echo", printed.append)
        print_json(value)
    assert json.loads(printed[0]) == value
    assert not any(map(_is_obeyed, printed[0]))


def test_tables_and_lines_show_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(NASTY, ("label",), [(NASTY,)])
    say(NASTY)

    out = capsys.readouterr().out
    assert out.count("[red]x[/red]\\x1b]0;owned\\x07\\x9b31m\\u202eevil") == 3
    assert not any(map(_is_obeyed, out))


def test_a_pipe_gets_a_path_in_one_piece(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "/jobs/" + "a-long-name/" * 40
    print_table("", ("id", "path", "also"), [(1, path, path)])

    [line] = [line for line in capsys.readouterr().out.splitlines() if path in line]
    assert line.count(path) == 2


def test_no_line_of_a_pipe_is_padded_to_the_longest_message(capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: one failure with a long message made all lines, and a line of dashes, 490 characters wide."""
    print_table("failures", ("id", "state", "problem"), [(1, "failed", "x" * 490), (22, "completed", None)])

    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line] == [
        ["failures"],
        ["id", "state", "problem"],
        ["1", "failed", "x" * 490],
        ["22", "completed"],
    ]
    assert [line for line in lines if line != line.rstrip() or (len(line) > 40 and "x" not in line)] == []


def test_an_error_is_plain_and_has_its_fields_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    error = CommandFailed("c1", "send_event", "EVENT_INVALID", NASTY, fields=({"loc": ["a"], "msg": "b"},))

    with pytest.raises(Exception) as raised, reported(as_json=True):  # noqa: PT011 - whatever typer ends with
        raise error

    captured = capsys.readouterr()
    assert raised.value.__cause__ is error
    assert "\\x1b" in captured.err
    document = json.loads(captured.out)["error"]
    assert (document["type"], document["command"], document["code"]) == ("CommandFailed", "c1", "EVENT_INVALID")
    assert document["fields"] == [{"loc": ["a"], "msg": "b"}]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, ""), (0.0123, "12 ms"), (2.0, "2.0 s"), (75, "1m 15s"), (3_700, "1h 1m"), (200_000, "2d 7h")],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert human_seconds(seconds) == shown


def test_times() -> None:
    assert (human_time(NOON), human_time(None)) == ("2026-03-01 12:00:00", "")
