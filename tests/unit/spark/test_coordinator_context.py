"""Events that are sent while the loop takes what was sent before: none is lost, each subtask gets them in order."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from coord_control.ids import BarrierId, OperatorUid
from coord_control.protocol.records import EventBatch
from coord_control.spark.loop.coordinator_context import Context, Post
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.worker.model_codec import EventTypes
from tests.patience import SECONDS
from tests.unit.spark.coordinator_kit import (
    Number,
    Other,
)

DOWN = EventTypes("op", "down", [Number, Other])


class Loop:
    """The owner of a context, and the loop that does what was posted when the test says so."""

    uid = OperatorUid("op")
    down = DOWN

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.thread = CoordinatorThread()
        self.delivered: dict[int, list[int]] = {}
        self.snapshots: list[tuple[int, int]] = []  #: what the state says was sent to subtask 0, and what was delivered
        self._posts: queue.SimpleQueue[Callable[[Any, float], None]] = queue.SimpleQueue()
        self.post: Post = self._posts.put

    def check_open(self) -> None:
        """Events can be sent at any time."""

    def run(self) -> bool:
        """Do what was posted first; returns whether there was anything."""
        try:
            call = self._posts.get_nowait()
        except queue.Empty:
            return False
        call(self, 0.0)
        return True

    def run_all(self) -> None:
        while self.run():
            pass

    # What the context calls on the core.
    def send(self, uid: str, incarnation: int, subtask: int, batch: EventBatch, now: float) -> None:
        values = [event.value for event in DOWN.decode([batch]) if isinstance(event, Number | Other)]
        self.delivered.setdefault(subtask, []).extend(values)

    def snapshot_completed(self, uid: str, incarnation: int, barrier: BarrierId, data: bytes, now: float) -> None:
        self.snapshots.append((int(data), len(self.delivered.get(0, []))))


class Interrupted(list[bytes]):
    """The events of one subtask; something else happens just before the next one is added."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], None] | None = meanwhile

    def append(self, payload: bytes) -> None:
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        super().append(payload)


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def interrupt_next(context: Context, meanwhile: Callable[[], None]) -> None:
    """Open a run for subtask 0 whose next event is added only after ``meanwhile`` was called."""
    context._open_run(0, 0).payloads[0] = Interrupted(meanwhile)


def test_an_event_that_is_added_after_the_loop_took_the_others_is_delivered() -> None:
    loop = Loop(parallelism=2)
    context = Context(loop, 1)
    interrupt_next(context, loop.run_all)
    context.send(0, Number(value=1))
    loop.run_all()
    assert loop.delivered == {0: [1]}


def test_an_event_that_the_loop_missed_comes_before_those_that_its_sender_sends_next() -> None:
    loop = Loop(parallelism=2)
    context = Context(loop, 1)

    def meanwhile() -> None:
        loop.run_all()
        context.send(1, Number(value=10))  # another thread opens the next run

    interrupt_next(context, meanwhile)
    context.send(0, Number(value=1))
    context.send(0, Number(value=2))
    context.send(0, Other(value=3))
    loop.run_all()
    assert loop.delivered == {0: [1, 2, 3], 1: [10]}


def test_an_event_that_the_loop_missed_does_not_go_with_those_of_another_type() -> None:
    loop = Loop(parallelism=1)
    context = Context(loop, 1)

    def meanwhile() -> None:
        loop.run_all()
        context.send(0, Other(value=10))

    interrupt_next(context, meanwhile)
    context.send(0, Number(value=1))
    loop.run_all()
    assert loop.delivered == {0: [10, 1]}


@pytest.mark.usefixtures("often_switched")
def test_threads_that_send_while_the_loop_delivers_lose_nothing_and_keep_their_order() -> None:
    loop, threads, each = Loop(parallelism=3), 3, 3_000
    context = Context(loop, 1)

    def work(number: int) -> None:
        model: type[BaseModel] = Other if number == 0 else Number
        for value in range(each):
            context.send(value % 3, model(value=value * threads + number))

    senders = [threading.Thread(target=work, args=[number]) for number in range(threads)]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        loop.run()
    for sender in senders:
        sender.join(SECONDS)
    loop.run_all()
    for subtask in range(3):
        for number in range(threads):
            got = [value for value in loop.delivered[subtask] if value % threads == number]
            assert got == [value * threads + number for value in range(subtask, each, 3)]


@pytest.mark.parametrize("is_taken_between", [False, True])
def test_what_is_sent_before_a_snapshot_is_given_is_before_it_and_what_is_sent_later_is_not(
    *, is_taken_between: bool
) -> None:
    loop = Loop(parallelism=1)
    context = Context(loop, 1)
    if is_taken_between:
        interrupt_next(context, loop.run_all)
    context.send(0, Number(value=1))
    context.complete(BarrierId(1), b"1")
    context.send(0, Number(value=2))
    loop.run_all()
    assert loop.snapshots == [(1, 1)]
    assert loop.delivered == {0: [1, 2]}
