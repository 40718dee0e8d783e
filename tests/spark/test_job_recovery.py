"""Jobs that fail and go on: numbered events and rows arrive exactly once, whatever was tried how often."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame

import coord_control as cc
from coord_control import errors
from coord_control.durable.files.filesystem import LocalFiles
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    FORMS,
    Book,
    Dialogue,
    MakeJob,
    Once,
    Trouble,
    apply,
    drain,
    followed,
    query_status,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


# Failed tasks.


class Observer(Dialogue):
    """Notes what it is told of attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int, int]] = []
        self.reasons: list[str] = []

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: cc.SubtaskGateway) -> None:
        assert gateway.subtask == subtask
        self.told.append(("ready", subtask, attempt))

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str) -> None:
        self.told.append(("failed", subtask, attempt))
        self.reasons.append(reason)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        self.told.append(("reset", subtask, checkpoint_id))


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_task_is_tried_again_by_spark(make_job: MakeJob, source: FileStream, once: Once, form: str) -> None:
    def fail_once(subtask: cc.Subtask[Any]) -> None:
        if subtask.epoch == 1 and subtask.index == 0 and once():
            raise Trouble("the first try")

    coordinator = Observer()
    with make_job() as job:
        drain(job, write(apply(talk(job, coordinator), source.read(), followed(fail_once), form=form)))
        assert query_status(job).restarts == 0
        assert job.status().operators[0].totals.attempts_failed == 1
    coordinator.check(range(24))
    told = [entry for entry in coordinator.told if entry[1] == 0]
    assert [what for what, _, _ in told] == ["ready", "ready", "failed", "reset", "ready", "ready"]
    _, first, failed, (_, _, checkpoint), second, _ = told
    assert failed[2] == first[2] < second[2]
    assert checkpoint > 0  # the epoch before it
    assert coordinator.reasons == ["Trouble: the first try"]
    assert [what for what, subtask, _ in coordinator.told if subtask == 1] == ["ready"] * 3


class WorkerKiller(Observer):
    """Kills Spark's Python workers while a hello waits for its state."""

    def __init__(self) -> None:
        super().__init__()
        self.has_killed = False

    def checkpoint_coordinator(self, checkpoint_id: int, result: cc.SnapshotResult) -> None:
        if self.state.heard and not self.has_killed:
            self.has_killed = True
            workers = python_workers()
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            psutil.wait_procs(workers, SECONDS)
        super().checkpoint_coordinator(checkpoint_id, result)


def python_workers() -> list[psutil.Process]:
    """Those that Spark's daemon in this session has forked."""

    def is_daemons(process: psutil.Process | None) -> bool:
        return process is not None and "pyspark.daemon" in process.cmdline()

    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if is_daemons(each) and is_daemons(each.parent()):
                found.append(each)
    return found


def test_a_worker_that_dies_while_its_hello_waits_is_told_and_tried_again(
    make_job: MakeJob, source: FileStream
) -> None:
    coordinator = WorkerKiller()
    with make_job() as job:
        drain(job, write(apply(talk(job, coordinator), source.read())))
        assert query_status(job).restarts == 0
    assert coordinator.has_killed
    coordinator.check(range(24))
    lost = {subtask for what, subtask, _ in coordinator.told if what == "failed"}
    assert lost
    for subtask in lost:
        told = [what for what, of, _ in coordinator.told if of == subtask]
        assert told == ["ready", "ready", "failed", "reset", "ready", "ready"]


# Failed batches.


@pytest.mark.parametrize("form", ["arrow", *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[1:])])
def test_a_failed_batch_is_run_again_in_place(make_job: MakeJob, source: FileStream, tmp_path: Path, form: str) -> None:
    tries = [Once(tmp_path / f"try-{n}") for n in range(3)]  # as often as Spark tries a task

    def fail_the_batch(subtask: cc.Subtask[Any]) -> None:
        if subtask.epoch == 1 and subtask.index == 0 and any(one() for one in tries):
            raise Trouble("every try")

    coordinator = Dialogue()
    with make_job() as job:
        drain(job, write(apply(talk(job, coordinator), source.read(), followed(fail_the_batch), form=form)))
        status = query_status(job)
        assert (status.restarts, status.state, status.committed) == (1, "finished", 2)
        assert "Trouble: every try" in str(status.last_failure)
    coordinator.check(range(24))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_foreach_batch_that_raises_is_run_again_in_place(
    make_job: MakeJob, source: FileStream, once: Once, when: str
) -> None:
    seen: dict[int, list[int]] = {}

    def write_or_raise(frame: DataFrame, epoch: int) -> None:
        if epoch == 1 and when == "before" and once():
            raise Trouble("before the write")
        seen[epoch] = sorted(row.value for row in frame.collect())
        if epoch == 1 and when == "after" and once():
            raise Trouble("after the write")

    coordinator = Dialogue()
    with make_job() as job:
        out = apply(talk(job, coordinator), source.read())
        drain(job, out.writeStream.foreachBatch(write_or_raise))
        assert query_status(job).restarts == 1
    # Raised before its first task the epoch never began, so it is run with empty inputs.
    coordinator.check(range(24), prompt=when == "after")
    assert seen == {epoch: [row["value"] for row in rows(epoch)] for epoch in range(3)}


