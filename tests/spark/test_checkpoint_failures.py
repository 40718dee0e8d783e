"""Checkpoints of running jobs that meet trouble: slow coordinators, purged files, failed queries, aborts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coord_control as cc
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.errors import (
    CheckpointNotCompleted,
    JobClosed,
    StateFileMissing,
    StoreUnavailable,
    TooManyFailedCheckpoints,
)
from coord_control.ids import OperatorUid
from coord_control.protocol.statistics import CheckpointStatistics, OperatorStatistics
from coord_control.spark.checkpoints import checkpoint_service
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    Memory,
    Once,
    Trouble,
    apply,
    followed,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream
from tests.spark.test_checkpoints import committed, metadata, run


class Slow(Dialogue):
    """Keeps its answers for itself while told so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.kept: list[cc.SnapshotResult] = []

    def checkpoint_coordinator(self, checkpoint_id: int, result: cc.SnapshotResult) -> None:
        if self.is_slow:
            self.kept.append(result)
        else:
            super().checkpoint_coordinator(checkpoint_id, result)


def reason(handle: cc.CheckpointHandle) -> str:
    with pytest.raises(CheckpointNotCompleted) as failed:
        handle.wait(SECONDS)
    return failed.value.reason


def completes(trigger: Callable[[], cc.CheckpointHandle]) -> None:
    """One that is triggered now completes, where the limit is so short that a busy machine may let some expire."""

    def once() -> bool:
        try:
            return trigger().wait(SECONDS).path != ""
        except CheckpointNotCompleted as error:
            if error.reason != "expired":
                raise
            return False

    eventually(once)


def last(job: cc.Job) -> CheckpointStatistics:
    """What is known of the newest one that has ended."""
    return max(job.checkpoint_statistics().history, key=lambda each: each.checkpoint)


def goes_on(job: cc.Job, source: FileStream, coordinator: Dialogue, *, prompt: bool = True) -> None:
    """The job processes what comes, and no event was lost or doubled."""
    for epoch in range(committed(job) + 1, committed(job) + 3):
        source.add(rows(epoch))
    last = committed(job) + 2
    eventually(lambda: committed(job) == last)
    job.stop()
    coordinator.check(range(8 * (last + 1)), prompt=prompt)


def test_one_that_takes_too_long_expires_and_the_job_goes_on(make_job: MakeJob, source: FileStream) -> None:
    job, coordinator = make_job(checkpoints=cc.CheckpointOptions(timeout_seconds=2.0)), Slow()
    run(job, source, coordinator)
    coordinator.is_slow = True
    assert reason(job.trigger_checkpoint()) == "expired"
    [part] = last(job).operators
    assert (part.operator, part.asked_seconds, part.snapshot_seconds) == ("op", 0.0, None)
    assert [(each.subtask, each.passed_seconds) for each in part.subtasks] == [(0, None), (1, None)]
    coordinator.is_slow = False
    coordinator.kept[0].complete(b"{}")  # late news
    completes(job.trigger_checkpoint)
    goes_on(job, source, coordinator)


def test_a_coordinator_that_never_answers_fails_its_checkpoint_and_not_the_later_ones(
    make_job: MakeJob, source: FileStream
) -> None:
    job, coordinator = make_job(snapshot_timeout_seconds=2.0), Slow()
    run(job, source, coordinator)
    coordinator.is_slow = True
    assert reason(job.trigger_savepoint()) == "coordinator_timeout"
    [part] = last(job).operators
    assert (part.asked_seconds, part.snapshot_seconds, len(part.subtasks)) == (0.0, None, 2)
    coordinator.is_slow = False
    assert job.trigger_savepoint().wait(SECONDS).id == 2
    goes_on(job, source, coordinator)


