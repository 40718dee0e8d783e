"""The agent on a real SQLite database and a real storage, in a driver that follows a script."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coord_control.control.agent.buffer import SavepointVerified
from coord_control.control.commands import CANCELLABLE
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.errors import JobRootMismatch
from coord_control.exit_codes import NO_RESTART, exit_code_of
from coord_control.ids import CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.storage.records import CheckpointState, CommandKind, CommandState, JobState
from tests.agent_kit import JOB, OPERATOR, ScriptedDriver, make_agent, open_store
from tests.patience import eventually
from tests.unit.control.agent_rig import (
    AgentRig,
    submit_periodic,
)


def test_a_job_is_known_with_its_queries_and_operators(rig: AgentRig) -> None:
    rig.driver()
    eventually(lambda: rig.store.jobs.get(JOB).operators)
    job = rig.store.jobs.get(JOB)
    assert (job.state, job.generation, job.is_alive) == (JobState.RUNNING, 1, True)
    assert [(query.name, query.state) for query in job.queries] == [("q", "running")]
    assert [(operator.uid, operator.parallelism) for operator in job.operators] == [(OPERATOR, 2)]
    assert [event.name for event in job.operators[0].event_types] == ["Threshold"]
    assert job.live is not None
    assert (job.live.metrics, job.live.spark_ui) == ("127.0.0.1:9404", "http://127.0.0.1:4040")
    assert job.agent is not None
    assert job.agent.dropped == 0


def test_a_checkpoint_that_was_asked_for_is_in_the_history_when_its_command_is_completed(rig: AgentRig) -> None:
    rig.driver()
    done = rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT, label="nightly"))
    assert done.state is CommandState.COMPLETED, done.error
    assert done.result is not None
    record = rig.store.checkpoints.get(JOB, done.result["checkpoint"])
    assert (record.state, record.label, record.key) == (CheckpointState.COMPLETED, "nightly", f"command:{done.id}")
    assert record.requested_by == "ada"
    assert len(rig.store.checkpoints.subtasks(JOB, record.id)) == 2
    assert done.result["path"] == record.path


def test_a_savepoint_is_listed_as_one(rig: AgentRig) -> None:
    rig.driver()
    target = str(rig.folder / "mine")
    done = rig.outcome(rig.ask(CommandKind.TRIGGER_SAVEPOINT, target=target))
    assert done.state is CommandState.COMPLETED, done.error
    assert [savepoint.path for savepoint in rig.store.savepoints.list()] == [target]


def test_a_command_that_this_release_does_not_know_is_refused_and_the_others_are_carried_out(rig: AgentRig) -> None:
    rig.driver()
    unknown = rig.ask(CommandKind("rescale_everything"), parallelism=4)
    known = rig.ask(CommandKind.TRIGGER_CHECKPOINT)
    refused = rig.outcome(unknown)
    assert refused.error is not None
    assert (refused.kind.value, refused.state, refused.error.code) == (
        "rescale_everything",
        CommandState.REFUSED,
        "PAYLOAD_INVALID",
    )
    assert rig.outcome(known).state is CommandState.COMPLETED
    assert [each.id for each in rig.store.commands.list(JOB)] == [known, unknown]


@pytest.mark.parametrize("kind", sorted(CANCELLABLE))
def test_progress_is_said_while_a_checkpoint_runs_and_cancelling_gives_it_up(rig: AgentRig, kind: CommandKind) -> None:
    driver, _ = rig.driver(is_automatic=False)
    command = rig.ask(kind)
    eventually(lambda: (rig.store.commands.get(command).progress or {}).get("subtasks") == 2)
    progress = rig.store.commands.get(command).progress
    assert progress is not None
    assert (progress["passed_subtasks"], progress["checkpoint"]) == (1, 1)
    assert "blocked_events" in progress
    rig.store.commands.cancel(command, "ada", cancellable=CANCELLABLE)
    done = rig.outcome(command)
    assert done.state is CommandState.CANCELLED
    assert rig.store.checkpoints.get(JOB, 1).state is CheckpointState.FAILED
    assert driver.checkpoint_statistics().counts.failed == 1
    assert not driver.ended.is_set(), "of a stop with a savepoint"


def test_an_abort_overtakes_what_it_aborts(rig: AgentRig) -> None:
    rig.driver(is_automatic=False)
    slow = rig.ask(CommandKind.TRIGGER_SAVEPOINT)
    eventually(lambda: rig.store.commands.get(slow).progress)
    done = rig.outcome(rig.ask(CommandKind.ABORT, command=slow, checkpoint=None))
    assert (done.state, done.result) == (CommandState.COMPLETED, {"checkpoint": 1})
    assert rig.outcome(slow).state is CommandState.CANCELLED
    nothing = rig.outcome(rig.ask(CommandKind.ABORT, checkpoint=1, command=None))
    assert nothing.state is CommandState.REFUSED
    assert nothing.error is not None
    assert nothing.error.code == "NOTHING_TO_ABORT"


def test_a_checkpoint_that_fails_gives_its_reason(rig: AgentRig) -> None:
    driver, _ = rig.driver(is_automatic=False)
    command = rig.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: driver.checkpoint_statistics().counts.in_progress)
    driver.fail(1, FailureReason.DISK_FULL)
    done = rig.outcome(command)
    assert done.state is CommandState.FAILED
    assert done.error is not None
    assert done.error.code == "DISK_FULL"
    assert rig.store.checkpoints.get(JOB, 1).reason == "disk_full"


def test_verify_and_dispose(rig: AgentRig) -> None:
    rig.driver()
    first = rig.outcome(rig.ask(CommandKind.TRIGGER_SAVEPOINT)).result
    assert first is not None
    verified = rig.outcome(rig.ask(CommandKind.VERIFY, ref=str(first["checkpoint"])))
    assert verified.result is not None, verified.error
    assert verified.result["problems"] == []
    [savepoint] = rig.store.savepoints.list(JOB)
    assert (savepoint.path, savepoint.verified_ok, savepoint.problems) == (first["path"], True, ())
    gone = rig.outcome(rig.ask(CommandKind.DISPOSE, ref=str(first["checkpoint"])))
    assert gone.result == {"path": first["path"], "checkpoint": first["checkpoint"]}, gone.error
    again = rig.outcome(rig.ask(CommandKind.DISPOSE, ref=str(first["checkpoint"])))
    assert again.error is not None
    assert again.error.code == "CHECKPOINT_NOT_FOUND"


def test_a_savepoint_of_another_job_is_disposed_of_by_its_path(rig: AgentRig) -> None:
    """Bug: this job's checkpoint of the same number was marked as discarded, and its savepoint forgotten."""
    other = ScriptedDriver(rig.folder / "archive", "other")
    theirs = other.submit(CheckpointRequest(kind=CheckpointKind.SAVEPOINT)).wait(10)
    other.stop()
    rig.driver()
    mine = rig.outcome(rig.ask(CommandKind.TRIGGER_SAVEPOINT)).result
    assert mine is not None
    assert mine["checkpoint"] == theirs.id
    [known] = rig.store.savepoints.list(JOB)
    rig.store.savepoints.save(replace(known, path=theirs.path, job="other"), imported=True)

    gone = rig.outcome(rig.ask(CommandKind.DISPOSE, ref=theirs.path))

    assert gone.result == {"path": theirs.path, "checkpoint": theirs.id}, gone.error
    eventually(lambda: [savepoint.path for savepoint in rig.store.savepoints.list()] == [mine["path"]])
    assert rig.store.checkpoints.get(JOB, mine["checkpoint"]).state is CheckpointState.COMPLETED
    assert (Path(mine["path"]) / "_metadata").exists()
    assert not (Path(theirs.path) / "_metadata").exists()


