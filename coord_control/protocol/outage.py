"""Something outside that fails for a while, such as a storage or a database: when to try again, and what to log.

Each failure makes the next try wait longer, up to a bound that is short enough for people who watch it come back. An
outage is logged when it begins and when it is over, not with each try.

Single-threaded; its owner says which thread. Times are seconds of the clock that ``now`` is taken from.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Outage"]

_DOUBLINGS: Final = 10


class Outage:
    """Whether the last try failed, and when the next one is due.

    Args:
        first_seconds: the pause after the first failure; it doubles with each further one.
        longest_seconds: no pause is longer.

    Attributes:
        in_a_row: failures since it worked last.
    """

    __slots__ = ("_first_seconds", "_longest_seconds", "_next", "in_a_row")

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first_seconds, self._longest_seconds = first_seconds, longest_seconds
        self._next = 0.0
        self.in_a_row = 0

    @property
    def is_on(self) -> bool:
        """Whether the last try has failed."""
        return self.in_a_row > 0

    def failed(self, now: float, share: float = 1.0) -> bool:
        """Note a failed try; return whether an outage begins with it.

        Args:
            share: of the pause, from 0 to 1: so that many who share the storage do not all try at the same moment.
        """
        pause = min(self._longest_seconds, self._first_seconds * 2.0 ** min(self.in_a_row, _DOUBLINGS))
        self._next = now + share * pause
        self.in_a_row += 1
        return self.in_a_row == 1

    def worked(self) -> bool:
        """Note a try that has worked; return whether an outage ends with it."""
        was_on = self.is_on
        self.in_a_row = 0
        self._next = 0.0
        return was_on

    def seconds_until_due(self, now: float) -> float:
        """Return how long to wait until the next try."""
        return max(0.0, self._next - now)
