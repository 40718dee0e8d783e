"""What Spark's progress events say of a query, as numbers.

Threads: pure functions.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["lag_seconds", "rows_per_second", "state_rows", "watermark", "with_newest_event"]

#: What Spark says before the first event.
_NO_WATERMARK: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)


def rows_per_second(progress: Mapping[str, Any]) -> float | None:
    """How fast the last batch was processed; None: nobody has said."""
    value = progress.get("processedRowsPerSecond")
    return float(value) if isinstance(value, int | float) else None


def watermark(progress: Mapping[str, Any]) -> datetime.datetime | None:
    """How far event time has come; None: the query has no watermark, or has seen no event yet."""
    mark = _event_time(progress, "watermark")
    return None if mark == _NO_WATERMARK else mark


def lag_seconds(progress: Mapping[str, Any]) -> float | None:
    """How far the watermark is behind the newest event of the last batch that had any; None: it is not known."""
    newest, mark = _event_time(progress, "max"), watermark(progress)
    return None if newest is None or mark is None else max(0.0, (newest - mark).total_seconds())


def state_rows(progress: Mapping[str, Any]) -> int | None:
    """How many rows of state Spark keeps for a query, in all its operators; None: it has no such operator."""
    operators = progress.get("stateOperators") or ()
    return sum(int(each.get("numRowsTotal") or 0) for each in operators) if operators else None


def with_newest_event(progress: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return a progress event that says the newest event time of the last batch that had events.

    Spark says event times only of a batch with rows. The one without, that it runs next to let state expire, and every
    idle one would hide how far the watermark is behind.

    Args:
        progress: as Spark has told it.
        before: what was returned for the one before; empty at first.
    """
    event_time = progress.get("eventTime") or {}
    newest = (before.get("eventTime") or {}).get("max")
    if newest is None or "watermark" not in event_time or "max" in event_time:
        return dict(progress)
    return {**progress, "eventTime": {**event_time, "max": newest}}


def _event_time(progress: Mapping[str, Any], name: str) -> datetime.datetime | None:
    text = (progress.get("eventTime") or {}).get(name)
    if not isinstance(text, str):
        return None
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