def test_what_a_verification_has_found_is_kept_for_savepoints_alone(rig: AgentRig) -> None:
    rig.driver()
    first = rig.outcome(rig.ask(CommandKind.TRIGGER_SAVEPOINT)).result
    assert first is not None
    SavepointVerified(first["path"], ("a: it is longer",)).write(rig.store)
    SavepointVerified("/jobs/scripted/checkpoints/1", ()).write(rig.store)
    [savepoint] = rig.store.savepoints.list(JOB)
    assert (savepoint.verified_ok, savepoint.problems) == (False, ("a: it is longer",))


def test_what_an_earlier_driver_made_is_discarded_in_the_history_as_well(rig: AgentRig) -> None:
    driver, _ = rig.driver()
    made = rig.outcome(rig.ask(CommandKind.TRIGGER_SAVEPOINT)).checkpoint
    assert made is not None
    driver.stop()
    rig.driver()
    assert rig.outcome(rig.ask(CommandKind.DISPOSE, ref=str(made))).state is CommandState.COMPLETED
    eventually(lambda: rig.store.checkpoints.get(JOB, made).state is CheckpointState.DISCARDED)


def test_a_stop_is_completed_before_the_job_has_ended(rig: AgentRig) -> None:
    driver, _ = rig.driver()
    command = rig.ask(CommandKind.STOP, grace_seconds=1.0)
    eventually(driver.ended.is_set)
    assert rig.outcome(command).state is CommandState.COMPLETED
    eventually(lambda: rig.store.jobs.get(JOB).state is JobState.ENDED)
    assert rig.store.jobs.generations(JOB)[0].is_clean


