"""The agent on a real SQLite database and a real storage, in a driver that follows a script."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coord_control.control.agent import Agent
from coord_control.control.buffer import SavepointVerified
from coord_control.control.settings import ControlSettings
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.tickets import CheckpointRequest
from coord_control.storage.commands import CommandRequest
from coord_control.storage.records import CheckpointState, CommandKind, CommandRecord, CommandState, JobState
from coord_control.storage.retention import RetentionPolicy, prune
from coord_control.storage.store import ControlStore
from tests.agent_kit import JOB, OPERATOR, ScriptedDriver, control_settings, make_agent, open_store

_SECONDS = 30.0


@dataclass
class World:
    """A database, a storage, and drivers."""

    folder: Path
    settings: ControlSettings
    store: ControlStore
    cleanup: contextlib.ExitStack
    stores: list[ControlStore] = field(default_factory=list)

    def driver(
        self, *, is_supervised: bool = False, is_ready_to_start: bool = True, **options: Any
    ) -> tuple[ScriptedDriver, Agent]:
        driver = ScriptedDriver(self.folder / "jobs", **options)
        store = open_store(self.settings)
        self.stores.append(store)
        agent = make_agent(driver, self.settings, store, is_supervised=is_supervised)
        if is_ready_to_start:
            self.start(driver, agent)
        return driver, agent

    def start(self, driver: ScriptedDriver, agent: Agent) -> None:
        self.cleanup.callback(agent.close)
        assert agent.start() is None
        driver.open_feed()

    def ask(self, kind: CommandKind, **payload: Any) -> str:
        request = CommandRequest(
            job=JOB,
            kind=kind,
            operator=payload.get("operator"),
            payload=payload,
            requested_by="ada",
            requested_from="here",
        )
        return self.store.commands.submit(request).id

    def send(self, minutes: object, operator: str = OPERATOR, event_type: str = "Threshold") -> str:
        event = {"event_type": event_type, "payload": {"minutes": minutes}, "subtask": None}
        return self.ask(CommandKind.SEND_EVENT, operator=operator, **event)

    def outcome(self, command: str) -> CommandRecord:
        eventually(lambda: self.store.commands.get(command).is_finished)
        return self.store.commands.get(command)

    def away(self) -> None:
        """There is something else where the database should be, and connections are lost."""
        for path in self.folder.glob("control.db*"):
            path.rename(path.with_name(f"away-{path.name}"))
        (self.folder / "control.db").mkdir()
        for store in (self.store, *self.stores):
            store.close()

    def back(self) -> None:
        (self.folder / "control.db").rmdir()
        for path in self.folder.glob("away-control.db*"):
            path.rename(path.with_name(path.name.removeprefix("away-")))


def eventually(condition: Callable[[], object]) -> None:
    """Wait until it is true; it must become so."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    settings = control_settings(tmp_path / "control.db")
    with contextlib.ExitStack() as cleanup:
        store = open_store(settings)
        cleanup.callback(store.close)
        yield World(tmp_path, settings, store, cleanup)


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


def test_progress_is_said_while_a_checkpoint_runs_and_cancelling_gives_it_up(world: World) -> None:
    driver, _ = world.driver(is_automatic=False)
    command = world.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: (world.store.commands.get(command).progress or {}).get("subtasks") == 2)
    progress = world.store.commands.get(command).progress
    assert progress is not None
    assert (progress["acknowledged"], progress["checkpoint"]) == (1, 1)
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


@pytest.mark.parametrize(
    ("operator", "event_type", "minutes", "code"),
    [
        ("nobody", "Threshold", 1, "UNKNOWN_OPERATOR"),
        (OPERATOR, "Nothing", 1, "UNKNOWN_EVENT_TYPE"),
        (OPERATOR, "Threshold", "soon", "EVENT_INVALID"),
    ],
)
def test_an_event_that_cannot_be_is_refused_with_the_reason(
    world: World, operator: str, event_type: str, minutes: object, code: str
) -> None:
    world.driver()
    done = world.outcome(world.send(minutes, operator, event_type))
    assert done.state is CommandState.REFUSED
    assert done.error is not None
    assert done.error.code == code
    assert [field["loc"] for field in done.error.fields] == ([["minutes"]] if code == "EVENT_INVALID" else [])


