"""The agent on a real SQLite database and a real storage, in a driver that follows a script."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coord_control.control.agent.buffer import SavepointVerified
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.ids import CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.storage.records import CheckpointState, CommandKind, CommandState, JobState
from tests.agent_kit import JOB, OPERATOR, ScriptedDriver, make_agent, open_store
from tests.patience import eventually
from tests.unit.control.agent_world import (
    World,
    submit_periodic,
)


def test_a_job_is_known_with_its_queries_and_operators(world: World) -> None:
    world.driver()
    eventually(lambda: world.store.jobs.get(JOB).operators)
    job = world.store.jobs.get(JOB)
    assert (job.state, job.generation, job.is_alive) == (JobState.RUNNING, 1, True)
    assert [(query.name, query.state) for query in job.queries] == [("q", "running")]
    assert [(operator.uid, operator.parallelism) for operator in job.operators] == [(OPERATOR, 2)]
    assert [event.name for event in job.operators[0].event_types] == ["Threshold"]
    assert job.live is not None
    assert job.agent is not None
    assert job.agent.dropped == 0


def test_a_checkpoint_that_was_asked_for_is_in_the_history_when_its_command_is_completed(world: World) -> None:
    world.driver()
    done = world.outcome(world.ask(CommandKind.TRIGGER_CHECKPOINT, label="nightly"))
    assert done.state is CommandState.COMPLETED, done.error
    assert done.result is not None
    record = world.store.checkpoints.get(JOB, done.result["checkpoint"])
    assert (record.state, record.label, record.key) == (CheckpointState.COMPLETED, "nightly", f"command:{done.id}")
    assert record.requested_by == "ada"
    assert len(world.store.checkpoints.subtasks(JOB, record.id)) == 2
    assert done.result["path"] == record.path


def test_a_savepoint_is_listed_as_one(world: World) -> None:
    world.driver()
    target = str(world.folder / "mine")
    done = world.outcome(world.ask(CommandKind.TRIGGER_SAVEPOINT, target=target))
    assert done.state is CommandState.COMPLETED, done.error
    assert [savepoint.path for savepoint in world.store.savepoints.list()] == [target]


def test_a_command_that_this_release_does_not_know_is_refused_and_the_others_are_carried_out(world: World) -> None:
    world.driver()
    unknown = world.ask(CommandKind("rescale_everything"), parallelism=4)
    known = world.ask(CommandKind.TRIGGER_CHECKPOINT)
    refused = world.outcome(unknown)
    assert refused.error is not None
    assert (refused.kind.value, refused.state, refused.error.code) == (
        "rescale_everything",
        CommandState.REFUSED,
        "PAYLOAD_INVALID",
    )
    assert world.outcome(known).state is CommandState.COMPLETED
    assert [each.id for each in world.store.commands.list(JOB)] == [known, unknown]


def test_progress_is_said_while_a_checkpoint_runs_and_cancelling_gives_it_up(world: World) -> None:
    driver, _ = world.driver(is_automatic=False)
    command = world.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: (world.store.commands.get(command).progress or {}).get("subtasks") == 2)
    progress = world.store.commands.get(command).progress
    assert progress is not None
    assert (progress["passed_subtasks"], progress["checkpoint"]) == (1, 1)
    assert "blocked_events" in progress
    world.store.commands.cancel(command, "ada")
    done = world.outcome(command)
    assert done.state is CommandState.CANCELLED
    assert world.store.checkpoints.get(JOB, 1).state is CheckpointState.FAILED
    assert driver.checkpoint_statistics().counts.failed == 1


def test_an_abort_overtakes_what_it_aborts(world: World) -> None:
    world.driver(is_automatic=False)
    slow = world.ask(CommandKind.TRIGGER_SAVEPOINT)
    eventually(lambda: world.store.commands.get(slow).progress)
    done = world.outcome(world.ask(CommandKind.ABORT, command=slow, checkpoint=None))
    assert (done.state, done.result) == (CommandState.COMPLETED, {"checkpoint": 1})
    assert world.outcome(slow).state is CommandState.CANCELLED
    nothing = world.outcome(world.ask(CommandKind.ABORT, checkpoint=1, command=None))
    assert nothing.state is CommandState.REFUSED
    assert nothing.error is not None
    assert nothing.error.code == "NOTHING_TO_ABORT"


def test_a_checkpoint_that_fails_gives_its_reason(world: World) -> None:
    driver, _ = world.driver(is_automatic=False)
    command = world.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: driver.checkpoint_statistics().counts.in_progress)
    driver.fail(1, FailureReason.DISK_FULL)
    done = world.outcome(command)
    assert done.state is CommandState.FAILED
    assert done.error is not None
    assert done.error.code == "DISK_FULL"
    assert world.store.checkpoints.get(JOB, 1).reason == "disk_full"


def test_verify_and_dispose(world: World) -> None:
    world.driver()
    first = world.outcome(world.ask(CommandKind.TRIGGER_SAVEPOINT)).result
    assert first is not None
    verified = world.outcome(world.ask(CommandKind.VERIFY, ref=str(first["checkpoint"])))
    assert verified.result is not None, verified.error
    assert verified.result["problems"] == []
    [savepoint] = world.store.savepoints.list(JOB)
    assert (savepoint.path, savepoint.verified_ok, savepoint.problems) == (first["path"], True, ())
    gone = world.outcome(world.ask(CommandKind.DISPOSE, ref=str(first["checkpoint"])))
    assert gone.result == {"path": first["path"], "checkpoint": first["checkpoint"]}, gone.error
    again = world.outcome(world.ask(CommandKind.DISPOSE, ref=str(first["checkpoint"])))
    assert again.error is not None
    assert again.error.code == "CHECKPOINT_NOT_FOUND"


def test_a_savepoint_of_another_job_is_disposed_of_by_its_path(world: World) -> None:
    """Bug: this job's checkpoint of the same number was marked as discarded, and its savepoint forgotten."""
    other = ScriptedDriver(world.folder / "archive", "other")
    theirs = other.submit(CheckpointRequest(kind=CheckpointKind.SAVEPOINT)).wait(10)
    other.stop()
    world.driver()
    mine = world.outcome(world.ask(CommandKind.TRIGGER_SAVEPOINT)).result
    assert mine is not None
    assert mine["checkpoint"] == theirs.id
    [known] = world.store.savepoints.list(JOB)
    world.store.savepoints.save(replace(known, path=theirs.path, job="other"), imported=True)

    gone = world.outcome(world.ask(CommandKind.DISPOSE, ref=theirs.path))

    assert gone.result == {"path": theirs.path, "checkpoint": theirs.id}, gone.error
    eventually(lambda: [savepoint.path for savepoint in world.store.savepoints.list()] == [mine["path"]])
    assert world.store.checkpoints.get(JOB, mine["checkpoint"]).state is CheckpointState.COMPLETED
    assert (Path(mine["path"]) / "_metadata").exists()
    assert not (Path(theirs.path) / "_metadata").exists()


