"""Markdown tables for the Dagster UI. Cells are escaped, so that their text cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["table"]

_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|~])")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table with one line for each of ``rows``."""
    return "\n".join(
        [
            _line(columns),
            _line(["---"] * len(columns)),
            *(_line([_cell(str(value)) for value in row]) for row in rows),
        ]
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
