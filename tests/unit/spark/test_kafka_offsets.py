"""Which offsets a restore needs, and what brokers lack of them."""

from __future__ import annotations

import json

import pytest

from coord_control.spark.queries.kafka_offsets import missing_records, needed_offsets


def test_offsets_are_those_of_kafka_by_topic_and_partition() -> None:
    kafka = {"orders": {"0": 5, "1": 7}, "returns": {"0": 1}}
    files, other = {"logOffset": 3}, {"shards": {"a": 4}}
    found = needed_offsets([kafka, json.dumps({"orders": {"0": 3}}), files, other, None, "not JSON", 17])
    # Two readers of one topic: the one that is further behind.
    assert found == {("orders", 0): 3, ("orders", 1): 7, ("returns", 0): 1}


@pytest.mark.parametrize(
    ("first", "last", "line"),
    [
        (0, 9, ""),
        (5, 5, ""),  # all that was there has been read, and no more
        (6, 9, "partition 2 of orders begins at offset 6, and the checkpoint has read up to 5"),
        (0, 4, "partition 2 of orders ends at offset 4, before 5, up to which the checkpoint has read"),
        (None, None, "partition 2 of orders does not exist"),
    ],
)
def test_what_brokers_lack_is_named(first: int | None, last: int | None, line: str) -> None:
    partition, full = ("orders", 2), ("orders", 1)
    needed, firsts, lasts = {partition: 5, full: 0}, {partition: first, full: 0}, {partition: last, full: 0}
    assert missing_records(needed, firsts, lasts) == ([line] if line else [])
