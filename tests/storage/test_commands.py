"""Commands: one per key, one outcome each, whoever asks and however many ask at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from coord_control.errors import (
    CommandNotCancellable,
    CommandNotFound,
    GenerationSuperseded,
    JobNotFound,
    KeyReused,
    RecordRefused,
)
from coord_control.storage import tables
from coord_control.storage.command_rows import NEED_DRIVER
from coord_control.storage.database import Database
from coord_control.storage.records import ENDED_TO_RESTART, CommandError, CommandKind, CommandState, JobState, Outcome
from coord_control.storage.store import ControlStore
from tests.patience import eventually
from tests.records_kit import JOB, request
from tests.storage.kit import register

DONE = Outcome(state=CommandState.COMPLETED, result={"checkpoint": 7}, checkpoint=7)
EVENT: dict[str, Any] = {"kind": CommandKind.SEND_EVENT, "operator": "op"}


def test_a_command_goes_from_its_request_to_its_outcome(store: ControlStore) -> None:
    register(store)
    asked = store.commands.submit(request(payload={"label": "\u20ac\0\ud800"}, expires_seconds=60))
    assert (asked.state, asked.requested_by, asked.requested_from) == (CommandState.PENDING, "ada", "laptop")
    assert (asked.expires_at - asked.requested_at).total_seconds() == 60
    assert asked.payload == {"label": "\u20ac\0\ud800"}
    [claimed] = store.commands.claim(JOB, 1)
    assert (claimed.id, claimed.state, claimed.generation) == (asked.id, CommandState.CLAIMED, 1)
    assert store.commands.claim(JOB, 1) == ()
    assert store.commands.progress(asked.id, 1, {"passed_subtasks": 1}, checkpoint=7)
    assert store.commands.get(asked.id).progress == {"passed_subtasks": 1}
    assert store.commands.finish(asked.id, 1, DONE)
    ended = store.commands.get(asked.id)
    assert (ended.state, ended.result, ended.checkpoint, ended.error) == (DONE.state, {"checkpoint": 7}, 7, None)
    assert ended.is_finished
    assert ended.finished_at is not None
    trail = [(entry.actor, entry.host, entry.outcome) for entry in store.audit.list(subject=asked.id)]
    assert trail == [("driver, generation 1", "", "completed"), ("ada", "laptop", "requested")]


def test_a_finished_command_never_changes(store: ControlStore) -> None:
    register(store)
    command = store.commands.submit(request()).id
    store.commands.claim(JOB, 1)
    assert store.commands.finish(command, 1, DONE)
    before = store.commands.get(command)
    assert not store.commands.finish(command, 1, Outcome(state=CommandState.FAILED))
    assert not store.commands.progress(command, 1, {})
    assert not store.commands.adopt(command, 1)
    assert store.commands.cancel(command, "ada") == before
    assert store.commands.get(command) == before
    with pytest.raises(ValueError, match="cannot be set by a driver"):
        store.commands.finish(command, 1, Outcome(state=CommandState.CLAIMED))


def test_the_same_key_is_the_same_command(store: ControlStore) -> None:
    register(store)
    first = store.commands.submit(request(key="nightly", payload={"label": "a"}))
    assert store.commands.submit(request(key="nightly", payload={"label": "a"}, requested_by="bob")) == first
    register(store, "orders")
    assert store.commands.submit(request(job="orders", key="nightly", payload={"label": "a"})).id != first.id
    for other, what in (
        (request(key="nightly", payload={"label": "b"}), "payload"),
        (request(CommandKind.STOP, key="nightly", payload={"label": "a"}), "kind"),
        (request(key="nightly", payload={"label": "a"}, operator="op"), "operator"),
    ):
        with pytest.raises(KeyReused, match=first.id) as caught:
            store.commands.submit(other)
        assert caught.value.difference == what
    assert len(store.commands.list(JOB)) == 1
    assert len(store.audit.list(JOB)) == 1
    assert store.commands.of_key(JOB, first.key) == store.commands.get(first.id)
    assert store.commands.of_key(JOB, "another") is None


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


def test_what_cannot_be_kept_is_refused_as_a_whole(store: ControlStore) -> None:
    register(store)
    for wrong in (
        request(key="k" * 257),
        request(requested_by="a\0b"),
        request(requested_from="\ud800"),
        request(payload={"x": "y" * 600_000}),
    ):
        with pytest.raises(RecordRefused) as caught:
            store.commands.submit(wrong)
        assert not caught.value.retry
        assert "yyy" not in str(caught.value)
    assert store.commands.list() == ()
    assert store.audit.list() == ()


def test_text_that_looks_like_sql_is_text(store: ControlStore) -> None:
    evil = "x'; DROP TABLE commands; --%s"
    register(store, evil)
    command = store.commands.submit(request(job=evil, key=evil, requested_by=evil, payload={evil: evil}))
    assert store.commands.get(command.id).payload == {evil: evil}
    assert store.commands.list(evil) == (command,)
    assert store.audit.list(evil)[0].actor == evil


def test_commands_are_claimed_oldest_first_and_only_by_the_newest_driver(store: ControlStore) -> None:
    register(store)
    register(store, "orders")
    ids = [store.commands.submit(request()).id for _ in range(5)]
    store.commands.submit(request(job="orders"))
    assert [command.id for command in store.commands.claim(JOB, 1, limit=2)] == ids[:2]
    register(store, generation=2)
    with pytest.raises(GenerationSuperseded):
        store.commands.claim(JOB, 1)
    assert [command.id for command in store.commands.claim(JOB, 2)] == ids[2:]
    with pytest.raises(JobNotFound, match="did you mean flights"):
        store.commands.claim("flihts", 1)


def test_a_newer_driver_adopts_what_an_older_one_had_claimed(store: ControlStore) -> None:
    register(store)
    command = store.commands.submit(request()).id
    store.commands.claim(JOB, 1)
    assert [each.id for each in store.commands.claimed_by(JOB, 1)] == [command]
    register(store, generation=3)
    assert [each.id for each in store.commands.claimed_by_older(JOB, 3)] == [command]
    assert store.commands.adopt(command, 3)
    assert not store.commands.adopt(command, 3)
    assert store.commands.claimed_by_older(JOB, 3) == ()
    assert not store.commands.finish(command, 1, DONE)
    assert not store.commands.progress(command, 1, {})
    with pytest.raises(GenerationSuperseded):
        store.commands.adopt(command, 2)
    assert store.commands.finish(command, 3, DONE)


def test_pending_commands_expire_visibly_and_claimed_ones_do_not(store: ControlStore) -> None:
    register(store)
    claimed = store.commands.submit(request(expires_seconds=-1)).id
    assert store.commands.expire_due() == 1
    due = store.commands.get(claimed)
    assert (due.state, due.error and due.error.code) == (CommandState.EXPIRED, "COMMAND_EXPIRED")
    expired = store.commands.submit(request(expires_seconds=-1)).id
    waiting = store.commands.submit(request(expires_seconds=600)).id
    assert [command.id for command in store.commands.claim(JOB, 1)] == [waiting]
    assert store.commands.get(expired).state == CommandState.EXPIRED
    assert store.commands.expire_due() == 0
    assert store.audit.list(subject=expired)[0].outcome == "expired"


def test_a_pending_command_is_cancelled_at_once_and_a_claimed_checkpoint_by_its_driver(store: ControlStore) -> None:
    register(store)
    pending = store.commands.submit(request()).id
    assert store.commands.cancel(pending, "bob").state == CommandState.CANCELLED
    assert store.commands.claim(JOB, 1) == ()
    running = store.commands.submit(request(CommandKind.TRIGGER_SAVEPOINT)).id
    store.commands.claim(JOB, 1)
    cancellable = (CommandKind.TRIGGER_SAVEPOINT,)
    asked = store.commands.cancel(running, "bob", "desk", cancellable=cancellable)
    assert (asked.state, asked.cancel_requested) == (CommandState.CLAIMED, True)
    assert store.commands.cancel(running, "bob", cancellable=cancellable) == asked
    assert [command.id for command in store.commands.cancel_requests(JOB, 1)] == [running]
    assert store.commands.finish(running, 1, Outcome(state=CommandState.CANCELLED))
    assert store.commands.cancel_requests(JOB, 1) == ()
    trail = [(entry.actor, entry.outcome) for entry in store.audit.list(subject=running)]
    assert trail == [("driver, generation 1", "cancelled"), ("bob", "cancel requested"), ("ada", "requested")]
    stop = store.commands.submit(request(CommandKind.STOP)).id
    store.commands.claim(JOB, 1)
    with pytest.raises(CommandNotCancellable, match="stop"):
        store.commands.cancel(stop, "bob", cancellable=cancellable)


def test_a_failure_keeps_what_is_wrong_with_each_field(store: ControlStore) -> None:
    register(store)
    command = store.commands.submit(request(**EVENT)).id
    store.commands.claim(JOB, 1)
    fields = ({"loc": ["limit"], "msg": "should be an integer"},)
    error = CommandError(code="EVENT_INVALID", message="no", fault="user", fields=fields)
    store.commands.finish(command, 1, Outcome(state=CommandState.REFUSED, error=error))
    assert store.commands.get(command).error == error
    assert store.audit.list(subject=command)[0].details["code"] == "EVENT_INVALID"


def test_an_unknown_command_names_those_that_begin_like_it(store: ControlStore) -> None:
    register(store)
    command = store.commands.submit(request()).id
    with pytest.raises(CommandNotFound, match=command):
        store.commands.get(command[:13])
    with pytest.raises(CommandNotFound, match="are removed after some time"):
        store.commands.finish("nothing like it", 1, DONE)


def test_commands_are_listed_newest_first_in_pages(store: ControlStore) -> None:
    register(store)
    register(store, "orders")
    ids = [store.commands.submit(request()).id for _ in range(4)]
    stop = store.commands.submit(request(CommandKind.STOP)).id
    other = store.commands.submit(request(job="orders")).id
    store.commands.cancel(stop, "ada")
    assert [command.id for command in store.commands.list()] == [other, stop, *reversed(ids)]
    assert [command.id for command in store.commands.list(JOB, limit=2, before=stop)] == [ids[3], ids[2]]
    assert [command.id for command in store.commands.list(kind=CommandKind.STOP)] == [stop]
    assert [command.id for command in store.commands.list(JOB, CommandState.CANCELLED)] == [stop]


def test_control_events_get_their_positions_once_and_in_order(store: ControlStore) -> None:
    register(store)
    ids = [store.commands.submit(request(**EVENT, payload={"n": n})).id for n in range(3)]
    other = store.commands.submit(request(CommandKind.SEND_EVENT, operator="other")).id
    stop = store.commands.submit(request(CommandKind.STOP)).id
    store.commands.claim(JOB, 1)
    assert [store.commands.accept_event(command, 1, at_least=4) for command in ids] == [5, 6, 7]
    assert store.commands.accept_event(ids[0], 1, at_least=99) == 5
    assert store.commands.accept_event(other, 1) == 1
    with pytest.raises(CommandNotFound):
        store.commands.accept_event(stop, 1)
    assert [event.number for event in store.commands.events_after(JOB, "op", 5)] == [6, 7]
    store.commands.finish(ids[1], 1, Outcome(state=CommandState.COMPLETED))
    assert [event.number for event in store.commands.events_after(JOB, "op", 0)] == [5, 7]
    everything = store.commands.events_after(JOB, "op", 0, include_completed=True)
    assert [event.payload for event in everything] == [{"n": 0}, {"n": 1}, {"n": 2}]
    register(store, generation=2)
    with pytest.raises(GenerationSuperseded):
        store.commands.accept_event(ids[0], 1)
    assert store.commands.adopt(ids[0], 2)
    assert store.commands.accept_event(ids[0], 2) == 5


def test_submitters_with_one_key_at_the_same_moment_get_one_command(store: ControlStore) -> None:
    register(store)
    with ThreadPoolExecutor(8) as pool:
        commands = list(pool.map(lambda n: store.commands.submit(request(key=f"k{n % 4}")), range(32)))
    assert len({command.id for command in commands}) == 4
    assert len(store.commands.list(JOB)) == 4
    assert len(store.audit.list(JOB)) == 4


def test_claimers_at_the_same_moment_share_and_never_double(store: ControlStore) -> None:
    register(store)
    ids = {store.commands.submit(request()).id for _ in range(40)}
    with ThreadPoolExecutor(6) as pool:
        claims = list(pool.map(lambda _: store.commands.claim(JOB, 1, limit=3), range(30)))
    claimed = [command.id for claim in claims for command in claim]
    assert len(claimed) == len(set(claimed))
    assert set(claimed) == ids


def test_positions_have_no_gap_and_no_double_whoever_gives_them(store: ControlStore) -> None:
    register(store)
    ids = [store.commands.submit(request(**EVENT)).id for _ in range(24)]
    store.commands.claim(JOB, 1, limit=100)
    with ThreadPoolExecutor(6) as pool:
        numbers = list(pool.map(lambda command: store.commands.accept_event(command, 1), [*ids, *ids]))
    assert sorted(numbers) == sorted([*range(1, 25), *range(1, 25)])
    assert numbers[:24] == numbers[24:]


def test_of_many_ends_at_the_same_moment_one_counts(store: ControlStore) -> None:
    register(store)
    for _ in range(10):
        command = store.commands.submit(request()).id
        ends: list[Callable[[], object]] = [
            lambda: store.commands.claim(JOB, 1),
            lambda command=command: store.commands.finish(command, 1, DONE),  # type: ignore[misc]
            lambda command=command: store.commands.cancel(command, "ada", cancellable=tuple(CommandKind)),  # type: ignore[misc]
            store.commands.expire_due,
            lambda command=command: store.commands.finish(command, 1, Outcome(state=CommandState.FAILED)),  # type: ignore[misc]
        ]
        with ThreadPoolExecutor(5) as pool:
            for future in [pool.submit(end) for end in ends]:
                future.result()
        outcomes = [entry.outcome for entry in store.audit.list(subject=command) if "request" not in entry.outcome]
        ended = store.commands.get(command)
        assert outcomes == ([ended.state.value] if ended.is_finished else [])


def _work_in_a_process(url: str, seed: int) -> list[tuple[str, int]]:
    store = ControlStore(Database(url, application=f"worker {seed}"))
    numbers: list[tuple[str, int]] = []
    for n in range(8):
        store.commands.submit(request(**EVENT, key=f"{seed % 2}-{n}", payload={"n": n}))
        claimed = store.commands.claim(JOB, 1, limit=2)
        numbers += [(command.id, store.commands.accept_event(command.id, 1)) for command in claimed]
    store.close()
    return numbers


def test_processes_that_begin_with_no_database_share_one(url: str, store: ControlStore) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        register(store)
        numbered = [pair for result in pool.map(_work_in_a_process, [url] * 4, range(4)) for pair in result]
    left = store.commands.claim(JOB, 1, limit=100)
    numbered += [(command.id, store.commands.accept_event(command.id, 1)) for command in left]
    assert len(store.commands.list(JOB)) == 16
    assert sorted(number for _, number in numbered) == list(range(1, 17))
    assert len({command for command, _ in numbered}) == 16