def test_what_a_verification_has_found_is_kept_for_savepoints_alone(world: World) -> None:
    world.driver()
    first = world.outcome(world.ask(CommandKind.TRIGGER_SAVEPOINT)).result
    assert first is not None
    SavepointVerified(first["path"], ("a: it is longer",)).write(world.store)
    SavepointVerified("/jobs/scripted/checkpoints/1", ()).write(world.store)
    [savepoint] = world.store.savepoints.list(JOB)
    assert (savepoint.verified_ok, savepoint.problems) == (False, ("a: it is longer",))


def test_what_an_earlier_driver_made_is_discarded_in_the_history_as_well(world: World) -> None:
    driver, _ = world.driver()
    made = world.outcome(world.ask(CommandKind.TRIGGER_SAVEPOINT)).checkpoint
    assert made is not None
    driver.stop()
    world.driver()
    assert world.outcome(world.ask(CommandKind.DISPOSE, ref=str(made))).state is CommandState.COMPLETED
    eventually(lambda: world.store.checkpoints.get(JOB, made).state is CheckpointState.DISCARDED)


def test_a_stop_is_completed_before_the_job_has_ended(world: World) -> None:
    driver, _ = world.driver()
    command = world.ask(CommandKind.STOP, grace_seconds=1.0)
    eventually(driver.ended.is_set)
    assert world.outcome(command).state is CommandState.COMPLETED
    eventually(lambda: world.store.jobs.get(JOB).state is JobState.ENDED)
    assert world.store.jobs.generations(JOB)[0].is_clean