def test_a_stop_with_a_savepoint_gives_the_savepoint(rig: AgentRig) -> None:
    driver, _ = rig.driver()
    done = rig.outcome(rig.ask(CommandKind.STOP_WITH_SAVEPOINT, label="last"))
    assert done.result is not None, done.error
    assert done.result["savepoint"]["label"] == "last"
    assert driver.ended.is_set()


def test_what_is_on_its_way_when_the_job_ends_has_an_outcome(rig: AgentRig) -> None:
    driver, _ = rig.driver(is_automatic=False)
    checkpoint = rig.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: rig.store.commands.get(checkpoint).progress)
    stop = rig.ask(CommandKind.STOP)
    assert rig.outcome(stop).state is CommandState.COMPLETED
    done = rig.outcome(checkpoint)
    assert done.state is CommandState.FAILED
    assert done.error is not None
    assert done.error.code == "JOB_ENDING"
    assert driver.ended.is_set()


@pytest.mark.parametrize("kind", [CommandKind.RESTART, CommandKind.RESTORE])
def test_without_a_supervisor_nobody_starts_the_job_again(rig: AgentRig, kind: CommandKind) -> None:
    driver, _ = rig.driver()
    done = rig.outcome(rig.ask(kind, **({"ref": "latest"} if kind is CommandKind.RESTORE else {})))
    assert done.state is CommandState.REFUSED
    assert done.error is not None
    assert done.error.code == "NOT_SUPERVISED"
    assert not driver.ended.is_set()


def test_a_restart_is_completed_by_the_next_driver(rig: AgentRig) -> None:
    driver, _ = rig.driver(is_supervised=True)
    command = rig.ask(CommandKind.RESTART)
    eventually(lambda: driver.ended.is_set() and rig.store.jobs.get(JOB).state is JobState.ENDED)
    assert driver.is_restarting
    assert rig.store.commands.get(command).state is CommandState.CLAIMED
    assert rig.store.jobs.get(JOB).is_restarting
    rig.driver(is_supervised=True)
    assert rig.outcome(command).result == {"generation": 2}
    assert not rig.store.jobs.get(JOB).is_restarting


def test_what_fails_because_a_newer_driver_has_the_job_is_that_ones_to_do(rig: AgentRig) -> None:
    old, _ = rig.driver(is_automatic=False)
    under_way = rig.ask(CommandKind.TRIGGER_SAVEPOINT)
    eventually(lambda: rig.store.commands.get(under_way).progress)
    new, agent = rig.driver(is_ready_to_start=False)  # it has claimed the job, and not told the database yet
    late = rig.ask(CommandKind.TRIGGER_CHECKPOINT)  # its claim on the storage tells the old one that it is fenced
    eventually(lambda: old.is_fenced())
    old.fail(1, FailureReason.JOB_ENDING)
    time.sleep(0.5)  # some passes of the old one's agent
    states = [rig.store.commands.get(each).state for each in (under_way, late)]
    assert states == [CommandState.CLAIMED] * 2

    rig.start(new, agent)
    assert [rig.outcome(each).state for each in (under_way, late)] == [CommandState.COMPLETED] * 2


