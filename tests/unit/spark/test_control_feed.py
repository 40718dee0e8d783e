"""Events from outside at a coordinator on its real thread, behind the real inbox: which snapshot contains which."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from pydantic import BaseModel

from coord_control.coordinators.contract import SnapshotResult
from coord_control.ids import OperatorUid
from coord_control.protocol.control_events import unseal
from coord_control.protocol.job_facts import JobListener
from coord_control.protocol.records import Begin
from coord_control.spark.loop.control_feed import WaitingEvent
from tests.core_kit import OP
from tests.unit.spark.coordinator_kit import DOWN, CoordinatorRig, Number, Recorder, on_another_thread


class Applying(Recorder):
    """What it does with an event is the test's business; None: what every coordinator does."""

    def __init__(self) -> None:
        super().__init__()
        self.handle: Callable[[BaseModel, int | None], None] | None = None
        self.handled: list[int] = []

    def handle_control_event(self, event: BaseModel, subtask: int | None) -> None:
        assert isinstance(event, Number)
        self.handled.append(event.value)
        self.threads.add(threading.current_thread().name)
        if self.handle is None:
            super().handle_control_event(event, subtask)
        else:
            self.handle(event, subtask)


class Heard(JobListener):
    """Listens."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.applied: list[int] = []
        self.sent_to: list[tuple[int, ...]] = []
        self.refused: list[tuple[int, str]] = []
        self.durable: list[int] = []

    def on_feed_open(self, operator: OperatorUid, applied: int) -> None:
        self.opened.append(applied)

    def on_event_applied(self, operator: OperatorUid, number: int, subtasks: tuple[int, ...] = ()) -> None:
        self.applied.append(number)
        self.sent_to.append(subtasks)

    def on_event_refused(self, operator: OperatorUid, number: int, error: Exception) -> None:
        self.refused.append((number, str(error)))

    def on_events_durable(self, operator: OperatorUid, number: int) -> None:
        self.durable.append(number)


class Outside(CoordinatorRig):
    """A rig whose coordinator is sent events from outside."""

    def __init__(self, coordinator: Applying) -> None:
        super().__init__(coordinator)
        self.desk = coordinator
        self.heard = Heard()
        self.news.subscribe(self.heard)

    def send(self, number: int, subtask: int | None = None) -> bool:
        return self.bound.accept(number, WaitingEvent(DOWN.encode(Number(value=number)), subtask))

    def recorded(self) -> list[tuple[bytes | None, int]]:
        """The coordinator's state and number in each begin record."""
        sealed = [unseal(OP, record.state) for record in self.records if isinstance(record, Begin)]
        return [(each.data, each.numbers.get("", 0)) for each in sealed]


@pytest.fixture
def rig() -> Iterator[Outside]:
    rig = Outside(Applying())
    yield rig
    rig.close()


def test_an_event_is_passed_on_and_recorded_with_its_number(rig: Outside) -> None:
    assert not rig.send(1)  # nobody knows how far the coordinator is
    rig.start()
    rig.settle()
    assert rig.heard.opened == [0]
    assert rig.send(1)
    assert rig.send(2, subtask=1)
    assert not rig.send(2)
    rig.settle()
    assert rig.hello(0, 0, task=1).inputs() == [1]
    assert rig.hello(1, 0, task=2).inputs() == [1, 2]
    rig.settle()
    assert rig.recorded() == [(b"S", 2)]
    assert (rig.heard.applied, rig.heard.durable) == ([1, 2], [2])
    assert len(rig.desk.threads) == 1


def test_it_is_known_to_which_subtasks_something_was_sent_because_of_an_event(rig: Outside) -> None:
    def handle(event: BaseModel, subtask: int | None) -> None:
        with rig.busy_loop():  # events of another thread go the same way, and are still being gathered
            on_another_thread(lambda: rig.desk.context.send(0, Number(value=7)))
            if subtask is not None:
                for _ in range(2):
                    rig.desk.context.send(subtask, event)

    rig.start()
    rig.settle()
    rig.send(1)
    rig.settle()
    rig.desk.handle = handle
    for number, subtask in ((2, 0), (3, 1), (4, None)):
        rig.send(number, subtask)
    rig.settle()
    assert rig.heard.sent_to == [(0, 1), (0,), (1,), ()]


def test_an_idle_feed_changes_nothing_on_the_storage(rig: Outside) -> None:
    rig.start()
    rig.hello(0, 0, task=1).answered()
    assert [record.state for record in rig.records if isinstance(record, Begin)] == [b"S"]


def test_events_above_the_recorded_number_come_again_after_each_restart(rig: Outside) -> None:
    rig.start()
    rig.settle()
    rig.send(1)
    rig.settle()
    rig.hello(0, 0, task=1).answered()
    rig.send(2)
    rig.send(3)
    rig.settle()
    for _ in range(2):
        rig.restart()
        rig.settle()
    assert rig.desk.handled == [1, 2, 3, 2, 3, 2, 3]
    assert rig.heard.opened == [0, 1, 1]
    assert ("reset_to_checkpoint", rig.desk.calls[-1][1], b"S") in rig.desk.calls


