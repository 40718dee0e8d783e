"""Stories that a person can read: each .txt file beside this one is played, and must print what it says.

A block is one or more commands, a line of dashes, and what they print; lines with ``#`` explain. The commands are in
tests/transcripts/language.py. After a wanted change: ``pytest tests/transcripts --rewrite``, then read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transcripts import language

HERE = Path(__file__).parent
STORIES = sorted(HERE.glob("*.txt"))
SEPARATOR = "----"


def play(text: str) -> str:
    """The transcript with what its commands print now."""
    interpreter: language.Interpreter | None = None
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        told = lines[: lines.index(SEPARATOR)] if SEPARATOR in lines else lines
        commands = [line.split() for line in told if not line.startswith("#")]
        if interpreter is None and commands:
            interpreter = language.interpreter(commands.pop(0))
        if interpreter is not None and commands:
            printed = [line for words in commands for line in interpreter.run(words)]
            told = [*told, SEPARATOR, *(printed or ["(nothing)"])]
        blocks.append("\n".join(told))
    return "\n\n".join(blocks) + "\n"


def test_there_are_stories() -> None:
    assert STORIES


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_story_still_ends_the_same(story: Path, request: pytest.FixtureRequest) -> None:
    told = story.read_text(encoding="utf-8")
    printed = play(told)
    if request.config.getoption("--rewrite"):
        story.write_text(printed, encoding="utf-8")
        return
    assert printed == told


def test_a_changed_line_is_noticed() -> None:
    told = STORIES[0].read_text(encoding="utf-8")
    changed = told.replace(f"{SEPARATOR}\n", f"{SEPARATOR}\nnobody prints this\n", 1)
    assert play(changed) == told != changed
