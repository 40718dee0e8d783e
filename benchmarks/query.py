"""The query that the Spark benchmarks run, with and without coordination.

A source with a fixed number of rows per epoch, four subtasks, a sink that costs nothing. Executors import this module,
so the benchmarks have to be started where the checkout is the working directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc

__all__ = [
    "EVENTS",
    "ROWS",
    "SCHEMA",
    "SUBTASKS",
    "Batches",
    "Silent",
    "Talkative",
    "busy",
    "epoch_seconds",
    "idle",
    "plain",
    "rows",
    "start_coordinated",
    "start_plain",
    "start_without_shuffle",
]

SUBTASKS: Final = 4
ROWS: Final = 20_000  #: in one epoch
EVENTS: Final = 100  #: per subtask, epoch and direction

SCHEMA: Final = "timestamp timestamp, value long"

_POLL_SECONDS: Final = 0.2

Batches: TypeAlias = Iterator[pa.RecordBatch]


class Order(BaseModel):
    number: int
    factor: float


class Report(BaseModel):
    number: int
    total: int


class Memory(BaseModel):
    epochs: int = 0
    total: int = 0


class Plan(BaseModel):
    epochs: int = 0
    total: int = 0


class Silent(cc.StatefulCoordinator[Plan]):
    """Says nothing and learns nothing."""

    def __init__(self) -> None:
        super().__init__(Plan())


class Talkative(cc.StatefulCoordinator[Plan]):
    """Answers every epoch with orders to each subtask."""

    def __init__(self) -> None:
        super().__init__(Plan())

    def start(self) -> None:
        self._order()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
        self.state.total += event.total

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.state.epochs += 1
        self._order()

    def _order(self) -> None:
        for subtask in range(self.context.parallelism):
            for number in range(EVENTS):
                self.context.send(subtask, Order(number=number, factor=1.5))


def _work(batches: Batches, totals: list[int]) -> Batches:
    """The function body that all variants share."""
    for batch in batches:
        totals.append(pc.sum(batch.column(1)).as_py() or 0)
        yield batch


def plain(batches: Batches) -> Batches:
    """Without coordination."""
    yield from _work((batch.drop_columns("subtask") for batch in batches), [])


def idle(subtask: cc.Subtask[Memory], batches: Batches) -> Batches:
    """With an operator that has nothing to do."""
    yield from _work(batches, [])


def busy(subtask: cc.Subtask[Memory], batches: Batches) -> Batches:
    """With events both ways and state that changes."""
    totals: list[int] = []
    yield from _work(batches, totals)
    subtask.state.epochs += 1
    subtask.state.total += len(subtask.events) + sum(totals)
    for number in range(EVENTS):
        subtask.send(Report(number=number, total=sum(totals)))


def start_without_shuffle(spark: SparkSession, checkpoint: str, count: int = ROWS) -> StreamingQuery:
    """Start the query without coordination and without a shuffle: each task works on what it reads."""

    def work(batches: Batches) -> Batches:
        yield from _work(batches, [])

    writer = _written(rows(spark, count).mapInArrow(work, SCHEMA))
    return writer.option("checkpointLocation", checkpoint).start()


def start_plain(
    spark: SparkSession, checkpoint: str, function: Callable[[Batches], Batches] = plain, count: int = ROWS
) -> StreamingQuery:
    """Start the query without coordination."""
    subtask = sf.pmod(sf.hash("value"), sf.lit(SUBTASKS))
    placed = rows(spark, count).withColumn("subtask", subtask).repartitionById(SUBTASKS, sf.col("subtask"))
    writer = _written(placed.mapInArrow(function, SCHEMA))
    return writer.option("checkpointLocation", checkpoint).start()


def start_coordinated(
    spark: SparkSession,
    job: cc.Job,
    coordinator: cc.StatefulCoordinator[Plan],
    function: Callable[[cc.Subtask[Memory], Iterator[Any]], Iterator[Any]],
    *,
    form: str = "apply",
    count: int = ROWS,
) -> StreamingQuery:
    """Start the query with an operator, applied by its method ``form``."""
    operator = job.operator("operator", coordinator, parallelism=SUBTASKS, state=Memory, down=[Order], up=[Report])
    frame = getattr(operator, form)(rows(spark, count), function, schema=SCHEMA, partition_by=["value"])
    return job.start("query", _written(frame))


def rows(spark: SparkSession, count: int = ROWS) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", count)
    return source.option("numPartitions", 2).load()


def epoch_seconds(started: StreamingQuery, warm_up: int, epochs: int, count: int = ROWS) -> list[float]:
    """Seconds of the epochs after the warm-up: what Spark calls triggerExecution, from planning to commit."""
    first: int | None = None
    while True:
        progress = started.lastProgress
        if progress is not None:
            first = progress.batchId if first is None else first
            if progress.batchId >= first + warm_up + epochs:
                break
        if not started.isActive:
            raise RuntimeError(f"the query ended: {started.exception()}")
        time.sleep(_POLL_SECONDS)
    counted = range(first + warm_up, first + warm_up + epochs)
    found = [p for p in started.recentProgress if p.batchId in counted and p.numInputRows == count]
    return [p.durationMs["triggerExecution"] / 1000 for p in found]


def _written(frame: DataFrame) -> DataStreamWriter:
    return frame.writeStream.format("noop")
