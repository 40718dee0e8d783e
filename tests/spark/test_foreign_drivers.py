"""Another driver that writes to the same Spark checkpoint, or that has taken over a job whose control plane is idle."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import coord_control as cc
from coord_control import errors
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.ids import QueryName
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    Memory,
    Trouble,
    apply,
    query_status,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


def spark_checkpoint(job: cc.Job, query: str = "q") -> Path:
    return Path(job._driver.queries[QueryName(query)].lineage.checkpoint)


def commit_elsewhere(checkpoint: Path, epoch: int) -> None:
    """What another driver of the same checkpoint does: its commit of the epoch appears."""
    shutil.copy(checkpoint / "commits" / str(epoch - 1), checkpoint / "commits" / str(epoch))


@pytest.mark.parametrize("fails", [False, True], ids=["spark-finds-it", "the-run-fails-otherwise"])
def test_a_commit_that_another_driver_made_is_not_settled_as_no_rows(
    make_job: MakeJob, source: FileStream, fails: bool
) -> None:
    job, coordinator = make_job(), Dialogue()

    def overtaken(frame: DataFrame, epoch: int) -> None:
        frame.collect()
        if epoch == 1:
            commit_elsewhere(spark_checkpoint(job), 1)
            if fails:
                raise Trouble("after another driver has committed the epoch")

    job.start("q", apply(talk(job, coordinator), source.read()).writeStream.foreachBatch(overtaken))
    with pytest.raises(errors.QueryFailed) as failed:
        job.await_termination(SECONDS)
    why = failed.value.__cause__
    assert isinstance(why, errors.CommittedElsewhere)
    assert (why.query, why.epoch) == ("q", 1)
    assert "run, which failed with: " in str(why)
    assert fails or "CONCURRENT_STREAM_LOG_UPDATE" in why.why
    # What this driver's subtasks have acknowledged in it has not happened: nobody knows what the other one's did.
    assert {report.epoch for heard in coordinator.state.heard.values() for report in heard} == {0}


def test_a_run_that_is_interrupted_does_not_take_the_commit_of_another_driver_for_its_own(
    make_job: MakeJob, source: FileStream
) -> None:
    """Bug: after an interrupt for another reason the query restarted behind the foreign commit, without a word."""
    job, coordinator = make_job(), Dialogue()
    job.start("q", write(apply(talk(job, coordinator), source.read())))
    # The source has no more: what is copied below cannot meet an epoch that this driver plans meanwhile.
    eventually(lambda: query_status(job).committed == 2)
    checkpoint, newest = spark_checkpoint(job), 2
    eventually(lambda: (checkpoint / "commits" / str(newest)).exists())
    eventually(lambda: not job._driver.queries[QueryName("q")].spark_query.status["isTriggerActive"])
    for log in ("offsets", "commits"):  # the other driver plans an epoch and commits it
        shutil.copy(checkpoint / log / str(newest), checkpoint / log / str(newest + 1))
    job._driver.queries[QueryName("q")].fail(Trouble("a coordinator has failed, which restarts the query"))
    with pytest.raises(errors.QueryFailed) as failed:
        job.await_termination(SECONDS)
    why = failed.value.__cause__
    assert isinstance(why, errors.CommittedElsewhere)
    assert (why.query, why.epoch) == ("q", newest + 1)


def test_a_commit_of_an_epoch_that_this_driver_has_not_planned_is_not_its_own(
    make_job: MakeJob, source: FileStream
) -> None:
    job, coordinator = make_job(), Dialogue()
    job.start("q", write(apply(talk(job, coordinator), source.read())))
    eventually(lambda: query_status(job).committed == 2)
    commit_elsewhere(spark_checkpoint(job), 3)
    source.add(rows(3))
    with pytest.raises(errors.QueryFailed) as failed:
        job.await_termination(SECONDS)
    why = failed.value.__cause__
    assert isinstance(why, errors.CommittedElsewhere)
    assert (why.query, why.epoch) == ("q", 3)
    assert {report.epoch for heard in coordinator.state.heard.values() for report in heard} == {0, 1, 2}


def test_epochs_without_rows_for_any_operator_are_settled_by_sparks_own_word(
    make_job: MakeJob, source: FileStream
) -> None:
    """No hello implies these commits; only Spark's progress says whose they are."""
    job = make_job()
    rowless = source.read().filter("value < 8")
    job.start("q", write(apply(talk(job, Dialogue()), rowless)))
    eventually(lambda: query_status(job).committed == 2)
    for epoch in range(3, 6):
        source.add(rows(epoch))
    eventually(lambda: query_status(job).committed == 5)
    assert job._driver.runtime.call(lambda core, now: core.operators()[0].committed) == 5
    job.stop(SECONDS)
    assert query_status_error(job) is None


def query_status_error(job: cc.Job) -> object:
    return job._driver.queries[QueryName("q")].error


def pass_on(subtask: cc.Subtask[Memory], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


class Quiet(cc.StatefulCoordinator[Memory]):
    """Sends nothing and never changes."""

    def __init__(self) -> None:
        super().__init__(Memory())


class Hanging(LocalFiles):
    """A storage on which claims cannot be read for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def read(self, path: str) -> bytes:
        assert self.answers.wait(SECONDS)
        return super().read(path)


def test_an_idle_control_plane_does_not_let_a_fenced_drivers_spark_commit(
    make_job: MakeJob, source: FileStream
) -> None:
    job: Any = make_job()
    operator = job.operator("op", Quiet(), parallelism=2, state=Memory)
    job.start("q", write(apply(operator, source.read(), pass_on)))
    eventually(lambda: query_status(job).committed == 2)
    driver, commits = job._driver, spark_checkpoint(job) / "commits"
    asked = driver.runtime.endpoint.stats().frames_in
    # The storage does not answer this driver any more, and another one has claimed the job.
    driver.claim._files = hanging = Hanging()
    generations.claim(LocalFiles(), f"{driver.place.folder}/generations", Holder.of([]))
    eventually(lambda: not driver.claim.is_fresh())
    source.add(rows(3))
    eventually(lambda: driver.runtime.endpoint.stats().frames_in > asked)
    hanging.answers.set()
    with pytest.raises(errors.Fenced):
        job.await_termination(SECONDS)
    assert not (commits / "3").exists()
