"""Histograms of durations: counts between fixed bounds, as monitoring systems expect them.

Fixed bounds, because counts of several drivers or moments can then be added and subtracted; a summary of the newest
values cannot. A value, replaced with each duration: a shallow copy of its holder is a complete copy.

Values; any thread.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

__all__ = ["BOUNDS", "Durations"]

#: Upper bounds in seconds; what is longer than the last one is counted behind it.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of the durations of one operation.

    Attributes:
        counts: how many lasted no longer than each bound, and longer than the one before; last, those above all bounds.
        seconds: their sum.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    def plus(self, seconds: float) -> Durations:
        """Return a copy with one more duration."""
        place = bisect_left(BOUNDS, seconds)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return Durations(counts, self.seconds + seconds)

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)