def test_a_stop_with_a_savepoint_gives_the_savepoint(world: World) -> None:
    driver, _ = world.driver()
    done = world.outcome(world.ask(CommandKind.STOP_WITH_SAVEPOINT, label="last"))
    assert done.result is not None, done.error
    assert done.result["savepoint"]["label"] == "last"
    assert driver.ended.is_set()


def test_what_is_on_its_way_when_the_job_ends_has_an_outcome(world: World) -> None:
    driver, _ = world.driver(is_automatic=False)
    checkpoint = world.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: world.store.commands.get(checkpoint).progress)
    stop = world.ask(CommandKind.STOP)
    assert world.outcome(stop).state is CommandState.COMPLETED
    done = world.outcome(checkpoint)
    assert done.state is CommandState.FAILED
    assert done.error is not None
    assert done.error.code == "JOB_ENDING"
    assert driver.ended.is_set()


@pytest.mark.parametrize("kind", [CommandKind.RESTART, CommandKind.RESTORE])
def test_without_a_supervisor_nobody_starts_the_job_again(world: World, kind: CommandKind) -> None:
    driver, _ = world.driver()
    done = world.outcome(world.ask(kind, **({"ref": "latest"} if kind is CommandKind.RESTORE else {})))
    assert done.state is CommandState.REFUSED
    assert done.error is not None
    assert done.error.code == "NOT_SUPERVISED"
    assert not driver.ended.is_set()


def test_a_restart_is_completed_by_the_next_driver(world: World) -> None:
    driver, _ = world.driver(is_supervised=True)
    command = world.ask(CommandKind.RESTART)
    eventually(lambda: driver.ended.is_set() and world.store.jobs.get(JOB).state is JobState.ENDED)
    assert driver.is_restarting
    assert world.store.commands.get(command).state is CommandState.CLAIMED
    assert world.store.jobs.get(JOB).is_restarting
    world.driver(is_supervised=True)
    assert world.outcome(command).result == {"generation": 2}
    assert not world.store.jobs.get(JOB).is_restarting


def test_what_fails_because_a_newer_driver_has_the_job_is_that_ones_to_do(world: World) -> None:
    old, _ = world.driver(is_automatic=False)
    under_way = world.ask(CommandKind.TRIGGER_SAVEPOINT)
    eventually(lambda: world.store.commands.get(under_way).progress)
    new, agent = world.driver(is_ready_to_start=False)  # it has claimed the job, and not told the database yet
    late = world.ask(CommandKind.TRIGGER_CHECKPOINT)  # its claim on the storage tells the old one that it is fenced
    eventually(lambda: old.is_fenced())
    old.fail(1, FailureReason.JOB_ENDING)
    time.sleep(0.5)  # some passes of the old one's agent
    states = [world.store.commands.get(each).state for each in (under_way, late)]
    assert states == [CommandState.CLAIMED] * 2

    world.start(new, agent)
    assert [world.outcome(each).state for each in (under_way, late)] == [CommandState.COMPLETED] * 2


def test_a_restart_says_so_when_the_supervisor_is_killed_while_the_job_stops(world: World) -> None:
    driver, _ = world.driver(is_supervised=True)
    stop = driver.stop

    def killed_meanwhile(grace_seconds: float | None = None, *, restart: bool = False) -> None:
        driver.has_supervisor = False
        stop(grace_seconds, restart=restart)

    driver.stop = killed_meanwhile  # type: ignore[method-assign]
    done = world.outcome(world.ask(CommandKind.RESTART))

    assert done.error is not None
    assert (done.state, done.error.code, done.error.retry) == (CommandState.FAILED, "NOT_SUPERVISED", True)
    assert "start it with coordctl run" in done.error.message


@pytest.mark.parametrize("is_final", [False, True])
def test_a_restart_fails_when_the_job_fails_meanwhile_and_nothing_starts_it_again(
    world: World, *, is_final: bool
) -> None:
    """Bug: the next driver was to give the outcome, and there was none until a person started the job."""
    driver, agent = world.driver(is_supervised=True)
    driver.closing = lambda: agent.close(JobState.FAILED, "wrong", is_final=is_final)
    command = world.ask(CommandKind.RESTART)
    eventually(lambda: world.store.jobs.get(JOB).state is JobState.FAILED)

    found = world.store.commands.get(command)
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
    world: World, *, has_supervisor: bool, is_final: bool, code: str | None
) -> None:
    """Bug: it was completed, and the job did not run."""
    driver, agent = world.driver(is_supervised=True)
    world.outcome(world.ask(CommandKind.TRIGGER_CHECKPOINT))

    def close() -> None:
        driver.has_supervisor = has_supervisor
        agent.close(JobState.FAILED, "the state is damaged", is_final=is_final)

    driver.closing = close
    done = world.outcome(world.ask(CommandKind.RESTORE, ref="latest"))

    if code is None:
        assert done.state is CommandState.COMPLETED
        return
    assert done.error is not None
    assert (done.state, done.error.code, done.error.retry) == (CommandState.FAILED, code, True)
    assert ("the state is damaged" in done.error.message) is has_supervisor
    assert "was not restored" in done.error.message
    assert newest_restore(driver.files, driver.folder) is None


