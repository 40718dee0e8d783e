"""When a query has read what its sources had: from progress reports as Spark 4.3 and Kafka's source make them."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.control.backlog import is_comparable, records_between
from coord_control.ids import Epoch
from coord_control.spark.queries.drain import QueryDrain


def progress(epoch: int, *sources: tuple[Any, Any]) -> dict[str, Any]:
    """A batch; of each source the end and the latest offset."""
    return {"batchId": epoch, "sources": [{"endOffset": end, "latestOffset": latest} for end, latest in sources]}


def kafka(*offsets: int) -> dict[str, dict[str, int]]:
    return {"orders": {str(partition): offset for partition, offset in enumerate(offsets)}}


def hear(drain: QueryDrain, epoch: int, *sources: tuple[Any, Any]) -> QueryDrain:
    drain.heard(progress(epoch, *sources), Epoch(epoch))
    return drain


def test_it_is_drained_at_the_offsets_of_the_first_batch_that_was_planned_after_the_request() -> None:
    drain = QueryDrain(Epoch(4))
    # 5 may have been planned before: what it reports may be older than the request.
    reports = [
        (5, kafka(9, 9), kafka(9, 9)),
        (6, kafka(10, 10), kafka(30, 20)),
        (7, kafka(30, 19), kafka(90, 90)),  # what comes meanwhile is not waited for
        (8, kafka(40, 20), kafka(99, 99)),
    ]
    seen = []
    for epoch, end, latest in reports:
        hear(drain, epoch, (end, latest))
        seen.append((drain.is_drained, drain.left))
    assert seen == [(False, None), (False, 30), (False, 1), (True, 0)]


def test_a_batch_that_reads_all_drains_at_once() -> None:
    assert hear(QueryDrain(Epoch(-1)), 1, (kafka(7, 7), kafka(7, 7))).is_drained


def test_a_partition_that_the_batch_did_not_know_is_read_from_its_beginning() -> None:
    drain = hear(QueryDrain(Epoch(0)), 2, (kafka(5), kafka(5, 3)))
    assert (drain.is_drained, drain.left) == (False, 3)
    assert hear(drain, 3, (kafka(5, 3), kafka(5, 3))).is_drained


def test_a_batch_counts_when_it_is_committed() -> None:
    drain = QueryDrain(Epoch(0))
    report = progress(2, (kafka(5), kafka(5)))
    drain.heard(report, Epoch(1))
    assert not drain.is_drained
    drain.heard(report, Epoch(2))
    assert drain.is_drained


@pytest.mark.parametrize(
    "other",
    [
        ({"logOffset": 3}, None),
        ({"offset": 5, "timestamp": 1000}, None),  # rate-micro-batch
        ({"reservoirId": "a", "reservoirVersion": 3, "index": 0, "isStartingVersion": False},) * 2,  # Delta
    ],
    ids=["files", "rate-micro-batch", "delta"],
)
def test_a_source_whose_end_is_not_known_is_drained_when_a_trigger_finds_nothing(other: tuple[Any, Any]) -> None:
    drain = QueryDrain(Epoch(0))
    for epoch in range(2, 5):
        assert not hear(drain, epoch, other, (kafka(7), kafka(7))).is_drained
    assert drain.left is None
    drain.found_nothing()
    assert drain.is_drained


def test_a_query_without_sources_or_progress_waits_for_silence() -> None:
    drain = QueryDrain(Epoch(0))
    drain.heard({}, Epoch(0))
    assert not hear(drain, 9).is_drained
    drain.found_nothing()
    assert drain.is_drained


def test_what_was_drained_stays_drained() -> None:
    drain = hear(QueryDrain(Epoch(0)), 2, (kafka(5), kafka(5)))
    assert hear(drain, 3, (kafka(0), kafka(9))).is_drained, "a topic that was made again"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (3, True),
        (kafka(1, 2), True),
        ({"offset": 5, "timestamp": 1}, True),
        (None, False),
        ({}, False),
        ({"orders": {}}, False),
        ("7", False),
        (True, False),
        ({"version": 3, "isStartingVersion": False}, False),
    ],
)
def test_offsets_are_compared_if_they_consist_of_counts(offset: Any, expected: object) -> None:
    assert is_comparable(offset) is expected


def test_records_between_offsets() -> None:
    assert records_between(None, 4) == 4
    assert records_between(3, 4) == 1
    assert records_between(5, 4) == 0
    assert records_between(None, kafka(1, 2)) == 3
