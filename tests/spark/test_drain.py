"""Draining on real Spark: a job reads what its sources have, and stops then; or it does not, and keeps running."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import DataFrame, SparkSession

from coord_control.errors import CheckpointNotCompleted
from coord_control.ids import CheckpointKind, QueryName
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from tests.patience import SECONDS, eventually
from tests.spark.jobs import MakeJob, rows
from tests.spark.streams import FileStream
from tests.spark.test_checkpoints import committed, metadata

pytestmark = pytest.mark.spark


class SlowSink:
    """Waits before each epoch but the first, until it may continue."""

    def __init__(self) -> None:
        self.may_continue = threading.Event()
        self.epochs: list[int] = []

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        if epoch:
            assert self.may_continue.wait(SECONDS)
        frame.collect()
        self.epochs.append(epoch)


def test_a_job_reads_all_files_and_stops_then(
    spark: SparkSession, make_job: MakeJob, source: FileStream, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in range(3, 6):
        source.add(rows(epoch))
    job, sink = make_job(), SlowSink()
    rate = spark.readStream.format("rate").load()
    job.start("rate", rate.writeStream.format("noop"))
    job.start("ended", source.read().writeStream.format("noop").trigger(availableNow=True))
    job.start("files", source.read().writeStream.foreachBatch(sink))
    eventually(lambda: sink.epochs == [0])
    with ThreadPoolExecutor() as aside, caplog.at_level("INFO"):
        taken = aside.submit(job.stop_with_savepoint, drain=True)
        eventually(lambda: "query 'files' still finds new data" in caplog.text)
        assert not taken.done()
        sink.may_continue.set()
        found = metadata(taken.result(SECONDS).path)
    assert found.queries[QueryName("files")].epoch == 5
    assert sink.epochs == [0, 1, 2, 3, 4, 5]
    assert "all queries are drained" in caplog.text
    assert not spark.streams.active


def test_a_query_that_has_read_all_is_drained_at_its_next_trigger(make_job: MakeJob, source: FileStream) -> None:
    job = make_job()
    job.start("q", source.read().writeStream.format("noop"))
    eventually(lambda: committed(job) == 2)
    began = time.monotonic()
    assert metadata(job.stop_with_savepoint(drain=True).path).queries[QueryName("q")].epoch == 2
    assert time.monotonic() - began < SECONDS


def test_what_is_never_drained_ends_with_its_time_or_its_caller_and_the_job_keeps_running(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """Spark's rate-micro-batch makes rows with every trigger, and does not report how far it reaches."""
    job = make_job()
    endless = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    job.start("q", endless.writeStream.format("noop").trigger(processingTime="100 milliseconds"))
    eventually(lambda: committed(job) >= 1)
    with pytest.raises(TimeoutError, match=r"of draining, query 'q' still finds new data: .* the job keeps running"):
        job.stop_with_savepoint(drain=True, timeout_seconds=1.0)

    told: list[str] = []
    with pytest.raises(CheckpointNotCompleted, match="aborted on request"):
        job._port.savepoint_and_pause(
            CheckpointRequest(kind=CheckpointKind.SAVEPOINT, cause="test"),
            is_wanted=lambda: not told,
            tell_draining=told.append,
        )
    reached = committed(job)
    eventually(lambda: committed(job) > reached + 1)
    assert [query.state for query in job.status().queries] == ["running"]
    assert job.status().queries[0].restarts == 0


def test_a_job_that_ends_meanwhile_takes_no_savepoint(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    endless = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    job.start("q", endless.writeStream.format("noop"))
    eventually(lambda: committed(job) >= 0)
    request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, cause="test")
    told = threading.Event()
    with ThreadPoolExecutor() as aside:
        taken = aside.submit(job._port.savepoint_and_pause, request, tell_draining=lambda _: told.set())
        assert told.wait(SECONDS)
        job.stop()
        with pytest.raises(CheckpointNotCompleted) as failed:
            taken.result(SECONDS)
    assert failed.value.reason == "job_ending"
