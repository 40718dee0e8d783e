"""What waits in the sources of a query, as Spark's progress events report it."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.control.backlog import (
    backlog,
    backlog_of_partitions,
    backlog_of_sources,
    batch_parts_seconds,
    input_rows_per_second,
)

_KAFKA: dict[str, Any] = {
    "description": "KafkaV2[Subscribe[orders]]",
    "endOffset": {"orders": {"0": 10, "1": 20}},
    "latestOffset": {"orders": {"0": 15, "1": 20, "2": 7}},
}
_FILES: dict[str, Any] = {"description": "FileStreamSource", "endOffset": {"logOffset": 3}, "latestOffset": None}


def test_the_backlog_is_the_difference_of_offsets_by_source_and_partition() -> None:
    progress = {"sources": [_FILES, _KAFKA, {"endOffset": 3, "latestOffset": 5}]}
    # Partition 2 is new: it will be read from its beginning.
    assert backlog_of_partitions(progress) == {"1/orders/0": 5, "1/orders/1": 0, "1/orders/2": 7, "2": 2}
    assert backlog_of_sources(progress) == {"1": 12, "2": 2}
    assert backlog(progress) == 14


def test_all_read_is_a_backlog_of_zero() -> None:
    assert backlog({"sources": [{**_KAFKA, "endOffset": _KAFKA["latestOffset"]}]}) == 0


def test_a_source_that_forgot_records_is_not_ahead() -> None:
    """A topic that was deleted and created again has lower offsets."""
    assert backlog({"sources": [{"endOffset": {"t": {"0": 9}}, "latestOffset": {"t": {"0": 2}}}]}) == 0


@pytest.mark.parametrize(
    "progress",
    [
        {},
        {"sources": None},
        {"sources": []},
        {"sources": [_FILES]},
        {"sources": [{}]},
        {"sources": [{"endOffset": "a", "latestOffset": "b"}]},
        {"sources": [{"endOffset": {"closed": False}, "latestOffset": {"closed": True}}]},
        {"sources": [{"endOffset": None, "latestOffset": 5}]},
    ],
)
def test_what_is_not_reported_is_unknown_and_not_zero(progress: dict[str, Any]) -> None:
    assert backlog(progress) is None
    assert backlog_of_partitions(progress) == backlog_of_sources(progress) == {}


def test_a_first_batch_that_has_read_nothing_is_behind_by_everything() -> None:
    assert backlog({"sources": [{**_KAFKA, "endOffset": None}]}) == 42


@pytest.mark.parametrize(
    ("end", "metrics", "count"),
    [
        # What Spark's Kafka source reports with it: texts.
        (
            {"orders": {"0": "a", "1": "b"}},
            {"avgOffsetsBehindLatest": "2.5", "maxOffsetsBehindLatest": "4", "minOffsetsBehindLatest": "1"},
            5,
        ),
        # Of how many partitions it is the average is not known: at least the largest is there.
        ("position", {"avgOffsetsBehindLatest": "2.5", "maxOffsetsBehindLatest": "4"}, 4),
        (None, {"maxOffsetsBehindLatest": 7}, 7),
        (None, {"avgOffsetsBehindLatest": "0.0", "maxOffsetsBehindLatest": "0"}, 0),
        ({"orders": {"0": "a", "1": "b"}}, {"avgOffsetsBehindLatest": "3"}, 6),
    ],
)
def test_where_offsets_cannot_be_compared_the_metrics_of_the_source_count(
    end: Any, metrics: dict[str, Any], count: int
) -> None:
    source = {"endOffset": end, "latestOffset": None, "metrics": metrics}
    assert backlog_of_partitions({"sources": [_FILES, source]}) == {"1": count}
    assert backlog({"sources": [_KAFKA, source]}) == 12 + count


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        {},
        {"estimatedTotalBytesBehindLatest": "99"},
        {"avgOffsetsBehindLatest": "x"},
        {"maxOffsetsBehindLatest": "NaN"},
    ],
)
def test_metrics_that_name_no_records_leave_the_backlog_unknown(metrics: Any) -> None:
    assert backlog({"sources": [{"endOffset": "a", "latestOffset": "b", "metrics": metrics}]}) is None


def test_offsets_that_can_be_compared_count_and_not_the_metrics() -> None:
    assert backlog({"sources": [{**_KAFKA, "metrics": {"maxOffsetsBehindLatest": "99"}}]}) == 12


def test_the_rate_of_the_input_and_the_parts_of_a_batch() -> None:
    progress = {"inputRowsPerSecond": 12.5, "durationMs": {"addBatch": 250, "walCommit": 30, "triggerExecution": 300}}
    assert input_rows_per_second(progress) == 12.5
    assert batch_parts_seconds(progress) == {"addBatch": 0.25, "walCommit": 0.03}
    assert (input_rows_per_second({}), batch_parts_seconds({"durationMs": None})) == (None, {})
