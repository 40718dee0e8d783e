"""The queries whose checkpoints are measured, and what the measurements share.

*idle*: an operator with four subtasks; its source is a folder in which nothing new appears. *running*: the operator of
the other benchmarks with events both ways, and an aggregation in RocksDB behind it, epoch after epoch. *keys*: a
million keys of a hundred bytes in RocksDB, then idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from benchmarks import query
from benchmarks.report import Goal

__all__ = [
    "KEY_BYTES",
    "Part",
    "add_keys",
    "keyed",
    "keys_in",
    "newest_epoch",
    "spark_directory",
    "start_idle",
    "start_keys",
    "start_running",
    "use_rocksdb",
    "wait_until",
]

KEY_BYTES: Final = 100
_GROUPS: Final = 1_000
_KEY_FILES: Final = 4  #: one epoch each
_TIMEOUT_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a benchmark."""

    goals: list[Goal]
    numbers: dict[str, Any]


def use_rocksdb(spark: SparkSession) -> None:
    """Keep the state of all queries that start from now on in RocksDB."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)


def start_idle(spark: SparkSession, job: cc.Job, folder: str) -> StreamingQuery:
    """Start the idle query, and wait until it is idle."""
    spark.range(query.ROWS).selectExpr("timestamp_seconds(id) timestamp", "id value").write.parquet(folder)
    rows = spark.readStream.schema("timestamp timestamp, value long").parquet(folder)
    started = job.start("query", _applied(job, rows).writeStream.format("noop"))
    wait_until(lambda: newest_epoch(job) >= 0 and not started.status["isTriggerActive"], started)
    return started


def start_running(spark: SparkSession, job: cc.Job) -> StreamingQuery:
    """Start the running query."""
    counts = _applied(job, query.rows(spark)).groupBy((sf.col("value") % _GROUPS).alias("group")).count()
    return job.start("query", counts.writeStream.format("noop").outputMode("update"))


def start_keys(spark: SparkSession, job: cc.Job, folder: str, count: int) -> StreamingQuery:
    """Start the query with many keys, and wait until it has them all and is idle."""
    for number in range(_KEY_FILES):
        write_keys(spark, folder, range(number * count // _KEY_FILES, (number + 1) * count // _KEY_FILES))
    started = job.start("query", keyed(keys_in(spark, folder)))
    wait_until(lambda: newest_epoch(job) >= _KEY_FILES - 1 and not started.status["isTriggerActive"], started)
    return started


def add_keys(spark: SparkSession, job: cc.Job, started: StreamingQuery, folder: str, numbers: range) -> None:
    """Give the idle query with many keys some more, and wait until it has them and is idle again."""
    epoch = newest_epoch(job) + 1
    write_keys(spark, folder, numbers)
    wait_until(lambda: newest_epoch(job) >= epoch and not started.status["isTriggerActive"], started)


def write_keys(spark: SparkSession, folder: str, numbers: range) -> None:
    """Write one file of keys."""
    ids = spark.range(numbers.start, numbers.stop, numPartitions=1)
    ids.select(_key()).write.parquet(f"{folder}/{numbers.start}")


def keys_in(spark: SparkSession, folder: str) -> DataFrame:
    """Read such files as a stream, one in each epoch."""
    return spark.readStream.schema("key string").option("maxFilesPerTrigger", 1).parquet(f"{folder}/*")


def keyed(rows: DataFrame) -> DataStreamWriter:
    """The query with many keys, over a stream of them."""
    return rows.dropDuplicates(["key"]).writeStream.format("noop")


def newest_epoch(job: cc.Job) -> int:
    """Return the newest committed epoch that the job knows, or -1 if there is none."""
    return job.status().queries[0].committed


def wait_until(is_true: Callable[[], bool], started: StreamingQuery) -> None:
    """Wait for something that the query does."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not is_true():
        if not started.isActive:
            raise RuntimeError(f"the query ended: {started.exception()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing within {_TIMEOUT_SECONDS:g} s: {started.lastProgress}")
        time.sleep(0.02)


def spark_directory(job_folder: str, lineage: str) -> Path:
    """Spark's checkpoint directory of the query."""
    return Path(job_folder, "queries", "query", lineage, "spark")


def _applied(job: cc.Job, rows: DataFrame) -> DataFrame:
    operator = job.operator(
        "operator",
        query.Talkative(),
        parallelism=query.SUBTASKS,
        state=query.Memory,
        down=[query.Order],
        up=[query.Report],
    )
    return operator.apply(rows, query.busy, schema="timestamp timestamp, value long", partition_by=["value"])


def _key() -> Column:
    # Digits of a hash: of this length, and not compressible.
    digits = sf.sha2(sf.col("id").cast("string"), 512)
    return sf.substring(digits, 1, KEY_BYTES).alias("key")