def test_events_take_effect_once_in_order_and_are_completed_when_a_record_contains_them(world: World) -> None:
    driver, _ = world.driver()
    commands = [world.send(minutes) for minutes in (5, 6, 7)]
    eventually(lambda: driver.feed_status(OPERATOR).waiting == 3)  # type: ignore[arg-type]
    eventually(lambda: "durable" in (world.store.commands.get(commands[2]).progress or {}).get("message", ""))
    assert world.store.commands.get(commands[0]).state is CommandState.CLAIMED
    driver.run_epoch()
    assert [world.outcome(command).result for command in commands] == [{"number": n} for n in (1, 2, 3)]
    assert driver.recorded_events() == [5, 6, 7]


def test_an_event_that_the_coordinator_raises_at_has_failed(world: World) -> None:
    driver, _ = world.driver()
    command = world.send(5)
    eventually(lambda: driver.feed_status(OPERATOR).waiting)  # type: ignore[arg-type]
    driver.refuse_event(1)
    assert world.outcome(command).state is CommandState.FAILED
    driver.open_feed()  # the query is restarted in place
    driver.run_epoch()
    assert driver.recorded_events() == []


@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_event_that_was_refused_is_not_reported_as_completed_by_the_next_driver(
    world: World, is_recorded: bool
) -> None:
    first, agent = world.driver()
    commands = [world.send(minutes) for minutes in (5, 6)]
    eventually(lambda: first.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
    agent.close(is_fenced=True)  # the driver dies, and before it the way to the database
    first.refuse_event(2)
    if is_recorded:
        first.run_epoch()
    second, _ = world.driver()
    if not is_recorded:  # for the new driver it has not happened: the event comes again, and is refused again
        eventually(lambda: second.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
        second.refuse_event(2)
        second.run_epoch()
    done = [world.outcome(command) for command in commands]
    assert [each.state for each in done] == [CommandState.COMPLETED, CommandState.FAILED]
    assert done[1].error is not None
    assert done[1].error.code == "COORDINATOR_FAILED"
    assert second.recorded_events() == [5]
    third = world.send(7)
    eventually(lambda: second.feed_status(OPERATOR).waiting == 1)  # type: ignore[arg-type]
    second.run_epoch()
    assert world.outcome(third).result == {"number": 3}
    eventually(lambda: not second.feed_status(OPERATOR).refused)  # type: ignore[arg-type]


def test_retention_keeps_the_events_that_a_restore_to_a_savepoint_needs_again(world: World) -> None:
    driver, _ = world.driver()

    def done(*minutes: int) -> None:
        commands = [world.send(each) for each in minutes]
        eventually(lambda: driver.feed_status(OPERATOR).waiting == len(minutes))  # type: ignore[arg-type]
        driver.run_epoch()
        assert [world.outcome(command).state for command in commands] == [CommandState.COMPLETED] * len(minutes)

    done(5, 6)
    before = Path(driver.folder, "coordinator.json").read_text()
    assert world.outcome(world.ask(CommandKind.TRIGGER_SAVEPOINT)).state is CommandState.COMPLETED
    done(7, 8)
    assert world.outcome(world.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED
    eventually(lambda: world.store.jobs.get(JOB).operators[0].applied_number == 4)
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1000)
    prune(world.store.database, RetentionPolicy(history=datetime.timedelta(0)), now=later)
    assert [each.number for each in world.store.commands.events_after(JOB, OPERATOR, 0, include_completed=True)] == [
        3,
        4,
    ]

    driver.stop()
    Path(driver.folder, "coordinator.json").write_text(before)  # as a restore does
    second, _ = world.driver()
    eventually(lambda: second.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
    second.run_epoch()
    assert second.recorded_events() == [5, 6, 7, 8]


def test_a_refusal_whose_record_is_lost_may_be_followed_by_success(world: World) -> None:
    first, agent = world.driver()
    command = world.send(5)
    eventually(lambda: first.feed_status(OPERATOR).waiting)  # type: ignore[arg-type]
    agent.close(is_fenced=True)
    first.refuse_event(1)
    second, _ = world.driver()
    eventually(lambda: second.feed_status(OPERATOR).waiting)  # type: ignore[arg-type]
    second.run_epoch()
    assert world.outcome(command).state is CommandState.COMPLETED
    assert second.recorded_events() == [5]


def test_a_new_driver_gives_accepted_events_that_were_not_recorded(world: World) -> None:
    first, agent = world.driver()
    commands = [world.send(minutes) for minutes in (5, 6)]
    eventually(lambda: first.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
    agent.close(is_fenced=True)  # as one that dies: nothing is said
    second, _ = world.driver()
    eventually(lambda: second.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
    third = world.send(7)
    eventually(lambda: second.feed_status(OPERATOR).waiting == 3)  # type: ignore[arg-type]
    second.run_epoch()
    assert [world.outcome(command).result for command in (*commands, third)] == [{"number": n} for n in (1, 2, 3)]
    assert second.recorded_events() == [5, 6, 7]


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


def test_a_newer_generation_in_the_database_fences_the_job(world: World) -> None:
    first, _ = world.driver()
    second, _ = world.driver()
    eventually(lambda: first.fenced_by == 2)
    assert second.fenced_by is None
    assert world.store.jobs.get(JOB).generation == 2


def test_the_database_comes_back_and_everything_is_there_in_order(world: World) -> None:
    driver, agent = world.driver(is_automatic=False)
    running = world.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: driver.checkpoint_statistics().counts.in_progress)
    world.away()
    eventually(lambda: agent.metrics().database_failures)
    driver.complete(1)
    driver.is_automatic = True
    _submit_periodic(driver, 3)
    eventually(lambda: agent.metrics().buffered >= 4)
    assert not agent.is_connected
    eventually(lambda: agent.commands_under_way == 0)
    assert agent.outcomes()["trigger_checkpoint", "completed"] == 1
    assert agent.outcomes()["trigger_savepoint", "completed"] == 0, "counters begin with zero"
    world.back()
    assert world.outcome(running).state is CommandState.COMPLETED
    eventually(lambda: len(world.store.checkpoints.list(JOB, state=CheckpointState.COMPLETED)) == 4)
    eventually(lambda: agent.metrics().buffered == 0 and agent.is_connected)
    assert agent.metrics().dropped == 0
    assert agent.metrics().last_contact is not None


def _submit_periodic(driver: ScriptedDriver, count: int) -> None:
    for _ in range(count):
        driver.submit(CheckpointRequest(periodic=True, cause="periodic"))


def test_a_job_starts_without_its_database_and_is_entered_later(world: World) -> None:
    world.away()
    driver, agent = world.driver()
    assert not agent.is_connected
    _submit_periodic(driver, 1)
    world.back()
    eventually(lambda: agent.is_connected)
    eventually(lambda: world.store.checkpoints.list(JOB))
    assert world.store.jobs.get(JOB).is_alive


def test_a_database_that_is_lost_for_good_is_made_by_hand_and_filled_from_the_storage(world: World) -> None:
    driver, agent = world.driver()
    _submit_periodic(driver, 2)
    eventually(lambda: len(world.store.checkpoints.list(JOB)) == 2)
    world.away()
    eventually(lambda: agent.metrics().database_failures)
    (world.folder / "control.db").rmdir()
    failures = agent.metrics().database_failures
    eventually(lambda: agent.metrics().database_failures > failures)
    assert world.store.database.schema_version() is None, "a driver that lives never puts an empty one in its place"
    world.store.database.upgrade()  # coordctl db upgrade
    eventually(lambda: agent.is_connected)
    assert world.store.jobs.get(JOB).is_alive
    found = world.store.checkpoints.list(JOB)
    assert [(each.id, each.state) for each in found] == [(2, CheckpointState.COMPLETED), (1, CheckpointState.COMPLETED)]
    assert world.outcome(world.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED


def test_what_an_older_driver_completed_and_never_reported_is_in_the_history(world: World) -> None:
    lost = ScriptedDriver(world.folder / "jobs")
    _submit_periodic(lost, 2)
    world.driver()
    found = world.store.checkpoints.list(JOB)
    assert [(each.id, each.state) for each in found] == [(2, CheckpointState.COMPLETED), (1, CheckpointState.COMPLETED)]
    assert sorted(each.checkpoint.id for each in world.store.changes.list() if each.checkpoint) == [1, 2]
    assert world.store.changes.newest() == 2


def test_what_an_older_driver_had_begun_has_failed_and_what_is_gone_was_discarded(world: World) -> None:
    first, agent = world.driver()
    _submit_periodic(first, 2)
    first.is_automatic = False
    _submit_periodic(first, 1)
    eventually(lambda: len(world.store.checkpoints.list(JOB)) == 3)
    agent.close(is_fenced=True)
    first.discard(1)
    world.driver()
    states = {each.id: each.state for each in world.store.checkpoints.list(JOB)}
    assert states == {1: CheckpointState.DISCARDED, 2: CheckpointState.COMPLETED, 3: CheckpointState.FAILED}


def test_a_job_of_the_same_name_in_another_folder_begins_anew_unless_that_one_runs(world: World) -> None:
    first, agent = world.driver()
    _submit_periodic(first, 2)
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
    _submit_periodic(first, 1)
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