def test_a_fork_under_the_name_of_the_job_is_refused_and_the_job_runs_on(world: World) -> None:
    driver, _ = world.driver(is_supervised=True)
    world.outcome(world.ask(CommandKind.TRIGGER_CHECKPOINT))

    outcome = world.outcome(world.ask(CommandKind.RESTORE, ref="latest", as_name=JOB))

    assert outcome.error is not None
    assert (outcome.state, outcome.error.code) == (CommandState.REFUSED, "PAYLOAD_INVALID")
    assert not driver.ended.is_set()


def test_a_stop_of_a_supervised_job_is_no_restart(world: World) -> None:
    world.driver(is_supervised=True)
    world.outcome(world.ask(CommandKind.STOP))
    eventually(lambda: world.store.jobs.get(JOB).state is JobState.ENDED)
    assert not world.store.jobs.get(JOB).is_restarting


@pytest.mark.parametrize("is_final", [False, True])
def test_a_driver_that_failed_for_good_is_not_expected_back(world: World, *, is_final: bool) -> None:
    _, agent = world.driver(is_supervised=True)
    agent.close(JobState.FAILED, "wrong", is_final=is_final)
    assert world.store.jobs.get(JOB).is_restarting is not is_final


def test_a_command_that_nobody_understands_is_refused(world: World) -> None:
    world.driver()
    done = world.outcome(world.ask(CommandKind.TRIGGER_CHECKPOINT, label="x" * 1000))
    assert done.state is CommandState.REFUSED
    assert done.error is not None
    assert done.error.code == "PAYLOAD_INVALID"


def test_nothing_is_taken_before_the_program_has_declared_what_it_declares(world: World) -> None:
    driver, agent = world.driver(is_ready_to_start=False)
    driver.was_ready = False
    world.start(driver, agent)
    eventually(lambda: world.store.jobs.list())
    command = world.send(5, "later")
    time_of_one_heartbeat = world.store.jobs.get(JOB).heartbeat_at
    eventually(lambda: world.store.jobs.get(JOB).heartbeat_at > time_of_one_heartbeat)
    assert world.store.commands.get(command).state is CommandState.PENDING
    assert world.store.jobs.get(JOB).state is JobState.STARTING
    driver.was_ready = True
    assert world.outcome(command).state is CommandState.REFUSED


@pytest.mark.parametrize("kind", [CommandKind.TRIGGER_SAVEPOINT, CommandKind.STOP_WITH_SAVEPOINT, CommandKind.RESTART])
def test_what_an_older_driver_had_begun_waits_for_the_program_too(world: World, kind: CommandKind) -> None:
    """A savepoint of the queries that happen to be started would be called complete, and lack the others."""
    _, agent = world.driver(is_automatic=False, is_supervised=True)
    command = world.ask(kind)
    eventually(lambda: world.store.commands.get(command).state is CommandState.CLAIMED)
    agent.close(is_fenced=True)  # it dies
    driver, agent = world.driver(is_automatic=False, is_ready_to_start=False, is_supervised=True)
    driver.was_ready = False
    world.start(driver, agent)
    if kind is CommandKind.RESTART:  # that needs nothing of the program
        assert world.outcome(command).state is CommandState.COMPLETED
        return
    passes = world.store.jobs.get(JOB).heartbeat_at
    eventually(lambda: world.store.jobs.get(JOB).heartbeat_at > passes)
    assert not driver._handles
    assert not driver.ended.is_set()
    assert world.store.commands.get(command).state is CommandState.CLAIMED
    driver.was_ready = True
    eventually(lambda: driver._handles)
    driver.complete(min(driver._handles))
    assert world.outcome(command).state is CommandState.COMPLETED