def test_a_restart_says_so_when_the_supervisor_is_killed_while_the_job_stops(rig: AgentRig) -> None:
    driver, _ = rig.driver(is_supervised=True)
    stop = driver.stop

    def killed_meanwhile(grace_seconds: float | None = None, *, restart: bool = False) -> None:
        driver.has_supervisor = False
        stop(grace_seconds, restart=restart)

    driver.stop = killed_meanwhile  # type: ignore[method-assign]
    done = rig.outcome(rig.ask(CommandKind.RESTART))

    assert done.error is not None
    assert (done.state, done.error.code, done.error.retry) == (CommandState.FAILED, "NOT_SUPERVISED", True)
    assert "start it with coordctl run" in done.error.message


@pytest.mark.parametrize("is_final", [False, True])
def test_a_restart_fails_when_the_job_fails_meanwhile_and_nothing_starts_it_again(
    rig: AgentRig, *, is_final: bool
) -> None:
    """Bug: the next driver was to give the outcome, and there was none until a person started the job."""
    driver, agent = rig.driver(is_supervised=True)
    driver.closing = lambda: agent.close(JobState.FAILED, "wrong", is_final=is_final)
    command = rig.ask(CommandKind.RESTART)
    eventually(lambda: rig.store.jobs.get(JOB).state is JobState.FAILED)

    found = rig.store.commands.get(command)
    if not is_final:
        assert found.state is CommandState.CLAIMED
        return
    assert found.error is not None
    assert (found.state, found.error.code) == (CommandState.FAILED, "JOB_NOT_RUNNING")
    assert "(wrong), so the job is not restarted automatically" in found.error.message


@pytest.mark.parametrize(
    ("has_supervisor", "is_final", "code"),
    [(True, True, "JOB_NOT_RUNNING"), (False, True, "NOT_SUPERVISED"), (True, False, None)],
)
def test_a_restore_fails_when_the_job_ends_meanwhile_and_nothing_starts_it_again(
    rig: AgentRig, *, has_supervisor: bool, is_final: bool, code: str | None
) -> None:
    """Bug: it was completed, and the job did not run."""
    driver, agent = rig.driver(is_supervised=True)
    rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT))

    def close() -> None:
        driver.has_supervisor = has_supervisor
        agent.close(JobState.FAILED, "the state is damaged", is_final=is_final)

    driver.closing = close
    done = rig.outcome(rig.ask(CommandKind.RESTORE, ref="latest"))

    if code is None:
        assert done.state is CommandState.COMPLETED
        return
    assert done.error is not None
    assert (done.state, done.error.code, done.error.retry) == (CommandState.FAILED, code, True)
    assert ("the state is damaged" in done.error.message) is has_supervisor
    assert "was not restored" in done.error.message
    assert newest_restore(driver.files, driver.folder) is None


def test_a_fork_under_the_name_of_the_job_is_refused_and_the_job_runs_on(rig: AgentRig) -> None:
    driver, _ = rig.driver(is_supervised=True)
    rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT))

    outcome = rig.outcome(rig.ask(CommandKind.RESTORE, ref="latest", as_name=JOB))

    assert outcome.error is not None
    assert (outcome.state, outcome.error.code) == (CommandState.REFUSED, "PAYLOAD_INVALID")
    assert not driver.ended.is_set()


def test_a_stop_of_a_supervised_job_is_no_restart(rig: AgentRig) -> None:
    rig.driver(is_supervised=True)
    rig.outcome(rig.ask(CommandKind.STOP))
    eventually(lambda: rig.store.jobs.get(JOB).state is JobState.ENDED)
    assert not rig.store.jobs.get(JOB).is_restarting


@pytest.mark.parametrize("is_final", [False, True])
def test_a_driver_that_failed_for_good_is_not_expected_back(rig: AgentRig, *, is_final: bool) -> None:
    _, agent = rig.driver(is_supervised=True)
    agent.close(JobState.FAILED, "wrong", is_final=is_final)
    assert rig.store.jobs.get(JOB).is_restarting is not is_final


