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


def test_the_rate_of_the_input_and_the_parts_of_a_batch() -> None:
    progress = {"inputRowsPerSecond": 12.5, "durationMs": {"addBatch": 250, "walCommit": 30, "triggerExecution": 300}}
    assert input_rows_per_second(progress) == 12.5
    assert batch_parts_seconds(progress) == {"addBatch": 0.25, "walCommit": 0.03}
    assert (input_rows_per_second({}), batch_parts_seconds({"durationMs": None})) == (None, {})
