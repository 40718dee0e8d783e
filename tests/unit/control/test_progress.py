"""What Spark's progress events say, also when they say little."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from coord_control.control.progress import lag_seconds, rows_per_second, state_rows, watermark, with_newest_event

_PROGRESS: dict[str, Any] = {
    "processedRowsPerSecond": 12.5,
    "eventTime": {"max": "2026-03-01T12:00:05.500Z", "watermark": "2026-03-01T12:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 3}, {"numRowsTotal": 4}],
}


def test_everything_is_read() -> None:
    assert rows_per_second(_PROGRESS) == 12.5
    assert watermark(_PROGRESS) == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert lag_seconds(_PROGRESS) == 5.5
    assert state_rows(_PROGRESS) == 7


@pytest.mark.parametrize(
    "progress",
    [
        {},
        {"eventTime": None, "stateOperators": None, "processedRowsPerSecond": None},
        {"eventTime": {}, "stateOperators": [], "processedRowsPerSecond": "NaN"},
        {"eventTime": {"watermark": "soon", "max": 3}},
    ],
)
def test_what_is_not_said_is_not_known(progress: dict[str, Any]) -> None:
    assert [read(progress) for read in (rows_per_second, watermark, lag_seconds, state_rows)] == [None] * 4


def test_before_the_first_event_there_is_no_watermark_and_no_lag_since_1970() -> None:
    first = {"eventTime": {"max": "2026-03-01T12:00:05.500Z", "watermark": "1970-01-01T00:00:00.000Z"}}
    assert watermark(first) is None
    assert lag_seconds(first) is None


def test_a_watermark_ahead_of_the_batch_is_no_negative_lag() -> None:
    late = {"eventTime": {"max": "2026-03-01T11:59:00.000Z", "watermark": "2026-03-01T12:00:00.000Z"}}
    assert lag_seconds(late) == 0.0


def test_a_batch_without_rows_does_not_hide_the_newest_event() -> None:
    """Spark 4.3 runs one after each batch with rows, for the state, and says nothing but the watermark in it."""
    first = with_newest_event(
        {"eventTime": {"max": "2026-03-01T12:00:05.000Z", "watermark": "1970-01-01T00:00:00.000Z"}}, {}
    )
    expiring = with_newest_event({"batchId": 1, "eventTime": {"watermark": "2026-03-01T12:00:04.000Z"}}, first)
    idle = with_newest_event({"batchId": 1, "eventTime": {"watermark": "2026-03-01T12:00:04.000Z"}}, expiring)
    assert [lag_seconds(each) for each in (first, expiring, idle)] == [None, 1.0, 1.0]
    newer = {"eventTime": {"max": "2026-03-01T12:00:09.000Z", "watermark": "2026-03-01T12:00:04.000Z"}}
    assert with_newest_event(newer, idle) == newer


def test_a_query_without_event_time_gets_none() -> None:
    assert with_newest_event({"batchId": 1, "eventTime": {}}, _PROGRESS) == {"batchId": 1, "eventTime": {}}
    assert with_newest_event({"batchId": 1}, _PROGRESS) == {"batchId": 1}
