"""A wait for commands ends when there is one, and costs nothing meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from coord_control.storage.database import Database
from coord_control.storage.notify import CommandSignal, for_database
from coord_control.storage.records import CommandKind
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB, request
from tests.storage.kit import register
from tests.storage.server import Server

#: Only a signal that never comes waits so long, and then the time limit of the test ends it.
PATIENCE = 600.0


@pytest.fixture
def signal(store: ControlStore) -> Iterator[CommandSignal]:
    register(store)
    signal = for_database(store.database, JOB)
    signal.wait(0.2)  # the first wait may end at once: who begins to listen looks for himself
    yield signal
    closed(signal)


def closed(signal: CommandSignal) -> None:
    signal.close()
    assert not signal.wait(PATIENCE)


def meanwhile(act: Callable[[], object], signal: CommandSignal) -> bool:
    thread = threading.Timer(0.05, act)
    thread.start()
    try:
        return signal.wait(PATIENCE)
    finally:
        thread.join()


def test_a_command_ends_the_wait_of_its_job(store: ControlStore, signal: CommandSignal) -> None:
    assert meanwhile(lambda: store.commands.submit(request()), signal)
    store.commands.claim(JOB, 1)
    assert meanwhile(lambda: store.commands.submit(request()), signal)


def test_a_command_that_came_before_the_wait_ends_it_too(store: ControlStore, signal: CommandSignal) -> None:
    store.commands.submit(request())
    assert signal.wait(PATIENCE)


def test_what_happens_to_other_jobs_ends_no_wait(store: ControlStore, signal: CommandSignal) -> None:
    register(store, "orders")
    while signal.wait(0.1):
        pass
    store.commands.submit(request(job="orders"))
    store.jobs.heartbeat("orders", 1)
    assert not signal.wait(0.5)


def test_a_request_to_cancel_ends_the_wait(store: ControlStore, signal: CommandSignal) -> None:
    command = store.commands.submit(request()).id
    store.commands.claim(JOB, 1)
    while signal.wait(0.3):
        pass
    assert meanwhile(lambda: store.commands.cancel(command, "ada", cancellable=tuple(CommandKind)), signal)


def test_who_is_woken_goes_on_at_once(signal: CommandSignal) -> None:
    assert not meanwhile(signal.wake, signal)
    signal.wake()
    assert not signal.wait(PATIENCE)


def test_closing_ends_the_wait_of_another_thread(signal: CommandSignal) -> None:
    assert not meanwhile(signal.close, signal)


def test_a_database_that_is_not_there_yet_is_waited_for(database: Database) -> None:
    store = ControlStore(database)
    signal = for_database(database, JOB)
    signal.wait(0.05)

    def begin() -> None:
        register(store)
        store.commands.submit(request())

    assert meanwhile(begin, signal)
    closed(signal)


def test_a_listener_that_was_cut_off_listens_again_and_looks(server: Server, postgresql_url: str) -> None:
    store = ControlStore(Database(postgresql_url))
    register(store)
    signal = for_database(store.database, JOB)
    assert signal.wait(PATIENCE)
    server.kill()
    assert not signal.wait(0.3)
    server.start()
    assert signal.wait(PATIENCE)  # whatever was asked while nobody listened
    while signal.wait(0.1):
        pass
    assert meanwhile(lambda: store.commands.submit(request()), signal)
    closed(signal)
    store.close()
