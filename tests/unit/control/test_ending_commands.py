"""Commands that end a job: a restore does what it was asked for, and a job that pauses for its last savepoint ends."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coord_control.control.agent.executor import Executor
from coord_control.control.commands import CANCELLABLE
from coord_control.control.commands.abort import Abort, AbortResult
from coord_control.control.commands.set_live import LiveExecution, SetLive
from coord_control.control.commands.stop import Stop, StopExecution
from coord_control.control.commands.stop_with_savepoint import StopWithSavepoint, StopWithSavepointExecution
from coord_control.control.execution.checkpoint_execution import CheckpointExecution, CheckpointResult
from coord_control.control.execution.ending import Ending
from coord_control.control.execution.execution import Execution
from coord_control.control.execution.outcomes import cancelled, completed
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder, Process
from coord_control.errors import CheckpointNotCompleted, StoreUnavailable
from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.spark.checkpoints.checkpoint_handle import CompletedCheckpoint
from coord_control.storage.records import CommandKind, CommandState, JobState, Outcome
from tests.agent_kit import JOB
from tests.patience import eventually
from tests.unit.control.agent_rig import AgentRig
from tests.unit.durable.restore_kit import put_checkpoint


def test_a_savepoint_whose_statistics_are_not_known_does_not_leave_the_job_paused() -> None:
    """Bug: nobody ended the pause when the storage could not be read just after the savepoint."""
    stopped: list[bool] = []
    done = CompletedCheckpoint(CheckpointId(7), "/there")
    port = SimpleNamespace(savepoint_and_pause=lambda *_, **__: done, stop=lambda: stopped.append(True))
    place: Any = SimpleNamespace(port=port, ending=Ending(lambda: True), wake=lambda: None)
    command: Any = SimpleNamespace(id="1", kind=CommandKind.STOP_WITH_SAVEPOINT, requested_by="ada")
    execution = StopWithSavepointExecution(command, StopWithSavepoint(), place)
    assert execution.work() is None
    assert stopped == [True]
    outcome = execution.job_ended()
    assert outcome is not None
    assert (outcome.state, outcome.checkpoint) == (CommandState.COMPLETED, 7)
    assert outcome.result is not None
    assert (outcome.result["savepoint"]["path"], outcome.result["savepoint"]["kind"]) == ("/there", "savepoint")


def test_a_savepoint_of_an_earlier_driver_that_was_not_the_jobs_end_is_replaced() -> None:
    """Bug: the request was refused, because its key had a savepoint that was not the last, and the job ran on."""
    done: list[str] = []

    def savepoint_and_pause(request: Any, began: Any, is_wanted: Any, **_: Any) -> CompletedCheckpoint:
        number = CheckpointId(4 if done else 3)
        began(SimpleNamespace(id=number))
        if number == 3:
            raise CheckpointNotCompleted("savepoint", FailureReason.KEY_REUSED.code, "epochs since")
        return CompletedCheckpoint(number, "/there")

    port = SimpleNamespace(
        savepoint_and_pause=savepoint_and_pause,
        dispose=lambda reference: done.append(f"dispose {reference}"),
        stop=lambda: done.append("stop"),
    )
    place: Any = SimpleNamespace(port=port, ending=Ending(lambda: True), wake=lambda: None)
    command: Any = SimpleNamespace(id="1", kind=CommandKind.STOP_WITH_SAVEPOINT, requested_by="ada")
    execution = StopWithSavepointExecution(command, StopWithSavepoint(), place)
    assert execution.work() is None
    assert done == ["dispose 3", "stop"]
    outcome = execution.job_ended()
    assert outcome is not None
    assert (outcome.state, outcome.checkpoint) == (CommandState.COMPLETED, 4)


class Draining:
    """A driver that drains until it is cancelled, or its time ends."""

    def __init__(self, *, is_late: bool = False) -> None:
        self.is_late = is_late
        self.stopped = False
        self.tells: list[Any] = []

    def savepoint_and_pause(self, request: Any, began: Any, is_wanted: Any, tell_draining: Any) -> CompletedCheckpoint:
        self.tells.append(tell_draining)
        if tell_draining is None:
            return CompletedCheckpoint(CheckpointId(1), "/there")
        tell_draining("draining: query 'q' has 12 records left")
        if self.is_late:
            raise TimeoutError("after 5 s of draining, query 'q' has 12 records left: there is no savepoint")
        eventually(lambda: not is_wanted())
        raise CheckpointNotCompleted("savepoint", FailureReason.ABORTED.code, "on request")

    def stop(self) -> None:
        self.stopped = True


def draining_execution(port: Draining, *, drain: bool = True) -> StopWithSavepointExecution:
    place: Any = SimpleNamespace(port=port, ending=Ending(lambda: True), wake=lambda: None)
    command: Any = SimpleNamespace(id="1", kind=CommandKind.STOP_WITH_SAVEPOINT, requested_by="ada")
    return StopWithSavepointExecution(command, StopWithSavepoint(drain=drain), place)


def test_a_stop_that_is_cancelled_while_it_drains_leaves_the_job_running() -> None:
    port = Draining()
    execution = draining_execution(port)
    execution.begin()
    eventually(lambda: execution.progress() == {"message": "draining: query 'q' has 12 records left"})
    assert execution.cancel()
    eventually(lambda: execution.poll() is not None)
    assert execution.poll() == cancelled("it was aborted on request; the job keeps running")
    assert not port.stopped


def test_a_stop_that_does_not_drain_in_time_has_failed_and_says_what_is_left() -> None:
    port = Draining(is_late=True)
    outcome = draining_execution(port).work()
    assert outcome is not None
    assert outcome.error is not None
    assert (outcome.state, outcome.error.code, outcome.error.retry) == (CommandState.FAILED, "EXPIRED", True)
    assert "query 'q' has 12 records left" in outcome.error.message
    assert not port.stopped


def test_a_stop_drains_only_on_request() -> None:
    port = Draining()
    assert draining_execution(port, drain=False).work() is None
    assert (port.tells, port.stopped) == ([None], True)


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_change_that_may_be_durable_when_the_job_ends_is_not_refused(is_followed: bool) -> None:
    """Bug: it was reported as refused, as if nothing had changed."""
    future: Future[Any] = Future()
    future.set_exception(StoreUnavailable("the log", "write", "simulated"))
    ending = Ending(lambda: False)
    ending.is_followed = is_followed
    place: Any = SimpleNamespace(port=SimpleNamespace(set_live=lambda *_: future), ending=ending, wake=lambda: None)
    command: Any = SimpleNamespace(id="1", kind=CommandKind.SET_LIVE, requested_by="ada")
    execution = LiveExecution(command, place, SetLive(name="limits", fields={"minutes": 45}))
    execution.begin()
    assert execution.poll() is None, "the next driver may make it"
    outcome = execution.job_ended()
    if is_followed:
        assert outcome is None
        return
    assert outcome is not None
    assert outcome.error is not None
    assert (outcome.state, outcome.error.code, outcome.error.retry) == (CommandState.FAILED, "STORAGE", True)


def test_the_result_of_aborting_a_stop_names_its_savepoint() -> None:
    """Bug: its number was 0."""
    handle = SimpleNamespace(id=CheckpointId(4), abort=lambda: None)
    stop: Any = SimpleNamespace(id="1", kind=CommandKind.STOP_WITH_SAVEPOINT, requested_by="ada")
    place: Any = SimpleNamespace(wake=lambda: None)
    under_way = StopWithSavepointExecution(stop, StopWithSavepoint(), place)
    under_way._began(handle)
    abort: Any = SimpleNamespace(id="2", kind=CommandKind.ABORT, generation=1)
    place.find = {"1": under_way}.get
    execution = Abort(command="1").execution(abort, place)
    execution.begin()
    assert execution.poll() == completed(AbortResult(checkpoint=4), 4)


@pytest.mark.parametrize("kind", ["stop", "stop with savepoint", "savepoint"])
def test_what_cannot_be_aborted_any_more_is_not_said_to_be(kind: str) -> None:
    """Bug: aborting a stop, or what had its savepoint, was completed with checkpoint 0, and the job stopped."""
    place: Any = SimpleNamespace(wake=lambda: None, port=SimpleNamespace(facts=SimpleNamespace(generation=1)))
    command: Any = SimpleNamespace(id="1", kind=CommandKind.STOP, requested_by="ada")
    target: Execution
    if kind == "stop":
        target = StopExecution(command, Stop(), place)
    elif kind == "stop with savepoint":
        target = StopWithSavepointExecution(command, StopWithSavepoint(), place)
        target._savepoint = CheckpointResult(
            checkpoint=4, kind="savepoint", path="/x", duration_seconds=1.0, state_bytes=1
        )
    else:
        target = CheckpointExecution(command, place, CheckpointKind.SAVEPOINT)
        over: Any = SimpleNamespace(id=None, done=True)
        target._handle = over
    abort: Any = SimpleNamespace(id="2", kind=CommandKind.ABORT, generation=1)
    place.find = {"1": target}.get
    execution = Abort(command="1").execution(abort, place)
    execution.begin()
    outcome = execution.poll()
    assert outcome is not None
    assert outcome.state is CommandState.REFUSED
    assert outcome.error is not None
    assert outcome.error.code == "NOTHING_TO_ABORT"


def test_a_savepoint_that_is_aborted_before_it_has_a_number_has_none() -> None:
    """Bug: the result named checkpoint 0."""
    aborted: list[bool] = []
    place: Any = SimpleNamespace(wake=lambda: None)
    command: Any = SimpleNamespace(id="1", kind=CommandKind.TRIGGER_SAVEPOINT, requested_by="ada")
    target = CheckpointExecution(command, place, CheckpointKind.SAVEPOINT)
    handle: Any = SimpleNamespace(id=None, done=False, abort=lambda: aborted.append(True))
    target._handle = handle
    abort: Any = SimpleNamespace(id="2", kind=CommandKind.ABORT, generation=1)
    place.find = {"1": target}.get
    execution = Abort(command="1").execution(abort, place)
    execution.begin()
    assert aborted == [True]
    assert execution.poll() == completed(AbortResult(checkpoint=None), None)


@pytest.mark.parametrize(("is_restarted", "is_followed"), [(False, False), (False, True), (True, True), (True, False)])
def test_a_job_that_is_started_again_was_not_stopped(is_restarted: bool, is_followed: bool) -> None:
    """Bug: the stop was completed, and the job ran on: it had failed and is restarted, or a restart was quicker."""
    told: list[Outcome] = []
    nothing: Any = lambda *_: None  # noqa: E731
    port: Any = SimpleNamespace(stop=nothing, is_fenced=lambda: False)
    journal: Any = SimpleNamespace(ended=lambda command, outcome: told.append(outcome))
    executor = Executor(port, journal, wake=nothing, is_supervised=lambda: True)
    command: Any = SimpleNamespace(id="1", kind=CommandKind.STOP, requested_by="ada")
    execution = StopExecution(command, Stop(), executor._place)
    executor._executions["1"] = (command, execution)
    if is_restarted:
        restart: Any = SimpleNamespace(id="0", kind=CommandKind.RESTART)
        executor._place.ending.begin(restart, restart=True)
    else:
        execution.begin()
        execution._thread.join()
    executor.job_ended(is_followed=is_followed)
    expected = [] if is_followed or is_restarted else [CommandState.COMPLETED]
    assert [outcome.state for outcome in told] == expected


class Noted(Execution):
    """Notes that it was begun."""

    def __init__(self, begun: list[Noted]) -> None:
        self.begun, self.outcome = begun, None

    outcome: Outcome | None

    def begin(self) -> None:
        self.begun.append(self)

    def poll(self) -> Outcome | None:
        return self.outcome


def test_one_command_after_the_other_ends_the_job() -> None:
    nothing: Any = lambda *_: None  # noqa: E731
    port: Any = SimpleNamespace(is_fenced=lambda: False)
    ended: list[str] = []
    journal: Any = SimpleNamespace(ended=lambda command, outcome: ended.append(command.id))
    executor = Executor(port, journal, wake=nothing, is_supervised=lambda: True)
    begun: list[Noted] = []
    executions = [Noted(begun) for _ in range(3)]
    for number, execution in enumerate(executions):
        command: Any = SimpleNamespace(id=str(number), kind=CommandKind.STOP, requested_by="ada")
        executor._queue(command, execution)
    assert begun == executions[:1]
    executions[1].outcome = executions[0].outcome = cancelled("not wanted")
    executor.look()
    assert begun == [executions[0], executions[2]], "the second one was cancelled before its turn"
    assert ended == ["0", "1"]


def test_a_stop_waits_for_the_savepoint_of_an_earlier_stop(rig: AgentRig) -> None:
    """Bug: the later one won, and the earlier one was refused without a savepoint."""
    driver, _ = rig.driver(is_automatic=False)
    first = rig.ask(CommandKind.STOP_WITH_SAVEPOINT)
    second = rig.ask(CommandKind.STOP)
    eventually(lambda: rig.store.commands.get(second).progress or driver.ended.is_set())
    assert first in str(rig.store.commands.get(second).progress)
    assert not driver.ended.is_set()
    driver.complete(1)
    saved, stopped = rig.outcome(first), rig.outcome(second)
    assert (saved.state, saved.checkpoint) == (CommandState.COMPLETED, 1), saved.error
    assert stopped.state is CommandState.COMPLETED
    assert stopped.result == {"savepoint": None, "ended_by": first}
    assert driver.ended.is_set()


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_the_next_command_that_ends_the_job_begins_when_the_one_before_it_has_not_ended_it(
    rig: AgentRig, end: str
) -> None:
    driver, _ = rig.driver(is_automatic=False)
    first = rig.ask(CommandKind.STOP_WITH_SAVEPOINT)
    second = rig.ask(CommandKind.STOP_WITH_SAVEPOINT)
    third = rig.ask(CommandKind.STOP)
    eventually(lambda: first in str(rig.store.commands.get(third).progress))
    rig.store.commands.cancel(second, "ada", cancellable=CANCELLABLE)
    assert rig.outcome(second).state is CommandState.CANCELLED, "it has not begun"
    assert not driver.ended.is_set()
    if end == "fails":
        driver.fail(1, FailureReason.EXPIRED)
    else:
        rig.store.commands.cancel(first, "ada", cancellable=CANCELLABLE)
    assert rig.outcome(first).state is (CommandState.FAILED if end == "fails" else CommandState.CANCELLED)
    stopped = rig.outcome(third)
    assert (stopped.state, stopped.result) == (CommandState.COMPLETED, {"savepoint": None, "ended_by": None})


def test_what_comes_after_a_stop_is_refused_with_its_name(rig: AgentRig) -> None:
    driver, _ = rig.driver(is_supervised=True, is_automatic=False)
    checkpoint = rig.ask(CommandKind.STOP_WITH_SAVEPOINT)
    stop = rig.ask(CommandKind.STOP)
    late = [rig.ask(CommandKind.STOP_WITH_SAVEPOINT), rig.ask(CommandKind.RESTART)]
    eventually(lambda: all(checkpoint in str(rig.store.commands.get(each).progress) for each in late))
    rig.store.commands.cancel(checkpoint, "ada", cancellable=CANCELLABLE)
    assert rig.outcome(stop).state is CommandState.COMPLETED
    for command in late:
        done = rig.outcome(command)
        assert done.error is not None
        assert (done.state, done.error.code, done.error.retry) == (CommandState.REFUSED, "JOB_CLOSED", True)
        assert f"command {stop} (stop) ended the job" in done.error.message
    assert driver.ended.is_set()


def test_what_comes_after_a_restart_is_left_to_the_next_driver(rig: AgentRig) -> None:
    """Bug: it was refused, and a stop could be completed although the job was restarted."""
    driver, _ = rig.driver(is_supervised=True, is_automatic=False)
    blocker = rig.ask(CommandKind.STOP_WITH_SAVEPOINT)
    commands = [rig.ask(kind) for kind in (CommandKind.RESTART, CommandKind.RESTART, CommandKind.STOP_WITH_SAVEPOINT)]
    stop = rig.ask(CommandKind.STOP)
    eventually(lambda: blocker in str(rig.store.commands.get(stop).progress))
    rig.store.commands.cancel(blocker, "ada", cancellable=CANCELLABLE)
    eventually(lambda: driver.ended.is_set() and rig.store.jobs.get(JOB).state is JobState.ENDED)
    assert {rig.store.commands.get(each).state for each in (*commands, stop)} == {CommandState.CLAIMED}

    next_driver, agent = rig.driver(is_supervised=True, is_ready_to_start=False, supervisor="the same")
    next_driver.has_same_supervisor = lambda generation: True  # type: ignore[method-assign]
    next_driver.was_ready = False
    rig.start(next_driver, agent)
    assert [rig.outcome(each).result for each in commands[:2]] == [{"generation": 2}] * 2
    assert not next_driver.ended.is_set(), "the stop does not overtake the savepoint, which waits for the queries"
    next_driver.was_ready = True
    saved, stopped = rig.outcome(commands[2]), rig.outcome(stop)
    assert saved.state is CommandState.COMPLETED, saved.error
    assert saved.result is not None
    assert saved.result["savepoint"] is not None
    assert stopped.result == {"savepoint": None, "ended_by": commands[2]}
    assert next_driver.ended.is_set()


def damaged_savepoint(rig: AgentRig) -> str:
    """A savepoint in which one file has its size and another content."""
    path = f"{rig.folder}/saved"
    put_checkpoint(LocalFiles(), path)
    state = next(Path(path).rglob("*.zip"))
    state.write_bytes(b"x" * state.stat().st_size)
    return path


def test_a_driver_reads_the_files_that_it_restores_unless_it_is_asked_not_to(rig: AgentRig) -> None:
    """Bug: ``--no-verify`` did not travel with the command."""
    rig.driver()
    path = damaged_savepoint(rig)

    read = rig.outcome(rig.ask(CommandKind.RESTORE, ref=path, as_name="copy"))

    assert read.error is not None
    assert (read.state, read.error.code, read.error.fault) == (CommandState.REFUSED, "RESTORE_REFUSED", "external")
    assert "refused" in [check["verdict"] for check in read.error.fields]

    not_read = rig.outcome(rig.ask(CommandKind.RESTORE, ref=path, as_name="copy", verify=False))

    assert not_read.state is CommandState.COMPLETED, not_read.error


def test_a_driver_fences_off_one_that_it_cannot_look_at_only_on_request(rig: AgentRig) -> None:
    """Bug: ``--force`` did not travel with the command."""
    rig.driver()
    path = f"{rig.folder}/saved"
    put_checkpoint(LocalFiles(), path)
    far = Holder(host="far", boot="1", namespace="1", processes=(Process(pid=1, started="1"),))
    theirs = generations.claim(LocalFiles(), f"{rig.folder}/jobs/copy/generations", far)

    refused = rig.outcome(rig.ask(CommandKind.RESTORE, ref=path, as_name="copy"))

    assert refused.state is CommandState.FAILED
    assert refused.error is not None
    assert "use --force" in refused.error.message
    assert theirs.is_current()

    forced = rig.outcome(rig.ask(CommandKind.RESTORE, ref=path, as_name="copy", force=True))

    assert forced.state is CommandState.COMPLETED, forced.error
    assert not theirs.is_current()