def test_a_command_that_nobody_understands_is_refused(rig: AgentRig) -> None:
    rig.driver()
    done = rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT, label="x" * 1000))
    assert done.state is CommandState.REFUSED
    assert done.error is not None
    assert done.error.code == "PAYLOAD_INVALID"


def test_nothing_is_taken_before_the_program_has_declared_what_it_declares(rig: AgentRig) -> None:
    driver, agent = rig.driver(is_ready_to_start=False)
    driver.was_ready = False
    rig.start(driver, agent)
    eventually(lambda: rig.store.jobs.list())
    command = rig.send(5, "later")
    time_of_one_heartbeat = rig.store.jobs.get(JOB).heartbeat_at
    eventually(lambda: rig.store.jobs.get(JOB).heartbeat_at > time_of_one_heartbeat)
    assert rig.store.commands.get(command).state is CommandState.PENDING
    assert rig.store.jobs.get(JOB).state is JobState.STARTING
    driver.was_ready = True
    assert rig.outcome(command).state is CommandState.REFUSED


@pytest.mark.parametrize("kind", [CommandKind.TRIGGER_SAVEPOINT, CommandKind.STOP_WITH_SAVEPOINT, CommandKind.RESTART])
def test_what_an_older_driver_had_begun_waits_for_the_program_too(rig: AgentRig, kind: CommandKind) -> None:
    """A savepoint of the queries that happen to be started would be called complete, and lack the others."""
    _, agent = rig.driver(is_automatic=False, is_supervised=True)
    command = rig.ask(kind)
    eventually(lambda: rig.store.commands.get(command).state is CommandState.CLAIMED)
    agent.close(is_fenced=True)  # it dies
    driver, agent = rig.driver(is_automatic=False, is_ready_to_start=False, is_supervised=True)
    driver.was_ready = False
    rig.start(driver, agent)
    if kind is CommandKind.RESTART:  # that needs nothing of the program
        assert rig.outcome(command).state is CommandState.COMPLETED
        return
    passes = rig.store.jobs.get(JOB).heartbeat_at
    eventually(lambda: rig.store.jobs.get(JOB).heartbeat_at > passes)
    assert not driver._handles
    assert not driver.ended.is_set()
    assert rig.store.commands.get(command).state is CommandState.CLAIMED
    driver.was_ready = True
    eventually(lambda: driver._handles)
    driver.complete(min(driver._handles))
    assert rig.outcome(command).state is CommandState.COMPLETED


def test_a_newer_generation_in_the_database_fences_the_job(rig: AgentRig) -> None:
    first, _ = rig.driver()
    second, _ = rig.driver()
    eventually(lambda: first.fenced_by == 2)
    assert second.fenced_by is None
    assert rig.store.jobs.get(JOB).generation == 2


def test_a_job_of_the_same_name_in_another_folder_never_replaces_a_history(rig: AgentRig) -> None:
    first, agent = rig.driver()
    submit_periodic(first, 2)
    eventually(lambda: len(rig.store.checkpoints.list(JOB)) == 2)
    other = ScriptedDriver(rig.folder / "elsewhere")
    agent_of_other = make_agent(other, rig.settings, open_store(rig.settings))
    rig.cleanup.callback(agent_of_other.close)
    agent_of_other.start()  # the first one runs: the other continues without a control plane
    assert not agent_of_other.is_connected
    assert other.fenced_by is None
    agent.close()
    failures = agent_of_other.metrics().database_failures
    eventually(lambda: agent_of_other.metrics().database_failures > failures)
    assert not agent_of_other.is_connected
    assert "elsewhere" not in rig.store.jobs.get(JOB).folder
    assert len(rig.store.checkpoints.list(JOB)) == 2
    rig.store.jobs.forget(JOB)
    eventually(lambda: agent_of_other.is_connected)
    assert "elsewhere" in rig.store.jobs.get(JOB).folder


