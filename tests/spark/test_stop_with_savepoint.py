"""Stop first, then save: what may happen while the queries pause for a savepoint after which the job ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import coord_control as cc
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.errors import CheckpointNotCompleted, JobClosed
from coord_control.ids import CheckpointKind, OperatorUid
from coord_control.protocol.query_state import Wish
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.spark.checkpoints import stop_first
from coord_control.spark.job.query_launch import QueryLaunch
from coord_control.spark.loop import runtime
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    Trouble,
    apply,
    query_status,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream
from tests.spark.test_checkpoints import committed, metadata, run


class Copying:
    """Files that take as long to be copied as the test wants."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.fails = False
        real = CheckpointStore.pin

        def pin(store: CheckpointStore, *arguments: Any) -> Any:
            pinned = real(store, *arguments)
            self.has_begun.set()
            assert self.may_end.wait(SECONDS)
            if self.fails:
                raise OSError("the other disk is gone")
            return pinned

        patch.setattr(CheckpointStore, "pin", pin)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Copying]:
    found = Copying(monkeypatch)
    yield found
    found.may_end.set()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def states(job: cc.Job) -> set[str]:
    return {query.state for query in job.status().queries}


def start_both(job: cc.Job, source: FileStream, coordinator: Dialogue) -> None:
    """A query with an operator and one without."""
    run(job, source, coordinator)
    job.start("plain", source.read().writeStream.format("noop"))
    eventually(lambda: [query.committed for query in job.status().queries] == [2, 2])


def test_rows_that_arrive_while_the_savepoint_is_copied_wait_without_harm(
    make_job: MakeJob, source: FileStream, copying: Copying, aside: ThreadPoolExecutor
) -> None:
    # The copying takes longer than other savepoints of the job may.
    job, coordinator = make_job(checkpoints=cc.CheckpointOptions(timeout_seconds=0.5)), Dialogue()
    start_both(job, source, coordinator)
    taken: Future[cc.CompletedCheckpoint] = aside.submit(job.stop_with_savepoint)
    assert copying.has_begun.wait(SECONDS)
    assert states(job) == {"paused"}
    source.add(rows(3))
    assert not job.await_termination(1), "the pause is not the end of the job"
    assert {query.committed for query in job.status().queries} == {2}
    copying.may_end.set()
    found = metadata(taken.result(SECONDS).path)
    assert {query.epoch for query in found.queries.values()} == {2}
    again = make_job(restore_from=taken.result().path)
    revived = Dialogue()
    again.start("plain", source.read().writeStream.format("noop"))
    again.start("q", write(apply(talk(again, revived), source.read())))
    eventually(lambda: {query.committed for query in again.status().queries} == {3})
    again.stop()
    revived.check(range(32))


def test_a_savepoint_that_fails_lets_the_same_operators_go_on(
    make_job: MakeJob, source: FileStream, copying: Copying, aside: ThreadPoolExecutor
) -> None:
    job, coordinator = make_job(), Dialogue()
    start_both(job, source, coordinator)
    taken = aside.submit(job.stop_with_savepoint)
    assert copying.has_begun.wait(SECONDS)
    copying.fails = True
    copying.may_end.set()
    with pytest.raises(CheckpointNotCompleted, match="the other disk is gone"):
        taken.result(SECONDS)
    source.add(rows(3))
    eventually(lambda: [query.committed for query in job.status().queries] == [3, 3])
    assert [query.restarts for query in job.status().queries] == [0, 0]
    assert states(job) == {"running"}
    job.stop()
    coordinator.check(range(32))


