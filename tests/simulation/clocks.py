"""The clocks of the simulated drivers: each has its own, and no two agree.

They begin anywhere, and one runs faster than another. The history moves all of them at once, by as much as really
passes.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from tests.simulation.dice import Dice

__all__ = ["Clock"]

_SOME_DAY: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_MAX_UPTIME_SECONDS: Final = 1_000_000
_MAX_SKEW_SECONDS: Final = 100_000  # more than a day, in both directions
_RATES: Final = (0.75, 1.0, 1.25)  # far worse than real clocks


@dataclass(frozen=True, slots=True)
class Clock:
    """One driver's clock.

    Attributes:
        uptime: what it shows when the history begins, in seconds that only grow.
        rate: its seconds per second.
        skew: how far its calendar is ahead of the right one.
    """

    uptime: float
    rate: float
    skew: float

    @classmethod
    def drawn(cls, dice: Dice) -> Clock:
        uptime, skew = dice.randrange(_MAX_UPTIME_SECONDS), dice.randint(-_MAX_SKEW_SECONDS, _MAX_SKEW_SECONDS)
        return cls(uptime, dice.choice(_RATES), skew)

    def seconds(self, passed: float) -> float:
        """What it shows when so much has really passed."""
        return self.uptime + self.rate * passed

    def date(self, passed: float) -> datetime.datetime:
        return _SOME_DAY + datetime.timedelta(seconds=self.skew + self.rate * passed)
