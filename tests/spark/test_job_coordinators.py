"""Coordinators of running jobs: failing, slow, busy in the background, and a configuration for all subtasks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame

import coord_control as cc
from coord_control import errors
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    Once,
    Trouble,
    apply,
    drain,
    query_status,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


class Failing(Dialogue):
    """Raises once, when it hears of an epoch."""

    def __init__(self, epoch: int, once: Once) -> None:
        super().__init__()
        self._epoch = epoch
        self._once = once

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        super().handle_event_from_operator(subtask, attempt, event)
        if event.epoch == self._epoch and self._once():
            raise Trouble("in a callback")


def test_a_callback_that_raises_fails_the_query_with_its_traceback(
    make_job: MakeJob, source: FileStream, once: Once
) -> None:
    coordinator = Failing(1, once)
    with make_job() as job:
        drain(job, write(apply(talk(job, coordinator), source.read())))
        failure = str(query_status(job).last_failure)
        assert query_status(job).restarts == 1
    assert "the coordinator of operator 'op' failed in handle_event_from_operator" in failure
    assert 'raise Trouble("in a callback")' in failure
    coordinator.check(range(24), prompt=False)


def test_a_callback_that_always_raises_ends_the_job(make_job: MakeJob, source: FileStream) -> None:
    class Always(Dialogue):
        def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
            raise Trouble("always")

    with make_job() as job, pytest.raises(errors.QueryFailed, match="failed after 3 restarts") as caught:
        drain(job, write(apply(talk(job, Always()), source.read())))
    assert isinstance(caught.value.__cause__, errors.CoordinatorFailed)
    assert isinstance(caught.value.__cause__.__cause__, Trouble)


def test_a_coordinator_that_gives_no_state_in_time_is_named(make_job: MakeJob, source: FileStream) -> None:
    class Late(Dialogue):
        def checkpoint_coordinator(self, checkpoint_id: int, result: cc.SnapshotResult) -> None:
            pass

    once_only = cc.RestartPolicy(initial_seconds=0.01, max_restarts=0)
    with make_job(restart=once_only, snapshot_timeout_seconds=0.1) as job, pytest.raises(errors.QueryFailed) as caught:
        drain(job, write(apply(talk(job, Late()), source.read())))
    assert isinstance(caught.value.__cause__, errors.CoordinatorTimeout)


def test_a_slow_callback_is_reported(make_job: MakeJob, source: FileStream, caplog: pytest.LogCaptureFixture) -> None:
    reported = threading.Event()

    class Slow(Dialogue):
        def start(self) -> None:
            super().start()
            assert reported.wait(SECONDS)

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has been in start for" in record.getMessage():
                reported.set()

    watch = Watch()
    logging.getLogger("coord_control.job").addHandler(watch)
    coordinator = Slow()
    try:
        with make_job(slow_callback_seconds=0.01) as job:
            drain(job, write(apply(talk(job, coordinator), source.read())))
            assert job.status().slow_callbacks >= 1
    finally:
        logging.getLogger("coord_control.job").removeHandler(watch)
    coordinator.check(range(24))
    assert any("move slow work to context.run_in_background" in record.message for record in caplog.records)


def test_a_callback_may_stop_the_job(make_job: MakeJob, source: FileStream, caplog: pytest.LogCaptureFixture) -> None:
    class Stopping(Dialogue):
        def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
            super().handle_event_from_operator(subtask, attempt, event)
            job.stop(SECONDS)

    with make_job() as job:
        job.start("q", write(apply(talk(job, Stopping()), source.read())))
        assert job.await_termination(SECONDS)
    assert "failed in" not in caplog.text
    with pytest.raises(errors.JobClosed):
        job.status()


class Background(Dialogue):
    """Answers a report from a thread of its own."""

    def __init__(self, once: Once | None = None) -> None:
        super().__init__()
        self._once = once
        self.threads: set[str] = set()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        def work() -> tuple[int, Any]:
            self.threads.add(threading.current_thread().name.rsplit("_", 1)[0])
            if self._once is not None and self._once():
                raise Trouble("in the background")
            return subtask, event

        self.context.run_in_background(work, self._done)

    def _done(self, result: tuple[int, Any]) -> None:
        self.threads.add(threading.current_thread().name)
        super().handle_event_from_operator(result[0], 0, result[1])


def test_background_work_comes_back_to_the_coordinators_thread(make_job: MakeJob, source: FileStream) -> None:
    coordinator = Background()
    with make_job() as job:
        job.start("q", write(apply(talk(job, coordinator), source.read())))
        eventually(lambda: sum(map(len, coordinator.state.heard.values())) == 6)
    assert coordinator.threads == {"coord-background", "coord-coordinators"}
    assert sorted(value for heard in coordinator.state.heard.values() for value in heard[-1].values) == list(range(24))


def test_background_work_that_fails_restarts_the_query(make_job: MakeJob, source: FileStream, once: Once) -> None:
    coordinator = Background(once)
    with make_job() as job:
        job.start("q", write(apply(talk(job, coordinator), source.read())))
        eventually(lambda: query_status(job).restarts == 1)
        assert "failed in run_in_background" in str(query_status(job).last_failure)
        assert "Trouble: in the background" in str(query_status(job).last_failure)


def test_events_sent_from_other_threads(make_job: MakeJob, source: FileStream) -> None:
    for epoch in range(3, 8):
        source.add(rows(epoch))

    class Threaded(Dialogue):
        """All of its sends come from other threads, under one lock with its snapshots."""

        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

        def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
            answer = threading.Thread(target=self._answer, args=(subtask, event))
            answer.start()
            answer.join()

        def checkpoint_coordinator(self, checkpoint_id: int, result: cc.SnapshotResult) -> None:
            with self.lock:
                super().checkpoint_coordinator(checkpoint_id, result)

        def _answer(self, subtask: int, event: Any) -> None:
            with self.lock:
                super().handle_event_from_operator(subtask, 0, event)

    coordinator = Threaded()
    with make_job() as job:
        drain(job, write(apply(talk(job, coordinator), source.read())))
    coordinator.check(range(64))


class Version(BaseModel):
    """What the configuration says, and the state that keeps it."""

    number: int = 0


def apply_version(subtask: cc.Subtask[Version], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for event in subtask.events:
        subtask.state = event  # type: ignore[assignment]
    for batch in batches:
        count = batch.num_rows
        yield pa.RecordBatch.from_pydict({"subtask": [subtask.index] * count, "number": [subtask.state.number] * count})


def test_a_configuration_changes_for_all_subtasks_in_the_same_epoch(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    versions: dict[int, set[tuple[int, int]]] = {}

    def note(frame: DataFrame, epoch: int) -> None:
        versions[epoch] = {(row.subtask, row.number) for row in frame.collect()}
        if epoch == 4 and Once(tmp_path / "once")():
            raise Trouble("an epoch that is run again sees what it saw before")

    config = cc.BroadcastConfig(Version(number=1))
    with make_job() as job:
        operator = job.operator("op", config, parallelism=3, state=Version, down=[Version])
        schema = "subtask LONG, number LONG"
        out = operator.apply(source.read(), apply_version, schema=schema, partition_by=["key"])
        job.start("q", out.writeStream.foreachBatch(note))
        eventually(lambda: query_status(job).committed == 2)
        for epoch in range(3, 7):
            config.update(Version(number=epoch))
            source.add(rows(epoch))
            eventually(lambda epoch=epoch: query_status(job).committed == epoch)  # type: ignore[misc]
    assert {subtask for subtask, _ in versions[0]} == {0, 1, 2}
    # Each epoch: one version in every subtask, and always the newest that was given before it.
    expected = {0: 1, 1: 1, 2: 1, 3: 3, 4: 4, 5: 5, 6: 6}
    assert versions == {epoch: {(subtask, number) for subtask in range(3)} for epoch, number in expected.items()}


def test_a_callback_that_raises_after_the_last_epoch_fails_the_job_too(make_job: MakeJob, source: FileStream) -> None:
    class AtTheEnd(Dialogue):
        def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
            super().handle_event_from_operator(subtask, attempt, event)
            if event.epoch == 2:
                raise Trouble("after the last commit")

    with make_job() as job, pytest.raises(errors.QueryFailed, match="after the last commit"):
        drain(job, write(apply(talk(job, AtTheEnd()), source.read())))
