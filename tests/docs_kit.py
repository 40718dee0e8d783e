"""The project's pages as text: which there are, and the blocks of code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.places import CHECKOUT

__all__ = ["Block", "blocks", "name_of", "pages", "prose"]

_FENCE: Final = re.compile(r"^\s*(```+)\s*(\w*)")
_INDENT: Final = "    "


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        language: what stands behind the fence; empty: nothing does, or the block is an indented one.
        line: of its first line in the page.
    """

    page: str
    language: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that is written for users."""
    folders = ("docs", "deploy", "benchmarks", "examples")
    below = [path for folder in folders for path in (CHECKOUT / folder).rglob("*.md")]
    return sorted([CHECKOUT / "README.md", *below])


def name_of(page: Path) -> str:
    """The page as it is called in messages."""
    return page.relative_to(CHECKOUT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, fenced and indented, in order."""
    fence, language, first = "", "", 0
    lines: list[str] = []
    text = page.read_text(encoding="utf-8")
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        found = _FENCE.match(line)
        if fence:
            if found and found[1] == fence and not found[2]:
                yield Block(name_of(page), language, first, "\n".join(lines))
                fence, lines = "", []
            else:
                lines.append(line)
        elif found:
            fence, language, first, lines = found[1], found[2], number + 1, []
        elif line.startswith(_INDENT) and not line.lstrip().startswith(("*", "-", "|")):
            first = first if lines else number
            lines.append(line.removeprefix(_INDENT))
        elif lines:
            yield Block(name_of(page), "", first, "\n".join(lines))
            lines = []


def prose(page: Path) -> str:
    """The page without its fenced blocks, which become empty lines."""
    kept, is_inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            is_inside = not is_inside
            kept.append("")
        else:
            kept.append("" if is_inside else line)
    return "\n".join(kept)
