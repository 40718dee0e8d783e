"""Commands to a job that has no driver: what waits for the next one, and what its supervisor says of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from coord_control.storage import tables
from coord_control.storage.command_rows import NEED_DRIVER
from coord_control.storage.database import Database
from coord_control.storage.records import ENDED_TO_RESTART, CommandKind, CommandState, JobState
from coord_control.storage.store import ControlStore
from tests.patience import eventually
from tests.records_kit import JOB, request
from tests.storage.kit import register


def _died(store: ControlStore) -> None:
    """Its last heartbeat is older than its lease."""
    _pass(store, store.jobs.get(JOB).lease_seconds + 1)


def _failed(store: ControlStore) -> None:
    store.jobs.ended(JOB, 1, JobState.FAILED, "no route to the storage")


def _asked_for_a_restart(store: ControlStore) -> None:
    store.jobs.ended(JOB, 1, reason=ENDED_TO_RESTART)


def _failed_for_good(store: ControlStore) -> None:
    store.jobs.ended(JOB, 1, JobState.FAILED, "wrong declaration", is_final=True)


def _stopped(store: ControlStore) -> None:
    store.jobs.ended(JOB, 1, reason="stopped")


def _died_while_stopping(store: ControlStore) -> None:
    store.jobs.heartbeat(JOB, 1, state=JobState.STOPPING)
    _died(store)


def _pass(store: ControlStore, seconds: float) -> None:
    with store.database.transaction() as transaction:
        earlier = timedelta(seconds=seconds)
        job = transaction.execute(select(tables.jobs)).one()
        values = {"heartbeat_at": job.heartbeat_at - earlier, "ended_at": job.ended_at and job.ended_at - earlier}
        transaction.execute(update(tables.jobs).values(values))


@pytest.mark.parametrize("end", [_died, _failed, _asked_for_a_restart])
def test_a_command_waits_for_the_driver_that_a_supervisor_is_starting_again(
    store: ControlStore, end: Callable[[ControlStore], None]
) -> None:
    register(store, is_supervised=True)
    end(store)
    job = store.jobs.get(JOB)
    assert (job.is_alive, job.is_restarting) == (False, True)
    command = store.commands.submit(request())
    assert command.state == CommandState.PENDING
    register(store, generation=2, is_supervised=True)
    assert [each.id for each in store.commands.claim(JOB, 2)] == [command.id]


@pytest.mark.parametrize("end", [_died, _failed, _asked_for_a_restart])
def test_a_supervisor_that_does_not_come_back_is_not_waited_for(
    store: ControlStore, end: Callable[[ControlStore], None]
) -> None:
    register(store, is_supervised=True)
    end(store)
    _pass(store, 181)
    assert not store.jobs.get(JOB).is_restarting
    error = store.commands.submit(request()).error
    assert error is not None
    assert "coordctl run" in error.message


@pytest.mark.parametrize("end", [_died, _failed, _asked_for_a_restart])
@pytest.mark.parametrize("is_seen", [True, False])
def test_what_waits_for_a_supervisor_that_does_not_come_back_is_refused(
    store: ControlStore, end: Callable[[ControlStore], None], is_seen: bool
) -> None:
    """Fault: a restore waited for ten minutes, and was carried out by a driver that was started by hand meanwhile."""
    register(store, is_supervised=True)
    end(store)
    waits = store.commands.submit(request(CommandKind.RESTORE)).id
    assert store.commands.look(waits).state is CommandState.PENDING
    _pass(store, 181)
    if is_seen:
        assert store.commands.look(waits).state is CommandState.REFUSED

    register(store, generation=2)
    found = store.commands.get(waits)
    assert (found.state, found.error and found.error.code) == (CommandState.REFUSED, "JOB_NOT_RUNNING")
    assert store.commands.claim(JOB, 2) == ()


@pytest.mark.parametrize("end", [_died, _failed, _asked_for_a_restart])
def test_a_job_without_a_supervisor_is_not_being_started_again(
    store: ControlStore, end: Callable[[ControlStore], None]
) -> None:
    register(store)
    end(store)
    assert not store.jobs.get(JOB).is_restarting
    assert store.commands.submit(request()).state == CommandState.REFUSED


@pytest.mark.parametrize("end", [_failed_for_good, _stopped, _died_while_stopping])
def test_a_job_that_its_supervisor_leaves_alone_is_not_being_started_again(
    store: ControlStore, end: Callable[[ControlStore], None]
) -> None:
    register(store, is_supervised=True)
    end(store)
    assert not store.jobs.get(JOB).is_restarting
    assert store.commands.submit(request()).state == CommandState.REFUSED


@pytest.mark.parametrize("end", [_failed_for_good, _stopped])
def test_what_waits_when_a_job_ends_is_refused_with_it(
    store: ControlStore, end: Callable[[ControlStore], None]
) -> None:
    """Fault: it stayed pending until it expired, or was carried out by a driver that was started much later."""
    register(store, is_supervised=True)
    command = store.commands.submit(request())
    end(store)
    found = store.commands.get(command.id)
    assert (found.state, found.error and found.error.code) == (CommandState.REFUSED, "JOB_NOT_RUNNING")


def _claimed(store: ControlStore, kind: CommandKind) -> str:
    command = store.commands.submit(request(kind)).id
    store.commands.claim(JOB, 1)
    return command


def _restart(store: ControlStore) -> str:
    command = _claimed(store, CommandKind.RESTART)
    _asked_for_a_restart(store)
    return command


@pytest.mark.parametrize("kind", list(NEED_DRIVER))
@pytest.mark.parametrize("generation", [1, 2])  # the second driver has not reached the database
def test_a_supervisor_that_ends_fails_what_needs_a_driver_and_refuses_what_waits(
    store: ControlStore, kind: CommandKind, generation: int
) -> None:
    """Fault: a restart to a program with a syntax error waited for as long as its caller, and nothing said why."""
    register(store, is_supervised=True)
    claimed = _claimed(store, kind)
    _asked_for_a_restart(store)
    waits = store.commands.submit(request()).id
    store.jobs.driver_not_started(JOB, generation, "exit code 78: SyntaxError", is_final=True)

    job = store.jobs.get(JOB)
    assert (job.state, job.end_reason) == (JobState.FAILED, "exit code 78: SyntaxError")
    assert (job.is_supervised, job.is_restarting, job.dead_since) == (False, False, job.ended_at)
    ended = {store.commands.get(each).state: store.commands.get(each).error for each in (claimed, waits)}
    assert set(ended) == {CommandState.FAILED, CommandState.REFUSED}
    for error in ended.values():
        assert error is not None
        assert error.code == "JOB_NOT_RUNNING"
        assert "SyntaxError" in error.message


@pytest.mark.parametrize("kind", [CommandKind.TRIGGER_SAVEPOINT, CommandKind.RESTORE, CommandKind.SET_LIVE])
def test_what_leaves_a_trace_on_the_storage_has_the_outcome_that_a_later_driver_finds(
    store: ControlStore, kind: CommandKind
) -> None:
    register(store, is_supervised=True)
    claimed = _claimed(store, kind)
    store.jobs.driver_not_started(JOB, 1, "exit code 78: SyntaxError", is_final=True)

    assert store.commands.get(claimed).state is CommandState.CLAIMED


@pytest.mark.parametrize(("end", "state"), [(_asked_for_a_restart, CommandState.FAILED), (_died, CommandState.CLAIMED)])
def test_a_restart_whose_supervisor_was_killed_in_between_fails_after_three_minutes(
    store: ControlStore, end: Callable[[ControlStore], None], state: CommandState
) -> None:
    """Not if only the heartbeats are missing: the job may run, without its database."""
    register(store, is_supervised=True)
    restart = _claimed(store, CommandKind.RESTART)
    end(store)
    assert store.commands.look(restart).state is CommandState.CLAIMED
    _pass(store, 181)

    assert store.commands.look(restart).state is state


@pytest.mark.parametrize("end", [_died, _failed, _asked_for_a_restart, lambda store: None])
def test_a_supervisor_that_tries_again_says_why_the_job_has_no_driver(
    store: ControlStore, end: Callable[[ControlStore], None]
) -> None:
    register(store, is_supervised=True)
    end(store)
    waits = store.commands.submit(request()).id
    store.jobs.driver_not_started(JOB, 1, "exit code 1: NameError", is_final=False)

    assert store.commands.get(waits).progress is None
    job = store.jobs.get(JOB)
    assert (job.state, job.end_reason, job.is_restarting) == (JobState.FAILED, "exit code 1: NameError", True)
    assert store.commands.get(waits).state is CommandState.PENDING


def test_a_restart_shows_why_the_next_driver_does_not_start(store: ControlStore) -> None:
    register(store, is_supervised=True)
    restart = _restart(store)
    store.jobs.driver_not_started(JOB, 1, "exit code 1: NameError", is_final=False)

    found = store.commands.get(restart)
    assert (found.state, found.progress) == (CommandState.CLAIMED, {"message": "exit code 1: NameError"})


@pytest.mark.parametrize("end", [_failed_for_good, _stopped])
def test_a_supervisor_has_no_say_in_a_job_that_has_ended(
    store: ControlStore, end: Callable[[ControlStore], None]
) -> None:
    register(store, is_supervised=True)
    end(store)
    before = store.jobs.get(JOB)
    store.jobs.driver_not_started(JOB, 1, "too late", is_final=True)

    assert store.jobs.get(JOB) == before


def test_a_supervisor_has_no_say_in_a_job_that_a_newer_driver_runs(store: ControlStore) -> None:
    register(store, is_supervised=True)
    register(store, generation=2)
    store.jobs.driver_not_started(JOB, 1, "too late", is_final=True)
    store.jobs.driver_not_started("unknown", 1, "too late", is_final=True)

    assert store.jobs.get(JOB).state is JobState.STARTING


def test_a_restart_is_older_than_the_process_that_starts_next_or_restarts_it(store: ControlStore) -> None:
    """Fault: the driver that was started by hand after it was ended by it."""
    register(store, is_supervised=True)
    _died(store)
    restart = store.commands.submit(request(CommandKind.RESTART)).id
    savepoint = store.commands.submit(request()).id
    register(store, generation=2, process_seconds=30.0)  # it may have read the program before
    assert store.commands.claimed_by_older(JOB, 2) == ()
    register(store, generation=3)

    assert [each.id for each in store.commands.claimed_by_older(JOB, 3)] == [restart]
    assert [each.id for each in store.commands.claim(JOB, 3)] == [savepoint]


def test_a_command_that_comes_in_the_moment_in_which_a_job_ends_has_an_outcome(url: str, store: ControlStore) -> None:
    register(store)

    def ask(number: int) -> str:
        mine = ControlStore(Database(url, application="asking"))
        try:
            return mine.commands.submit(request(key=str(number))).id
        finally:
            mine.close()

    with ThreadPoolExecutor(5) as threads:
        asked = [threads.submit(ask, number) for number in range(60)]
        eventually(lambda: sum(each.done() for each in asked) > 10)
        _stopped(store)
        found = [store.commands.get(each.result()).state for each in asked]
    assert set(found) == {CommandState.REFUSED}


def test_a_job_that_does_not_run_refuses_at_once_and_the_refusal_is_kept(store: ControlStore) -> None:
    register(store)
    store.jobs.ended(JOB, 1, reason="stopped by ada")
    refused = store.commands.submit(request(key="k"))
    assert refused.state == CommandState.REFUSED
    assert refused.error is not None
    assert (refused.error.code, refused.error.retry) == ("JOB_NOT_RUNNING", True)
    assert "stopped by ada" in refused.error.message
    assert "coordctl run" in refused.error.message
    register(store, generation=2)
    assert store.commands.claim(JOB, 2) == ()
    assert store.commands.submit(request(key="k")) == refused
    register(store, lease_seconds=0.0, generation=3)
    late = store.commands.submit(request()).error
    assert late is not None
    assert "last heartbeat" in late.message
    assert [entry.outcome for entry in store.audit.list(JOB, subject=refused.id)] == ["refused", "requested"]