@pytest.mark.parametrize("folder", ["elsewhere", "emptied"])
def test_a_job_does_not_begin_in_a_folder_that_has_seen_fewer_drivers_than_the_database(
    rig: AgentRig, folder: str
) -> None:
    for generation in (1, 2):
        _, agent = rig.driver()
        agent.close()
        assert rig.store.jobs.get(JOB).generation == generation
    record = rig.store.jobs.get(JOB)
    if folder == "emptied":
        shutil.rmtree(record.folder)
    other = ScriptedDriver(rig.folder / "elsewhere" if folder == "elsewhere" else Path(record.root))
    agent_of_other = make_agent(other, rig.settings, open_store(rig.settings))
    with pytest.raises(JobRootMismatch, match="has a history of 2 drivers") as mismatch:
        agent_of_other.start()
    agent_of_other.close(JobState.FAILED, str(mismatch.value))
    assert (mismatch.value.folder == record.folder) == (folder == "emptied")
    assert rig.store.jobs.get(JOB) == record
    assert exit_code_of(mismatch.value) in NO_RESTART


def test_a_claim_whose_answer_was_lost_is_carried_out(rig: AgentRig) -> None:
    driver, agent = rig.driver()
    eventually(lambda: agent.is_connected)
    driver.was_ready = False  # so that the agent takes nothing for a moment
    command = rig.ask(CommandKind.TRIGGER_CHECKPOINT)
    assert [each.id for each in rig.store.commands.claim(JOB, 1)] == [command]
    driver.was_ready = True
    rig.away()
    eventually(lambda: agent.metrics().database_failures)
    rig.back()
    assert rig.outcome(command).state is CommandState.COMPLETED


def test_an_abort_whose_driver_died_with_the_checkpoint_is_completed(rig: AgentRig) -> None:
    first, agent = rig.driver(is_automatic=False)
    submit_periodic(first, 1)
    eventually(lambda: rig.store.checkpoints.list(JOB))
    first.was_ready = False
    eventually(lambda: rig.store.jobs.get(JOB).state is JobState.STARTING)
    command = rig.ask(CommandKind.ABORT, checkpoint=1)
    never = rig.ask(CommandKind.ABORT, checkpoint=17)
    assert len(rig.store.commands.claim(JOB, 1)) == 2
    agent.close(is_fenced=True)
    rig.driver()
    assert rig.outcome(command).result == {"checkpoint": 1}
    assert rig.outcome(never).state is CommandState.REFUSED


def test_closing_twice_and_from_two_threads_is_closing_once(rig: AgentRig) -> None:
    _, agent = rig.driver()
    threads = [threading.Thread(target=agent.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: rig.store.jobs.get(JOB).state is JobState.ENDED)


def test_what_waits_for_a_driver_that_fails_for_good_while_it_starts_is_refused_with_the_reason(rig: AgentRig) -> None:
    """Bug: it stayed pending until it expired, ten minutes later."""
    driver, agent = rig.driver(is_ready_to_start=False, is_supervised=True)
    driver.was_ready = False
    rig.start(driver, agent)
    command = rig.ask(CommandKind.TRIGGER_SAVEPOINT)
    agent.close(JobState.FAILED, "operator 'threshold' was declared twice", is_final=True)
    done = rig.store.commands.get(command)
    assert done.error is not None
    assert (done.state, done.error.code, done.error.retry) == (CommandState.REFUSED, "JOB_NOT_RUNNING", True)
    assert "operator 'threshold' was declared twice" in done.error.message


def test_what_waits_for_a_driver_that_is_started_again_waits_for_that_one(rig: AgentRig) -> None:
    driver, agent = rig.driver(is_ready_to_start=False, is_supervised=True)
    driver.was_ready = False
    rig.start(driver, agent)
    command = rig.ask(CommandKind.TRIGGER_SAVEPOINT)
    agent.close(JobState.FAILED, "the storage is away")
    assert rig.store.commands.get(command).state is CommandState.PENDING
    rig.driver(is_supervised=True)
    assert rig.outcome(command).state is CommandState.COMPLETED


def test_a_job_that_has_ended_shows_how_its_queries_have_ended(rig: AgentRig) -> None:
    """Bug: they were shown as they were at its last heartbeat, which is running."""
    driver, _ = rig.driver()
    eventually(lambda: (job := rig.store.jobs.get(JOB)).live is not None and job.queries)
    driver.stop()
    job = rig.store.jobs.get(JOB)
    assert [(query.state, query.epoch) for query in job.queries] == [("stopped", 1)]
