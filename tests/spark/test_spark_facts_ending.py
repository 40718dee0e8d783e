"""How Spark ends a query when it is no longer active between two epochs, as far as stops and savepoints rest on it.

Of coord_control only ``spark/queries/epoch_end.py`` is used, which sets the stream's state at a moment at which that is
safe. When a test fails with a new Spark release, the stops of that release have to be looked at again."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coord_control.spark.queries.epoch_end import end_after_epoch
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.streams import (
    batch_ids,
)

pytestmark = pytest.mark.spark

ROWS = [{"key": f"key-{number}", "value": number} for number in range(4)]


class Sink:
    """A foreachBatch function that says when it is entered and left, and waits in the epochs in which it is told to."""

    def __init__(self, waits_in: int) -> None:
        self._waits_in = waits_in
        self.entered: list[int] = []
        self.left: list[int] = []
        self.is_there = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        self.entered.append(epoch)
        frame.collect()
        if epoch == self._waits_in:
            self.is_there.set()
            assert self.go_on.wait(SECONDS)
        self.left.append(epoch)


def end(query: StreamingQuery) -> None:
    """Tell a query to end after its epoch, until it knows."""
    while not end_after_epoch(query):
        pass


def has_ended(query: StreamingQuery) -> bool:
    """Whether its thread has; ``awaitTermination`` with a timeout only looks at the state that was set."""
    return not query._jsq.streamingQuery().queryExecutionThread().isAlive()


@pytest.fixture(
    params=[{}, {"processingTime": "1 second"}, {"availableNow": True}], ids=["as soon as possible", "timed", "now"]
)
def trigger(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_a_query_that_is_no_longer_active_commits_its_epoch_and_begins_no_other(
    spark: SparkSession, file_stream: MakeStream, checkpoint: Path, trigger: dict[str, Any]
) -> None:
    stream, sink = file_stream(), Sink(waits_in=1)
    for _ in range(4):
        stream.add(ROWS)
    writer = stream.read().writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    assert sink.is_there.wait(SECONDS)
    assert not end_after_epoch(query)
    assert not has_ended(query), "its epoch goes on"
    with ThreadPoolExecutor(1) as aside:
        told = aside.submit(end, query)
        sink.go_on.set()
        told.result(SECONDS)
    begun = list(sink.entered)  # the epoch in which it waited, or a later one if that was over too soon
    query.awaitTermination()
    assert sink.entered == sink.left == begun
    assert begun[:2] == [0, 1]
    assert batch_ids(checkpoint, "offsets") == batch_ids(checkpoint, "commits") == begun
    assert query.exception() is None
    assert query not in spark.streams.active


def test_a_query_without_data_ends_by_itself(spark: SparkSession, file_stream: MakeStream, checkpoint: Path) -> None:
    stream = file_stream()
    stream.add(ROWS)
    query = stream.read().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    eventually(lambda: batch_ids(checkpoint, "commits") == [0])
    end(query)
    query.awaitTermination()
    assert batch_ids(checkpoint, "offsets") == [0]


def test_a_query_that_sleeps_until_a_far_trigger_is_woken_and_begins_nothing(
    spark: SparkSession, file_stream: MakeStream, checkpoint: Path
) -> None:
    stream, sink = file_stream(), Sink(waits_in=-1)
    stream.add(ROWS)
    writer = stream.read().writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="1 hour").start()
    eventually(lambda: query.status["message"] == "Waiting for next trigger")
    stream.add(ROWS)
    end(query)
    query.awaitTermination()
    assert sink.entered == [0]
    assert batch_ids(checkpoint, "offsets") == [0]


def test_a_query_that_fails_in_its_last_epoch_says_so(
    spark: SparkSession, file_stream: MakeStream, checkpoint: Path
) -> None:
    stream, reached, go_on = file_stream(), threading.Event(), threading.Event()
    stream.add(ROWS)

    def fail(frame: DataFrame, epoch: int) -> None:
        reached.set()
        assert go_on.wait(SECONDS)
        raise ZeroDivisionError("on purpose")

    query = stream.read().writeStream.foreachBatch(fail).option("checkpointLocation", str(checkpoint)).start()
    assert reached.wait(SECONDS)
    with ThreadPoolExecutor(1) as aside:
        told = aside.submit(end, query)
        go_on.set()
        told.result(SECONDS)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        query.awaitTermination()
    assert batch_ids(checkpoint, "commits") == []


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
def test_whenever_it_is_told_a_query_begins_an_epoch_wholly_or_not_at_all(
    spark: SparkSession, file_stream: MakeStream, checkpoint: Path, seconds: float
) -> None:
    """Between planning a batch and giving it to the sink, a stream that is not active interrupts itself."""
    stream = file_stream()
    for _ in range(30):
        stream.add(ROWS)
    query = stream.read().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    time.sleep(seconds)
    end(query)
    query.awaitTermination()
    assert batch_ids(checkpoint, "offsets") == batch_ids(checkpoint, "commits")


def test_continuous_processing_has_no_epochs_between_which_it_could_end(spark: SparkSession, checkpoint: Path) -> None:
    rate = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    writer = rate.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(continuous="1 second").start()
    assert end_after_epoch(query)
    assert has_ended(query), "it was stopped where it was"