def test_a_query_that_cannot_get_on_fails_for_good(
    make_job: MakeJob, source: FileStream, caplog: pytest.LogCaptureFixture
) -> None:
    def never(frame: DataFrame, epoch: int) -> None:
        raise Trouble("never")

    policy = cc.RestartPolicy(initial_seconds=0.01, maximum_seconds=0.03, multiplier=2, max_restarts=3)
    assert [policy.delay(n) for n in range(5)] == [0.01, 0.02, 0.03, 0.03, 0.03]
    with make_job(restart=policy) as job:
        other = job.start("other", source.read().writeStream.format("noop"))
        with pytest.raises(
            errors.QueryFailed, match=r"(?s)'q' failed after 3 restarts without progress: .*Trouble: never"
        ):
            drain(job, apply(talk(job, Dialogue()), source.read()).writeStream.foreachBatch(never))
        assert not other.isActive  # the others were stopped
    assert sum("failed, restarting in" in record.message for record in caplog.records) == 3


def test_progress_resets_the_count_of_restarts(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    for epoch in range(3, 6):
        source.add(rows(epoch))

    def fail_each_epoch_once(frame: DataFrame, epoch: int) -> None:
        frame.collect()
        if Once(tmp_path / f"epoch-{epoch}")():
            raise Trouble(f"epoch {epoch}")

    coordinator = Dialogue()
    with make_job() as job:
        drain(job, apply(talk(job, coordinator), source.read()).writeStream.foreachBatch(fail_each_epoch_once))
        assert query_status(job).restarts == 6  # in all; in a row only max_restarts = 3 are allowed
    coordinator.check(range(48))


def test_a_query_between_two_runs_is_shown(make_job: MakeJob, source: FileStream, once: Once) -> None:
    def fail_once(frame: DataFrame, epoch: int) -> None:
        if once():
            raise Trouble("once")

    patient = cc.RestartPolicy(initial_seconds=60)
    with make_job(restart=patient) as job:
        job.start("q", apply(talk(job, Dialogue()), source.read()).writeStream.foreachBatch(fail_once))
        eventually(lambda: query_status(job).state == "restarting")
        (operator,) = job.status().operators
        assert (operator.uid, operator.query, operator.epoch, operator.gateways) == ("op", "q", None, ())
        job.stop()  # does not wait for the end of the back-off
        assert job.await_termination(0)


# The storage.


class Breakable(LocalFiles):
    """A storage whose epoch store cannot be written while it is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.refused = 0

    def create(self, path: str, data: bytes) -> None:
        if self.broken and "/epochs/" in path:
            self.refused += 1
            raise errors.StoreUnavailable(path, "create", OSError(28, "No space left on device"))
        super().create(path, data)

    def list(self, path: str) -> list[str]:
        if self.broken and "/queries/" in path:
            self.refused += 1
            raise errors.StoreUnavailable(path, "list", OSError(5, "Input/output error"))
        return super().list(path)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Breakable]:
    breakable = Breakable()
    monkeypatch.setattr("coord_control.spark.job.job_place.files_for", lambda root, spark: breakable)
    yield breakable
    breakable.broken = False


def test_a_query_waits_for_its_storage_and_goes_on(make_job: MakeJob, source: FileStream, storage: Breakable) -> None:
    endless = cc.RestartPolicy(initial_seconds=0.05, maximum_seconds=0.05, max_restarts=10_000)
    coordinator = Dialogue()
    with make_job(restart=endless) as job:
        job.start("q", write(apply(talk(job, coordinator), source.read())))
        eventually(lambda: query_status(job).committed == 2)
        storage.broken = True
        source.add(rows(3))
        eventually(lambda: query_status(job).restarts >= 3)
        failure = str(query_status(job).last_failure)
        assert "check that the storage is reachable, writable and not full" in failure
        assert query_status(job).committed == 2  # nothing that is not durable has become visible
        storage.broken = False
        source.add(rows(4))
        eventually(lambda: query_status(job).committed == 4)
    coordinator.check(range(40), prompt=False)
    assert storage.refused > 0


def test_a_storage_that_stays_away_ends_the_job(make_job: MakeJob, source: FileStream, storage: Breakable) -> None:
    with make_job() as job:
        job.start("q", write(apply(talk(job, Dialogue()), source.read())))
        eventually(lambda: query_status(job).committed == 2)
        storage.broken = True
        source.add(rows(3))
        with pytest.raises(errors.QueryFailed, match="failed after 3 restarts without progress: cannot") as caught:
            job.await_termination(SECONDS)
    assert isinstance(caught.value.__cause__, errors.StoreUnavailable)


# The cost rule.


def test_an_idle_control_plane_writes_nothing(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    class Quiet(cc.StatefulCoordinator[Book]):
        pass

    def idle(subtask: cc.Subtask[Any], batches: Any) -> Any:
        yield from batches

    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "jobs").rglob("epochs/**/*")}

    with make_job() as job:
        operator = job.operator("op", Quiet(Book()), parallelism=2, state=Book)
        job.start("q", write(apply(operator, source.read(), idle)))
        eventually(lambda: query_status(job).committed == 2)
        before, group_commits = written(), job.status().group_commits
        for epoch in range(3, 13):
            source.add(rows(epoch))
        eventually(lambda: query_status(job).committed == 12)
        assert written() == before
        assert job.status().group_commits == group_commits
        totals = job.status().operators[0].totals
        assert (totals.epochs, totals.begins_recorded, totals.acks_recorded) == (13, 1, 0)
        assert totals.acks == 26
