"""Commands: one per key, one outcome each, whoever asks and however many ask at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from coord_control.errors import (
    CommandNotCancellable,
    CommandNotFound,
    GenerationSuperseded,
    JobNotFound,
    KeyReused,
    RecordRefused,
)
from coord_control.storage.database import Database
from coord_control.storage.records import CommandError, CommandKind, CommandState, Outcome
from coord_control.storage.store import ControlStore
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
