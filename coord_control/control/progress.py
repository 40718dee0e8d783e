"""Extracts numbers from Spark's progress events."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["lag_seconds", "rows_per_second", "state_rows", "watermark", "with_newest_event"]

#: The watermark that Spark reports before the first event.
_NO_WATERMARK: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)


def rows_per_second(progress: Mapping[str, Any]) -> float | None:
    """Return the processing rate of the last batch, or None if it was not reported."""
    value = progress.get("processedRowsPerSecond")
    return float(value) if isinstance(value, int | float) else None


def watermark(progress: Mapping[str, Any]) -> datetime.datetime | None:
    """Return the watermark, or None if the query has none or has not seen an event yet."""
    mark = _event_time(progress, "watermark")
    return None if mark == _NO_WATERMARK else mark


def lag_seconds(progress: Mapping[str, Any]) -> float | None:
    """Return how far the watermark is behind the newest event of the last batch with events, or None if unknown."""
    newest, mark = _event_time(progress, "max"), watermark(progress)
    return None if newest is None or mark is None else max(0.0, (newest - mark).total_seconds())


def state_rows(progress: Mapping[str, Any]) -> int | None:
    """Return the number of state rows in all operators of a query, or None if no operator has state."""
    operators = progress.get("stateOperators") or ()
    return sum(int(each.get("numRowsTotal") or 0) for each in operators) if operators else None


def with_newest_event(progress: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return a progress event that contains the newest event time of the last batch with events.

    Spark reports event times only for a batch with rows. The empty batch that it runs next, to let state expire, and
    every idle one would hide how far the watermark is behind.

    Args:
        progress: the event as reported by Spark.
        before: what was returned for the previous event; initially empty.
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
