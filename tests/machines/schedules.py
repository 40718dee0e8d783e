"""Long random schedules that Hypothesis can shrink: one byte per decision.

Its own stateful tests stop most runs after a few steps, and a barrier that overtakes another one takes a dozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from hypothesis import strategies as st

Option = TypeVar("Option")


class Schedule:
    """Decisions, taken from bytes; over when they are used up."""

    def __init__(self, decisions: bytes) -> None:
        self._decisions: Iterator[int] = iter(decisions)
        self.is_over = False

    def __repr__(self) -> str:
        return f"Schedule({bytes(self._decisions)!r})"

    def pick(self, options: Sequence[Option]) -> Option:
        """One of ``options``: the first one when the schedule is over."""
        decision = next(self._decisions, None)
        self.is_over = decision is None
        return options[0 if decision is None else decision % len(options)]


def schedules(decisions: int) -> st.SearchStrategy[Schedule]:
    """Schedules of ``decisions`` bytes."""
    return st.binary(min_size=decisions, max_size=decisions).map(Schedule)