def test_a_savepoint_that_fails_on_a_request_to_stop_ends_the_job_and_nothing_resumes(
    make_job: MakeJob,
    source: FileStream,
    copying: Copying,
    aside: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job, coordinator = make_job(on_stop="savepoint"), Dialogue()
    start_both(job, source, coordinator)
    job.await_termination(0.0)
    asked = aside.submit(job._end._requested, 3 * SECONDS)
    assert copying.has_begun.wait(SECONDS)
    source.add(rows(3))
    assert states(job) == {"paused"}
    copying.fails = True
    copying.may_end.set()
    asked.result(SECONDS)
    assert job.await_termination(SECONDS)
    assert {query.last_committed for query in job._driver.queries.all()} == {2}
    assert [text for text in caplog.messages if "stops without a savepoint" in text and "the other disk" in text]
    assert job._driver.claim.is_released(job.generation)
    again, revived = make_job(), Dialogue()
    again.start("q", write(apply(talk(again, revived), source.read())))
    eventually(lambda: committed(again) == 3)
    again.stop()
    revived.check(range(32))


def test_a_job_that_is_stopped_during_the_pause_stays_stopped(
    spark: SparkSession, make_job: MakeJob, source: FileStream, copying: Copying, aside: ThreadPoolExecutor
) -> None:
    job = make_job()
    start_both(job, source, Dialogue())
    taken = aside.submit(job.stop_with_savepoint)
    assert copying.has_begun.wait(SECONDS)
    job.stop()
    copying.may_end.set()
    with pytest.raises(CheckpointNotCompleted) as failed:
        taken.result(SECONDS)
    assert failed.value.reason == "job_ending"
    assert not spark.streams.active
    assert job._driver.claim.is_released(job.generation)


def test_a_second_stop_with_savepoint_is_refused_while_the_first_is_under_way(
    make_job: MakeJob, source: FileStream, copying: Copying, aside: ThreadPoolExecutor
) -> None:
    job = make_job()
    start_both(job, source, Dialogue())
    taken = aside.submit(job.stop_with_savepoint)
    assert copying.has_begun.wait(SECONDS)
    with pytest.raises(CheckpointNotCompleted, match="another stop with savepoint is in progress"):
        job.stop_with_savepoint()
    assert states(job) == {"paused"}
    copying.may_end.set()
    assert taken.result(SECONDS).id == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_query_that_is_to_start_while_others_pause_waits_for_the_end_of_the_pause(
    make_job: MakeJob, source: FileStream, copying: Copying, aside: ThreadPoolExecutor, *, fails: bool
) -> None:
    job = make_job()
    start_both(job, source, Dialogue())
    taken = aside.submit(job.stop_with_savepoint)
    assert copying.has_begun.wait(SECONDS)
    late = aside.submit(job.start, "late", source.read().writeStream.format("noop"))
    with pytest.raises(TimeoutError):
        late.result(1.0)
    assert states(job) == {"paused"}
    copying.fails = fails
    copying.may_end.set()
    if fails:
        with pytest.raises(CheckpointNotCompleted):
            taken.result(SECONDS)
        assert late.result(SECONDS).isActive, "the job runs on, and so does its program"
    else:
        assert set(metadata(taken.result(SECONDS).path).queries) == {"q", "plain"}
        with pytest.raises(JobClosed):
            late.result(SECONDS)
    job.stop()


def test_a_savepoint_that_ends_the_job_holds_a_query_that_was_just_being_started(
    make_job: MakeJob, source: FileStream, aside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    start_both(job, source, Dialogue())
    is_starting, may_start = threading.Event(), threading.Event()
    start_query = QueryLaunch.start

    def slowly(*arguments: Any) -> Any:
        is_starting.set()
        assert may_start.wait(SECONDS)
        return start_query(*arguments)

    monkeypatch.setattr(QueryLaunch, "start", slowly)
    late = aside.submit(job.start, "late", source.read().writeStream.format("noop"))
    assert is_starting.wait(SECONDS)
    taken = aside.submit(job._port.savepoint_and_pause, CheckpointRequest(kind=CheckpointKind.SAVEPOINT))
    with pytest.raises(TimeoutError):
        taken.result(1.0)
    may_start.set()
    late.result(SECONDS)
    assert set(metadata(taken.result(SECONDS).path).queries) == {"q", "plain", "late"}
    assert states(job) == {"paused"}
    job.stop()


def test_a_savepoint_of_a_paused_job_holds_what_its_coordinator_did_last(make_job: MakeJob, source: FileStream) -> None:
    job, coordinator = make_job(), Dialogue()
    run(job, source, coordinator)
    taken = job.stop_with_savepoint()
    operator = metadata(taken.path).operators[OperatorUid("op")]
    assert operator.coordinator_state == coordinator.snapshot()
    assert sum(len(batches) for batches in operator.down.values()) == 2, "the next number is on its way to both"
    assert not operator.up


def test_an_epoch_that_does_not_end_in_time_leaves_the_job_running(make_job: MakeJob, source: FileStream) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def sink(frame: DataFrame, epoch: int) -> None:
        frame.collect()
        if epoch == 2:
            entered.set()
            assert go_on.wait(SECONDS)

    job, coordinator = make_job(), Dialogue()
    job.start("q", apply(talk(job, coordinator), source.read()).writeStream.foreachBatch(sink))
    assert entered.wait(SECONDS)
    with pytest.raises(TimeoutError, match=r"query 'q' did not end its epoch within 0\.2 s"):
        job.stop_with_savepoint(timeout_seconds=0.2)
    go_on.set()
    source.add(rows(3))
    eventually(lambda: committed(job) == 3)
    assert query_status(job).restarts == 0
    job.stop()
    coordinator.check(range(32))


def test_a_stop_with_savepoint_that_nobody_wants_any_more_does_not_wait_for_the_epoch(
    make_job: MakeJob, source: FileStream, aside: ThreadPoolExecutor
) -> None:
    entered, go_on, is_unwanted = threading.Event(), threading.Event(), threading.Event()

    def sink(frame: DataFrame, epoch: int) -> None:
        frame.collect()
        entered.set()
        assert go_on.wait(SECONDS)

    job = make_job()
    job.start("q", source.read().writeStream.foreachBatch(sink))
    assert entered.wait(SECONDS)
    request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, cause="test")
    taken = aside.submit(job._port.savepoint_and_pause, request, is_wanted=lambda: not is_unwanted.is_set())
    is_unwanted.set()
    with pytest.raises(CheckpointNotCompleted, match="aborted on request"):
        taken.result(SECONDS)
    go_on.set()
    eventually(lambda: committed(job) == 2)


def test_an_epoch_that_fails_while_the_query_shall_pause_is_run_again_before_it_pauses(
    make_job: MakeJob, source: FileStream, aside: ThreadPoolExecutor
) -> None:
    entered, go_on, calls = threading.Event(), threading.Event(), []

    def sink(frame: DataFrame, epoch: int) -> None:
        frame.collect()
        calls.append(epoch)
        if calls == [0, 1, 2]:
            entered.set()
            assert go_on.wait(SECONDS)
            raise Trouble("once")

    job, coordinator = make_job(), Dialogue()
    job.start("q", apply(talk(job, coordinator), source.read()).writeStream.foreachBatch(sink))
    assert entered.wait(SECONDS)
    taken = aside.submit(job.stop_with_savepoint)
    eventually(lambda: job._driver.queries["q"]._wish is Wish.PAUSE)  # type: ignore[index]
    go_on.set()
    assert metadata(taken.result(SECONDS).path).queries["q"].epoch == 2  # type: ignore[index]
    assert calls == [0, 1, 2, 2]


def test_a_query_that_sleeps_until_a_far_trigger_is_saved_at_once(make_job: MakeJob, source: FileStream) -> None:
    job, coordinator = make_job(), Dialogue()
    job.start("q", write(apply(talk(job, coordinator), source.read())).trigger(processingTime="1 hour"))
    eventually(lambda: committed(job) == 0)
    assert metadata(job.stop_with_savepoint().path).queries["q"].epoch == 0  # type: ignore[index]
    coordinator.check(range(8))


def test_the_key_of_a_savepoint_of_another_history_is_refused(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    """Bug: after a restore to the same epoch number the job ended with the savepoint of the history before."""
    first = str(tmp_path / "first")
    with make_job() as job:
        run(job, source, Dialogue())
        job.trigger_savepoint(target=first).wait(SECONDS)
        taken = job.stop_with_savepoint(key="k")
    with make_job() as job:  # nothing has run since: the same savepoint
        run(job, source, Dialogue())
        assert job.stop_with_savepoint(key="k") == taken
    job = make_job(restore_from=first)
    run(job, source, Dialogue())
    assert committed(job) == metadata(taken.path).queries["q"].epoch  # type: ignore[index]
    with pytest.raises(CheckpointNotCompleted, match="'q' has processed epochs, or was restored, since"):
        job.stop_with_savepoint(key="k")
    assert job.stop_with_savepoint(key="another").id > taken.id


# A savepoint of what has ended (fault 1: it waited for ever).


def test_a_savepoint_of_a_job_whose_queries_have_all_finished_is_complete_at_once(
    make_job: MakeJob, source: FileStream
) -> None:
    job, coordinator = make_job(), Dialogue()
    job.start("q", write(apply(talk(job, coordinator), source.read())).trigger(availableNow=True))
    eventually(lambda: query_status(job).state == "finished")
    found = metadata(job.trigger_savepoint().wait(SECONDS).path)
    assert found.queries["q"].epoch == 2  # type: ignore[index]
    assert metadata(job.stop_with_savepoint().path).operators[OperatorUid("op")].coordinator_state is not None


def test_a_job_without_operators_is_stopped_with_a_savepoint_before_anybody_waits_for_it(
    make_job: MakeJob, source: FileStream
) -> None:
    job = make_job()
    job.start("plain", source.read().writeStream.format("noop"))
    eventually(lambda: committed(job) == 2)
    taken = job.stop_with_savepoint(timeout_seconds=SECONDS)
    assert metadata(taken.path).queries["plain"].epoch == 2  # type: ignore[index]


# Storage that hangs (fault 8: a query ended for good).


def test_a_storage_that_hangs_restarts_a_query_instead_of_ending_it(
    make_job: MakeJob, source: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, coordinator = make_job(restart=cc.RestartPolicy(initial_seconds=0.01, max_restarts=1000)), Dialogue()
    run(job, source, coordinator)
    hangs, hung = threading.Event(), threading.Event()
    real: Callable[..., None] = job._driver.append

    def append(*arguments: Any) -> None:
        hung.set()
        assert hangs.wait(SECONDS)
        real(*arguments)

    monkeypatch.setattr(runtime, "_CALL_SECONDS", 0.2)
    monkeypatch.setattr(job._driver, "append", append)
    source.add(rows(3))
    assert hung.wait(SECONDS)
    query = job._driver.queries["q"]  # type: ignore[index]
    query.fail(Trouble("meanwhile"))
    eventually(lambda: query.restarts > 1)
    hangs.set()
    monkeypatch.undo()
    eventually(lambda: committed(job) == 3)
    job.stop()
    coordinator.check(range(32))


def test_a_savepoint_that_cannot_be_given_up_in_time_keeps_no_query_waiting(
    make_job: MakeJob, source: FileStream, copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_first, "_ABORT_SECONDS", 0.1)
    job, coordinator = make_job(), Dialogue()
    run(job, source, coordinator)
    with pytest.raises(TimeoutError, match="was aborted; the job keeps running"):
        job.stop_with_savepoint(timeout_seconds=3)
    source.add(rows(3))
    eventually(lambda: committed(job) == 3)
