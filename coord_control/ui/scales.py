"""Axes: the position of a number in a chart, and the labels of the axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from coord_control.control.wording import human_seconds

__all__ = ["AxisTick", "Scale", "seconds_scale"]

_NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A line of an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values between 0 and ``highest`` to positions between ``start`` and ``end``.

    Attributes:
        ticks: round values at their positions.
    """

    highest: float
    start: float
    end: float
    ticks: tuple[AxisTick, ...]

    def at(self, value: float) -> float:
        """Return the position of a value; values beyond the ends are clamped."""
        share = min(max(value, 0.0), self.highest) / self.highest
        return round(self.start + (self.end - self.start) * share, 1)


def seconds_scale(longest: float, start: float, end: float, *, steps: int) -> Scale:
    """Return an axis of durations.

    Args:
        longest: the longest duration, in seconds.
        steps: the approximate number of intervals; at most this many are needed up to ``longest``.
    """
    longest = longest if longest > 0 else 0.001
    rough = longest / steps
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(nice * power for nice in _NICE if nice * power >= rough * 0.999999)
    count = math.ceil(longest / step - 1e-6)
    scale = Scale(step * count, start, end, ())
    ticks = tuple(AxisTick(scale.at(step * each), _label(step * each)) for each in range(count + 1))
    return Scale(scale.highest, start, end, ticks)


def _label(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 0.01:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s" if 1 <= seconds < 60 else human_seconds(seconds)
