"""Streaming queries for every layout of Spark's checkpoint directory, with input that makes their epochs repeatable.

Snapshots of states are Spark's background work. `unloadOnCommit` makes it do that work at the end of each task, so that
which versions have a snapshot is decided by the settings alone. It does not reach the stores of joins.

The functions run in Spark's Python workers, which import this module from the checkout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

__all__ = [
    "BACKGROUND",
    "CHANGELOG",
    "EPOCHS",
    "FORMAT_2",
    "LAYOUTS",
    "SCHEMA",
    "SETTINGS",
    "Build",
    "Layout",
    "Results",
    "after",
    "aggregation",
    "deduplication",
    "join",
    "rows_of",
    "stateless",
    "transform_with_state",
]

EPOCHS: Final = 9
SCHEMA: Final = "key STRING, value LONG, time TIMESTAMP"
STATE: Final = "spark.sql.streaming.stateStore"
PACKAGE: Final = "org.apache.spark.sql.execution.streaming.state"

SETTINGS: Final = {
    f"{STATE}.unloadOnCommit": "true",
    f"{STATE}.minDeltasForSnapshot": "3",
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
ROCKSDB: Final = {f"{STATE}.providerClass": f"{PACKAGE}.RocksDBStateStoreProvider"}
CHANGELOG: Final = {**ROCKSDB, f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true"}
FORMAT_2: Final = {f"{STATE}.checkpointFormatVersion": "2"}
BACKGROUND: Final = {f"{STATE}.unloadOnCommit": "false", f"{STATE}.maintenanceInterval": "100ms"}
JOIN_3: Final = {"spark.sql.streaming.join.stateFormatVersion": "3"}

Build = Callable[[Sequence[DataFrame]], tuple[DataFrame, str]]
Results = dict[int, list[tuple[Any, ...]]]


def stateless(inputs: Sequence[DataFrame]) -> tuple[DataFrame, str]:
    return inputs[0].withColumn("twice", F.col("value") * 2), "append"


def aggregation(inputs: Sequence[DataFrame]) -> tuple[DataFrame, str]:
    return inputs[0].groupBy("key").agg(F.sum("value").alias("sum")), "update"


def global_aggregation(inputs: Sequence[DataFrame]) -> tuple[DataFrame, str]:
    return inputs[0].agg(F.sum("value").alias("sum")), "update"


def limit(inputs: Sequence[DataFrame]) -> tuple[DataFrame, str]:
    return inputs[0].limit(50), "append"


def two_operators(inputs: Sequence[DataFrame]) -> tuple[DataFrame, str]:
    """Windows of windows: the second aggregation gets rows whenever the watermark closes a window of the first."""
    timed = inputs[0].withWatermark("time", "1 second")
    by_key = timed.groupBy(F.window("time", "4 seconds"), "key").agg(F.sum("value").alias("sum"))
    total = by_key.groupBy(F.window("window", "8 seconds")).agg(F.sum("sum").alias("total"))
    return total.select(F.col("window.start").cast("string"), "total"), "append"


def deduplication(inputs: Sequence[DataFrame]) -> tuple[DataFrame, str]:
    return inputs[0].withColumn("value", F.col("value") % 7).dropDuplicates(["key", "value"]), "append"


def join(inputs: Sequence[DataFrame]) -> tuple[DataFrame, str]:
    left = inputs[0].withWatermark("time", "1 hour")
    right = inputs[1].select(*(F.col(name).alias(f"right_{name}") for name in ("key", "value", "time")))
    near = F.expr("key = right_key and right_time between time - interval 20 seconds and time + interval 20 seconds")
    joined = left.join(right.withWatermark("right_time", "1 hour"), near)
    return joined.select("key", "value", "right_value"), "append"


class Counter(StatefulProcessor):
    """Two state variables, and so two column families."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total LONG")
        self.seen = handle.getListState("seen", "value LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        values = [row.value for row in rows]
        for value in values:
            self.seen.appendValue((value,))
        before = self.total.get()
        total = sum(values) + (before[0] if before else 0)
        self.total.update((total,))
        yield Row(key=key[0], total=total, seen=sum(1 for _ in self.seen.get()))


def transform_with_state(inputs: Sequence[DataFrame]) -> tuple[DataFrame, str]:
    schema = "key STRING, total LONG, seen LONG"
    return inputs[0].groupBy("key").transformWithState(Counter(), schema, "update", "none"), "update"


@dataclass(frozen=True)
class Layout:
    build: Build
    settings: Mapping[str, str] = field(default_factory=dict)
    stores: int = 1
    partitions: int = 2
    operators: int = 1
    changes: bool = True  # versions in between are kept as changes
    epochs: tuple[int, ...] = ()  # to restore, besides one that needs a snapshot and changes

    @property
    def inputs(self) -> int:
        return 2 if self.build is join else 1

    @property
    def count(self) -> int:
        return self.operators * self.partitions * self.stores


LAYOUTS: Final = {
    "hdfs": Layout(aggregation, epochs=(0, 6)),
    "rocksdb": Layout(aggregation, ROCKSDB, changes=False),
    "rocksdb-changelog": Layout(aggregation, CHANGELOG, epochs=(6,)),
    "rocksdb-format-2": Layout(aggregation, {**ROCKSDB, **FORMAT_2}, changes=False),
    "rocksdb-changelog-format-2": Layout(aggregation, {**CHANGELOG, **FORMAT_2}, epochs=(6,)),
    "hdfs-one-partition": Layout(global_aggregation, partitions=1),
    "changelog-format-2-one-partition": Layout(limit, {**CHANGELOG, **FORMAT_2}, partitions=1),
    "two-operators": Layout(two_operators, CHANGELOG, operators=2),
    "dedup-hdfs": Layout(deduplication),
    "dedup-changelog": Layout(deduplication, CHANGELOG),
    "join-hdfs": Layout(join, stores=4),
    "join-changelog": Layout(join, CHANGELOG, stores=4),
    "join-format-2": Layout(join, {**CHANGELOG, **FORMAT_2}, stores=4),
    "join-column-families": Layout(join, {**CHANGELOG, **JOIN_3}),
    "join-column-families-format-2": Layout(join, {**CHANGELOG, **JOIN_3, **FORMAT_2}),
    "transform-with-state": Layout(transform_with_state, CHANGELOG),
    "transform-with-state-format-2": Layout(transform_with_state, {**CHANGELOG, **FORMAT_2}),
}


def rows_of(epoch: int) -> list[dict[str, Any]]:
    """Six rows; a key comes back in three epochs of four."""
    return [
        {
            "key": f"key-{(epoch * 3 + row) % 8}",
            "value": epoch * 6 + row,
            "time": f"2026-01-01 00:00:{epoch * 6 + row:02}",
        }
        for row in range(6)
    ]


def after(results: Results, epoch: int) -> Results:
    return {number: rows for number, rows in results.items() if number > epoch}