def test_an_event_that_cannot_be_handled_is_refused_alone(rig: Outside) -> None:
    def handle(event: BaseModel, subtask: int | None) -> None:
        raise ValueError("no")

    rig.start()
    rig.settle()
    rig.desk.handle = handle
    rig.send(1)
    rig.settle()
    rig.desk.handle = None
    rig.send(2)
    rig.settle()
    rig.assert_no_failure()
    assert rig.heard.refused == [(1, "no")]
    rig.restart()
    rig.settle()
    assert rig.desk.handled == [1, 2, 2]
    assert rig.hello(0, 0, task=1, run="run-2").inputs() == []  # planned before, so it is run with what it had: nothing
    rig.ack(0, 0, 1, run="run-2")
    rig.commit(0, run="run-2")
    assert rig.hello(0, 1, task=2, run="run-2").inputs() == [2]
    rig.settle()
    assert rig.recorded()[-1] == (b"S", 2)


def refuses(event: BaseModel, subtask: int | None) -> None:
    raise ValueError("no")


def refused(rig: Outside) -> list[tuple[int, ...]]:
    """What each begin record says was refused."""
    return [unseal(OP, each.state).refused.get("", ()) for each in rig.records if isinstance(each, Begin)]


def test_a_refusal_is_recorded_with_the_state_until_its_outcome_is_durable(rig: Outside) -> None:
    rig.start()
    rig.settle()
    rig.desk.handle = refuses
    rig.send(1)
    rig.settle()
    rig.hello(0, 0, task=1).answered()
    rig.restart()  # in place: what is recorded is known again
    rig.settle()
    assert rig.bound.feed.status().refused == (1,)
    rig.hello(0, 0, task=2, run="run-2").answered()
    rig.ack(0, 0, 2, run="run-2")
    rig.commit(0, run="run-2")
    rig.bound.forget_refusals([1])
    rig.desk.handle = None
    rig.send(2)
    rig.settle()
    rig.hello(0, 1, task=3, run="run-2").answered()
    assert refused(rig) == [(1,), ()]
    assert rig.recorded() == [(b"S", 1), (b"S", 2)]


def test_a_refusal_after_something_was_sent_is_recorded_with_the_next_state(rig: Outside) -> None:
    def handle(event: BaseModel, subtask: int | None) -> None:
        rig.desk.context.broadcast(event)
        raise ValueError("too late")

    rig.start()
    rig.settle()
    rig.desk.handle = handle
    rig.send(1)
    rig.settle()
    assert rig.hello(0, 0, task=1).inputs() == [1]  # what it did before it raised, it has done
    assert refused(rig) == [(1,)]


def asked(rig: Outside) -> SnapshotResult:
    """Begin an epoch, and keep what its coordinator is asked for."""
    results: list[SnapshotResult] = []
    rig.desk.then["checkpoint_coordinator"] = results.append
    rig.start()
    rig.settle()
    rig.hello(0, 0, task=1)
    rig.settle()
    return results[0]


def test_an_answer_before_anything_is_sent_does_not_contain_the_event(rig: Outside) -> None:
    result = asked(rig)

    def handle(event: BaseModel, subtask: int | None) -> None:
        on_another_thread(lambda: result.complete(b"before"))
        rig.desk.context.broadcast(event)

    rig.desk.handle = handle
    rig.send(1)
    rig.settle()
    assert rig.recorded() == [(b"before", 0)]


@pytest.mark.parametrize("how", ["broadcast", "send", "says so"])
def test_an_answer_after_the_first_thing_that_counts_contains_the_event(rig: Outside, how: str) -> None:
    result = asked(rig)

    def handle(event: BaseModel, subtask: int | None) -> None:
        if how == "broadcast":
            rig.desk.context.broadcast(event)
        elif how == "send":
            rig.desk.context.send(0, event)
        else:
            rig.desk.context.control_event_applied()
        on_another_thread(lambda: result.complete(b"after"))

    rig.desk.handle = handle
    rig.send(1)
    rig.settle()
    assert rig.recorded() == [(b"after", 1)]


def test_what_another_thread_sends_meanwhile_is_not_because_of_the_event(rig: Outside) -> None:
    result = asked(rig)

    def handle(event: BaseModel, subtask: int | None) -> None:
        on_another_thread(lambda: rig.desk.context.send(0, Number(value=9)))
        on_another_thread(lambda: result.complete(b"before"))

    rig.desk.handle = handle
    rig.send(1)
    rig.settle()
    assert rig.recorded() == [(b"before", 0)]


def test_events_that_were_posted_and_not_drained_are_in_the_order_of_their_posts(rig: Outside) -> None:
    result = asked(rig)
    with rig.busy_loop():
        rig.send(1)
        rig.thread.drain(10.0)
        result.complete(b"between")
        rig.send(2)
        rig.thread.drain(10.0)
    rig.settle()
    assert rig.recorded() == [(b"between", 1)]