def test_a_savepoint_that_expires_names_the_subtask_that_it_waited_for(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    job, coordinator = make_job(checkpoints=cc.CheckpointOptions(timeout_seconds=1.0)), Dialogue()

    def linger(subtask: cc.Subtask[Memory]) -> None:
        if subtask.epoch == 0 and subtask.index == 1:
            (tmp_path / "running").touch()
            eventually((tmp_path / "go-on").exists)

    def measured() -> OperatorStatistics:
        assert reason(job.trigger_savepoint()) == "expired"
        [query] = last(job).queries
        assert (query.query, query.boundary, query.boundary_seconds, query.files) == ("q", 0, None, 0)
        [part] = query.operators
        return part

    operator = talk(job, coordinator)
    frame = operator.apply(source.read(), followed(linger), schema="key STRING, value LONG", partition_by=["key"])
    job.start("q", write(frame))
    eventually((tmp_path / "running").exists)
    eventually(lambda: job._driver.runtime.read(lambda core, now: core.totals()[OperatorUid("op")].acks, SECONDS) == 1)
    while (part := measured()).snapshot_seconds is None:
        pass  # this machine is so busy that the coordinator has not answered within the second
    quick, slow = part.subtasks
    assert quick.passed_seconds is not None
    assert (slow.subtask, slow.passed_seconds, slow.ack_seconds) == (1, None, None)
    assert slow.blocked_seconds > 0.0
    (tmp_path / "go-on").touch()
    completes(job.trigger_savepoint)
    job.stop()


def test_one_that_fails_when_nobody_can_say_any_more_what_was_measured_ends_all_the_same(
    make_job: MakeJob, source: FileStream
) -> None:
    job, coordinator = make_job(), Slow()
    run(job, source, coordinator)
    coordinator.is_slow = True
    handle = job.trigger_checkpoint()
    eventually(lambda: coordinator.kept)
    job._driver.runtime.close(JobClosed("job"))
    handle.abort()
    assert reason(handle) == "aborted"
    assert last(job).queries == ()


def test_several_at_once_each_have_a_snapshot_of_their_own(make_job: MakeJob, source: FileStream) -> None:
    job = make_job(checkpoints=cc.CheckpointOptions(max_concurrent=2, retained=5))
    coordinator = Slow()
    run(job, source, coordinator)
    coordinator.is_slow = True
    handles = [job.trigger_checkpoint(), job.trigger_checkpoint(), job.trigger_savepoint()]
    eventually(lambda: coordinator.kept)
    coordinator.is_slow = False
    coordinator.kept[0].complete(b"first")
    taken = [handle.wait(SECONDS) for handle in handles]
    states = [metadata(each.path).operators["op"].coordinator_state for each in taken]  # type: ignore[index]
    assert states[0] == b"first"
    assert states[1] == states[2] == coordinator.snapshot()
    assert len({metadata(each.path).barrier for each in taken}) == 3


def test_an_aborted_one_leaves_nothing_and_drops_nothing(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    job, coordinator = make_job(), Slow()
    run(job, source, coordinator)
    coordinator.is_slow = True
    handle = job.trigger_savepoint(target=str(tmp_path / "given-up"))
    eventually(lambda: coordinator.kept)
    handle.abort()
    assert reason(handle) == "aborted"
    coordinator.is_slow = False
    assert not list((tmp_path / "given-up").glob("*"))
    goes_on(job, source, coordinator)


def test_a_failed_query_ends_what_is_under_way_and_requests_wait_for_its_restart(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    once = Once(tmp_path / "once")
    job, coordinator = make_job(), Slow()
    arrived = tmp_path / "arrived"

    def fail(subtask: cc.Subtask[Memory]) -> None:
        if subtask.epoch == 3 and once():
            arrived.touch()
            raise Trouble("in epoch 3")

    operator = talk(job, coordinator)
    frame = operator.apply(source.read(), followed(fail), schema="key STRING, value LONG", partition_by=["key"])
    job.start("q", write(frame).trigger(processingTime="50 milliseconds"))
    eventually(lambda: committed(job) == 2)
    coordinator.is_slow = True
    handle = job.trigger_checkpoint()
    eventually(lambda: coordinator.kept)
    # Epoch 3 waits for this answer; given to a checkpoint that fails with the query.
    source.add(rows(3))
    coordinator.is_slow = False
    job._driver.queries["q"].fail(Trouble("from outside"))  # type: ignore[index]
    assert reason(handle) in ("query_failed", "query_restarting")
    assert job.trigger_checkpoint().wait(SECONDS).id > 1
    eventually(lambda: committed(job) == 3)
    assert job.status().queries[0].restarts >= 1
    # Not prompt: an epoch that was planned and had not begun is run again with empty inputs (decision 0003).
    goes_on(job, source, coordinator, prompt=False)


@pytest.mark.parametrize("times", [2, 3])
def test_files_that_spark_removes_first_are_cut_again(
    make_job: MakeJob, source: FileStream, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    job, coordinator = make_job(), Dialogue()
    run(job, source, coordinator)
    store = job._driver.checkpoints._store
    pin, left = store.pin, [times]

    def purged(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StateFileMissing("state/0/0/3.delta", "Spark was faster")
        return pin(*args)

    monkeypatch.setattr(store, "pin", purged)
    handle = job.trigger_checkpoint()
    if times < 3:
        assert handle.wait(SECONDS).id == 1
    else:
        with pytest.raises(CheckpointNotCompleted, match="minBatchesToRetain"):
            handle.wait(SECONDS)
    assert left == [0]
    goes_on(job, source, coordinator)


def test_a_storage_that_fails_fails_the_checkpoint_and_not_the_job(
    make_job: MakeJob, source: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, coordinator = make_job(), Dialogue()
    run(job, source, coordinator)

    def full(*args: Any) -> Any:
        raise StoreUnavailable("/checkpoints/1/_metadata", "create", OSError(28, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(job._driver.checkpoints._store, "complete", full)
        assert reason(job.trigger_checkpoint()) == "disk_full"
    assert job.trigger_checkpoint().wait(SECONDS).id == 2
    goes_on(job, source, coordinator)


def test_a_checkpoint_expires_in_time_while_its_storage_fails_and_the_log_says_it_once(
    make_job: MakeJob,
    source: FileStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job, coordinator = make_job(checkpoints=cc.CheckpointOptions(timeout_seconds=1.0)), Dialogue()

    def linger(subtask: cc.Subtask[Memory]) -> None:
        if subtask.epoch == 1:
            (tmp_path / "running").touch()
            eventually((tmp_path / "go-on").exists)

    operator = talk(job, coordinator)
    frame = operator.apply(source.read(), followed(linger), schema="key STRING, value LONG", partition_by=["key"])
    job.start("q", write(frame))
    eventually((tmp_path / "running").exists)
    exists = job._driver.place.files.exists
    looks = 0

    def fails(path: str) -> bool:
        nonlocal looks
        if "/commits/" not in path:
            return exists(path)
        looks += 1
        raise StoreUnavailable(path, "look", OSError(5, "Input/output error"))

    with monkeypatch.context() as patch:
        patch.setattr(job._driver.place.files, "exists", fails)
        assert reason(job.trigger_checkpoint()) == "expired"
    assert looks > 1
    said = [each for each in caplog.records if each.name == "coord_control.checkpoints" and "storage" in each.message]
    assert len(said) == 1
    assert not [each for each in caplog.records if "internal error" in each.message]
    (tmp_path / "go-on").touch()
    eventually(lambda: committed(job) == 2)
    completes(job.trigger_checkpoint)
    goes_on(job, source, coordinator)


def test_requests_wait_until_the_storage_says_what_earlier_drivers_have_done(
    make_job: MakeJob, source: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    run(job, source, Dialogue())
    first = job.trigger_checkpoint(key="nightly").wait(SECONDS)
    job.stop()
    tries = 0
    completed = CheckpointStore.completed_requests

    def fails(self: CheckpointStore) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StoreUnavailable("/checkpoints", "list", OSError(5, "Input/output error"))
        return completed(self)

    monkeypatch.setattr(CheckpointStore, "completed_requests", fails)
    job = make_job()
    run(job, source, Dialogue())
    again = job.trigger_checkpoint(key="nightly").wait(SECONDS)
    assert (tries, again.path) == (3, first.path)
    assert job.trigger_checkpoint().wait(SECONDS).id == 2
    job.stop()


def test_too_many_failures_in_a_row_end_the_job_when_that_is_wanted(make_job: MakeJob, source: FileStream) -> None:
    options = cc.CheckpointOptions(tolerable_consecutive_failures=0, timeout_seconds=0.2)
    job, coordinator = make_job(checkpoints=options), Slow()
    run(job, source, coordinator)
    coordinator.is_slow = True
    assert reason(job.trigger_checkpoint()) == "expired"
    with pytest.raises(TooManyFailedCheckpoints):
        job.await_termination(SECONDS)


def test_periodic_ones_come_by_themselves_once_somebody_waits_for_the_job(
    make_job: MakeJob, source: FileStream
) -> None:
    job = make_job(checkpoints=cc.CheckpointOptions(interval_seconds=0.2, min_pause_seconds=0.05, retained=2))
    run(job, source, Dialogue())

    def there_are_three() -> bool:
        assert not job.await_termination(0.1)
        return job.checkpoint_statistics().counts.completed >= 3

    eventually(there_are_three)
    overview = job.checkpoint_statistics()
    assert overview.counts.failed == 0
    assert {each.periodic for each in overview.history} == {True}


def test_a_stop_with_savepoint_that_fails_leaves_every_query_running(make_job: MakeJob, source: FileStream) -> None:
    job, coordinator = make_job(), Slow()
    run(job, source, coordinator)
    counts = source.read().groupBy("key").count()
    job.start("plain", counts.writeStream.format("noop").outputMode("update"))
    eventually(lambda: job.status().queries[1].committed == 2)
    coordinator.is_slow = True
    with pytest.raises(TimeoutError, match="the job keeps running"):
        job.stop_with_savepoint(timeout_seconds=2)
    coordinator.is_slow = False
    eventually(lambda: [query.state for query in job.status().queries] == ["running", "running"])
    source.add(rows(3))
    eventually(lambda: [query.committed for query in job.status().queries] == [3, 3])
    taken = job.stop_with_savepoint()
    found = metadata(taken.path)
    assert {str(name): query.epoch for name, query in found.queries.items()} == {"q": 3, "plain": 3}
    coordinator.check(range(32))


def test_a_query_that_has_finished_is_part_of_it(make_job: MakeJob, source: FileStream) -> None:
    job, coordinator = make_job(), Dialogue()
    job.start("done", write(apply(talk(job, coordinator), source.read())).trigger(availableNow=True))
    eventually(lambda: job.status().queries[0].state == "finished")
    job.start("plain", source.read().writeStream.format("noop"))
    eventually(lambda: job.status().queries[1].committed == 2)
    found = metadata(job.trigger_savepoint().wait(SECONDS).path)
    assert {str(name): query.epoch for name, query in found.queries.items()} == {"done": 2, "plain": 2}
    operator = found.operators["op"]  # type: ignore[index]
    states = [Memory.model_validate_json(state) for state in operator.subtask_states.values() if state]
    assert sorted(value for state in states for value in state.values) == list(range(24))


def test_a_running_epoch_is_waited_for_and_measured(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    job, coordinator = make_job(), Dialogue()

    def linger(subtask: cc.Subtask[Memory]) -> None:
        if subtask.epoch == 0:
            (tmp_path / f"running-{subtask.index}").touch()
            eventually((tmp_path / "go-on").exists)

    operator = talk(job, coordinator)
    frame = operator.apply(source.read(), followed(linger), schema="key STRING, value LONG", partition_by=["key"])
    job.start("q", write(frame))
    eventually(lambda: len(list(tmp_path.glob("running-*"))) == 2)
    handle = job.trigger_checkpoint()
    eventually(lambda: (progress := handle.progress()) is not None and not progress.waiting_for)
    assert not handle.done
    (tmp_path / "go-on").touch()
    taken = handle.wait(SECONDS)
    assert metadata(taken.path).queries["q"].epoch == 0  # type: ignore[index]
    each = next(one for one in job.checkpoint_statistics().history if one.checkpoint == taken.id)
    assert each.passed_subtasks == each.subtasks == 2
    assert each.blocked_seconds > 0
    assert each.state_bytes > 0
    assert job.checkpoint_statistics().to_json()["history"][0]["queries"][0]["boundary"] is not None


def test_a_storage_that_hangs_is_named_and_is_not_the_end_of_the_job(
    make_job: MakeJob, source: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    run(job, source, Dialogue())
    is_back = threading.Event()
    labels = Catalog.labels

    def hang(catalog: Catalog) -> set[str]:
        assert is_back.wait(SECONDS)
        return labels(catalog)

    monkeypatch.setattr(Catalog, "labels", hang)
    monkeypatch.setattr(checkpoint_service, "_ANSWER_SECONDS", 0.5)
    handle = job.trigger_checkpoint(label="late")
    with pytest.raises(StoreUnavailable, match=r"no answer within 0\.5 s"):
        job.checkpoint_statistics()
    is_back.set()
    assert handle.wait(SECONDS).id == 1
    monkeypatch.setattr(checkpoint_service, "_ANSWER_SECONDS", SECONDS)
    assert job.checkpoint_statistics().counts.completed == 1
    job.stop()
    with pytest.raises(JobClosed):  # at once: nobody answers any more
        job._driver.checkpoints.overview()