def test_a_newer_generation_in_the_database_fences_the_job(world: World) -> None:
    first, _ = world.driver()
    second, _ = world.driver()
    eventually(lambda: first.fenced_by == 2)
    assert second.fenced_by is None
    assert world.store.jobs.get(JOB).generation == 2


def test_a_job_of_the_same_name_in_another_folder_begins_anew_unless_that_one_runs(world: World) -> None:
    first, agent = world.driver()
    submit_periodic(first, 2)
    eventually(lambda: len(world.store.checkpoints.list(JOB)) == 2)
    other = ScriptedDriver(world.folder / "elsewhere")
    agent_of_other = make_agent(other, world.settings, open_store(world.settings))
    world.cleanup.callback(agent_of_other.close)
    agent_of_other.start()
    assert "elsewhere" not in world.store.jobs.get(JOB).folder
    assert not agent_of_other.is_connected
    assert other.fenced_by is None
    agent.close()
    eventually(lambda: agent_of_other.is_connected)
    assert "elsewhere" in world.store.jobs.get(JOB).folder
    assert world.store.checkpoints.list(JOB) == ()


def test_a_claim_whose_answer_was_lost_is_carried_out(world: World) -> None:
    driver, agent = world.driver()
    eventually(lambda: agent.is_connected)
    driver.was_ready = False  # so that the agent takes nothing for a moment
    command = world.ask(CommandKind.TRIGGER_CHECKPOINT)
    assert [each.id for each in world.store.commands.claim(JOB, 1)] == [command]
    driver.was_ready = True
    world.away()
    eventually(lambda: agent.metrics().database_failures)
    world.back()
    assert world.outcome(command).state is CommandState.COMPLETED


def test_an_abort_whose_driver_died_with_the_checkpoint_is_completed(world: World) -> None:
    first, agent = world.driver(is_automatic=False)
    submit_periodic(first, 1)
    eventually(lambda: world.store.checkpoints.list(JOB))
    first.was_ready = False
    eventually(lambda: world.store.jobs.get(JOB).state is JobState.STARTING)
    command = world.ask(CommandKind.ABORT, checkpoint=1)
    never = world.ask(CommandKind.ABORT, checkpoint=17)
    assert len(world.store.commands.claim(JOB, 1)) == 2
    agent.close(is_fenced=True)
    world.driver()
    assert world.outcome(command).result == {"checkpoint": 1}
    assert world.outcome(never).state is CommandState.REFUSED


def test_closing_twice_and_from_two_threads_is_closing_once(world: World) -> None:
    _, agent = world.driver()
    threads = [threading.Thread(target=agent.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: world.store.jobs.get(JOB).state is JobState.ENDED)


def test_what_waits_for_a_driver_that_fails_for_good_while_it_starts_is_refused_with_the_reason(world: World) -> None:
    """Bug: it stayed pending until it expired, ten minutes later."""
    driver, agent = world.driver(is_ready_to_start=False, is_supervised=True)
    driver.was_ready = False
    world.start(driver, agent)
    command = world.ask(CommandKind.TRIGGER_SAVEPOINT)
    agent.close(JobState.FAILED, "operator 'threshold' was declared twice", is_final=True)
    done = world.store.commands.get(command)
    assert done.error is not None
    assert (done.state, done.error.code, done.error.retry) == (CommandState.REFUSED, "JOB_NOT_RUNNING", True)
    assert "operator 'threshold' was declared twice" in done.error.message


def test_what_waits_for_a_driver_that_is_started_again_waits_for_that_one(world: World) -> None:
    driver, agent = world.driver(is_ready_to_start=False, is_supervised=True)
    driver.was_ready = False
    world.start(driver, agent)
    command = world.ask(CommandKind.TRIGGER_SAVEPOINT)
    agent.close(JobState.FAILED, "the storage is away")
    assert world.store.commands.get(command).state is CommandState.PENDING
    world.driver(is_supervised=True)
    assert world.outcome(command).state is CommandState.COMPLETED


def test_a_job_that_has_ended_shows_how_its_queries_have_ended(world: World) -> None:
    """Bug: they were shown as they were at its last heartbeat, which is running."""
    driver, _ = world.driver()
    eventually(lambda: (job := world.store.jobs.get(JOB)).live is not None and job.queries)
    driver.stop()
    job = world.store.jobs.get(JOB)
    assert [(query.state, query.epoch) for query in job.queries] == [("stopped", 1)]
