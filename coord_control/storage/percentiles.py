"""The spread of a number, as Flink shows it: linear between the two values around a percentile.

Values; any thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from coord_control.storage.records import Percentiles

__all__ = ["percentiles"]


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Return the spread of ``values``; what was not measured (None) does not count."""
    ordered = [value for value in values if value is not None]
    ordered.sort()
    if not ordered:
        return Percentiles()
    return Percentiles(
        count=len(ordered),
        minimum=ordered[0],
        maximum=ordered[-1],
        average=sum(ordered) / len(ordered),
        p50=_at(ordered, 0.50),
        p90=_at(ordered, 0.90),
        p95=_at(ordered, 0.95),
        p99=_at(ordered, 0.99),
        p999=_at(ordered, 0.999),
    )


def _at(ordered: Sequence[float], quantile: float) -> float:
    position = quantile * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
