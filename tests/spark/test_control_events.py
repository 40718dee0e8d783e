"""Control events from outside, on real Spark: each is seen once by each subtask, in order, whatever fails between.

The owner of the events is played by the test: it keeps them, numbers them, and gives them again when a feed opens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame

import coord_control as cc
from coord_control import errors
from coord_control.ids import CheckpointId, Epoch, OperatorUid
from coord_control.protocol.job_facts import ControlEvent, JobListener, RecoveryCause, RecoveryFact
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.statistics import CheckpointStatistics, CheckpointStatus
from coord_control.spark.job.agent_port import AgentPort
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    MakeJob,
    Once,
    Trouble,
    rows,
)
from tests.spark.streams import FileStream
from tests.spark.test_checkpoints import metadata

pytestmark = pytest.mark.spark

OP = OperatorUid("op")
SUBTASKS = 2
OUTPUT = "subtask LONG, number LONG"


class Command(BaseModel):
    """From outside, passed on to the subtasks."""

    number: int


class Poison(BaseModel):
    """The coordinator cannot handle it."""


class Seen(BaseModel):
    """State of a subtask."""

    count: int = 0


class Handled(BaseModel):
    """State of the coordinator."""

    numbers: list[int] = []


class Desk(cc.StatefulCoordinator[Handled]):
    """Notes each command and passes it on."""

    def __init__(self) -> None:
        super().__init__(Handled())

    def handle_control_event(self, event: Command | Poison, subtask: int | None) -> None:
        if isinstance(event, Poison):
            raise Trouble("poison")
        self.state.numbers.append(event.number)
        super().handle_control_event(event, subtask)


def tell(subtask: cc.Subtask[Seen], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for each command that the subtask sees."""
    for _ in batches:
        pass
    numbers = [event.number for event in subtask.events if isinstance(event, Command)]
    subtask.state.count += len(numbers)
    yield pa.RecordBatch.from_pydict({"subtask": [subtask.index] * len(numbers), "number": numbers})


class Owner(JobListener):
    """Keeps the events, like a database, and hears what becomes of them."""

    def __init__(self) -> None:
        self.accepted: dict[int, ControlEvent] = {}
        self.refused: dict[int, Exception] = {}
        self.durable = 0
        self.opened: list[int] = []
        self.recoveries: list[RecoveryFact] = []
        self.checkpoints: list[CheckpointStatistics] = []
        self.port: AgentPort | None = None
        self._lock = threading.Lock()

    def attach(self, job: cc.Job) -> AgentPort:
        self.port = job._port
        self.port.add_listener(self)
        return self.port

    def send(self, event_type: str = "Command", subtask: int | None = None) -> int:
        assert self.port is not None
        with self._lock:
            number = len(self.accepted) + 1
            payload = {"number": number} if event_type == "Command" else {}
            event = self.accepted[number] = self.port.check_event(OP, event_type, payload, subtask)
            assert self.port.feed(number, event)
        return number

    def on_feed_open(self, operator: OperatorUid, applied: int) -> None:
        assert self.port is not None
        with self._lock:
            self.opened.append(applied)
            for number, event in self.accepted.items():
                if number > applied and number not in self.refused:
                    self.port.feed(number, event)

    def on_event_applied(self, operator: OperatorUid, number: int, subtasks: tuple[int, ...] = ()) -> None:
        assert number not in self.refused

    def on_event_refused(self, operator: OperatorUid, number: int, error: Exception) -> None:
        assert number not in self.refused
        self.refused[number] = error

    def on_events_durable(self, operator: OperatorUid, number: int) -> None:
        self.durable = number

    def on_recovery(self, fact: RecoveryFact) -> None:
        self.recoveries.append(fact)

    def on_checkpoint(self, statistics: CheckpointStatistics) -> None:
        self.checkpoints.append(statistics)

    def on_checkpoint_discarded(self, checkpoint: CheckpointId) -> None:
        pass

    def on_query_changed(self) -> None:
        pass


class Sink:
    """Keeps the rows of each epoch; those of an epoch that is run again replace the earlier ones."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[int, int]]] = {}
        self.fails: Once | None = None

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        self.rows[epoch] = [(row.subtask, row.number) for row in frame.collect()]
        if self.fails is not None and self.fails():
            raise Trouble("the sink")

    def seen_by(self, subtask: int) -> list[int]:
        return [number for epoch in sorted(self.rows) for other, number in self.rows[epoch] if other == subtask]


def start(job: cc.Job, source: FileStream, sink: Sink, coordinator: Desk) -> None:
    operator = job.operator("op", coordinator, parallelism=SUBTASKS, state=Seen, down=[Command, Poison])
    frame = operator.apply(source.read(), tell, schema=OUTPUT, partition_by=["key"])
    job.start("q", frame.writeStream.foreachBatch(sink))


def committed(job: cc.Job) -> Epoch:
    return Epoch(job.status().queries[0].committed)


def next_epoch(job: cc.Job, source: FileStream, epoch: int) -> None:
    source.add(rows(epoch))
    eventually(lambda: committed(job) >= epoch)


def recorded(port: AgentPort, source: FileStream, number: int) -> None:
    """Wait until an event is durable: the next epoch that begins after it was applied records it."""
    eventually(lambda: port.feed_status(OP).applied == number)
    source.add(rows(9))
    eventually(lambda: port.feed_status(OP).durable == number)


def test_each_event_is_seen_once_and_in_order_whatever_fails(make_job: MakeJob, source: FileStream, once: Once) -> None:
    owner, sink = Owner(), Sink()
    with make_job() as first:
        port = owner.attach(first)
        with pytest.raises(errors.OperatorNotFound):
            port.check_event("op", "Command", {"number": 1}, None)
        coordinator = Desk()
        start(first, source, sink, coordinator)
        eventually(lambda: committed(first) == 2)
        for _ in range(3):
            owner.send()
        next_epoch(first, source, 3)
        assert owner.durable == 3

        # Applied, and passed on to an epoch that fails: the query goes back behind some of them, in place.
        poison = owner.send("Poison")
        sink.fails = once
        owner.send()
        owner.send(subtask=1)
        source.add(rows(4))
        eventually(lambda: once.was_asked)
        for _ in range(2):
            owner.send()
        eventually(lambda: committed(first) == 4)
        next_epoch(first, source, 5)
        assert first.status().queries[0].restarts == 1
        assert list(owner.refused) == [poison]
        assert isinstance(owner.refused[poison], Trouble)

        # Applied, and never recorded: the driver ends first. Nothing is running, so nothing of it was in an epoch.
        for _ in range(2):
            owner.send()
        status = port.feed_status(OP)
        eventually(lambda: port.feed_status(OP).waiting == 0)
        assert status.durable == 8
        first.stop()
    assert coordinator.state.numbers == [1, 2, 3, 5, 6, 7, 8, 9, 10]

    coordinator = Desk()
    with make_job() as second:
        owner.attach(second)
        start(second, source, sink, coordinator)
        owner.send()
        next_epoch(second, source, 6)
        next_epoch(second, source, 7)
        eventually(lambda: owner.durable == 11)
    assert owner.opened[0] == 0
    assert owner.opened[-1] == 8
    expected = [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert coordinator.state.numbers == expected
    assert sink.seen_by(1) == expected
    assert sink.seen_by(0) == [number for number in expected if number != 6]

    in_place, by_driver = owner.recoveries[0], owner.recoveries[-1]
    assert in_place.cause is RecoveryCause.QUERY_FAILED
    assert (in_place.from_epoch, in_place.epochs_again) == (3, 1)
    assert "the sink" in in_place.message
    assert by_driver.cause is RecoveryCause.DRIVER_START
    assert by_driver.from_epoch == 5
    assert by_driver.duration_seconds is not None


def test_a_restore_takes_events_back_and_a_fork_has_none_of_its_own(make_job: MakeJob, source: FileStream) -> None:
    owner, sink = Owner(), Sink()
    with make_job() as first:
        port = owner.attach(first)
        start(first, source, sink, Desk())
        eventually(lambda: committed(first) == 2)
        for _ in range(2):
            owner.send()
        eventually(lambda: port.feed_status(OP).waiting == 0)
        saved = port.submit(CheckpointRequest(label="two", cause="test")).wait(SECONDS)
        statuses = [each.status for each in owner.checkpoints]
        assert statuses[0] is CheckpointStatus.IN_PROGRESS
        assert statuses[-1] is CheckpointStatus.COMPLETED
        assert [each.applied_events for each in owner.checkpoints[-1].operators] == [{"job": 2}]
        assert port.feed_status(OP).durable == 0  # the job does not recover from it unless somebody says so
        snapshot = metadata(saved.path).operators[OP]
        assert snapshot.applied_events == {"job": 2}
        assert snapshot.coordinator_data == b'{"numbers":[1,2]}'
        owner.send()
        next_epoch(first, source, 3)
        assert owner.durable == 3

    fork = Desk()
    with make_job("other", restore_from=saved.path) as second:
        other = Owner()
        feed = other.attach(second)
        start(second, source, Sink(), fork)
        eventually(lambda: feed.feed_status(OP).applied == 0)
        event = feed.check_event("op", "Command", {"number": 99}, None)
        assert feed.feed(1, event)
        recorded(feed, source, 1)
        eventually(lambda: other.recoveries)  # it is over when an epoch was committed
        assert [(fact.cause, fact.path) for fact in other.recoveries] == [(RecoveryCause.RESTORE, saved.path)]
    assert fork.state.numbers == [1, 2, 99]

    back, again = Desk(), Sink()
    with make_job(restore_from=saved.path) as third:
        port = owner.attach(third)
        start(third, source, again, back)
        recorded(port, source, 3)
    assert back.state.numbers == [1, 2, 3]
    assert owner.opened[-1] == 2


def test_the_next_driver_knows_what_was_refused_until_that_outcome_is_durable(
    make_job: MakeJob, source: FileStream
) -> None:
    owner, sink = Owner(), Sink()
    with make_job() as first:
        port = owner.attach(first)
        start(first, source, sink, Desk())
        eventually(lambda: committed(first) == 2)
        owner.send("Poison")
        recorded(port, source, 1)
    with make_job() as second:
        port = owner.attach(second)
        start(second, source, sink, Desk())
        eventually(lambda: port.feed_status(OP).applied == 1)
        assert (port.feed_status(OP).durable, port.feed_status(OP).refused) == (1, (1,))
        port.forget_refusals(OP, [1])
        owner.send()
        recorded(port, source, 2)
    with make_job() as third:
        port = owner.attach(third)
        start(third, source, sink, Desk())
        eventually(lambda: port.feed_status(OP).applied == 2)
        assert port.feed_status(OP).refused == ()


def test_what_an_operator_cannot_take_is_refused_before_it_is_accepted(make_job: MakeJob, source: FileStream) -> None:
    with make_job() as job:
        port = job._port
        config = cc.BroadcastConfig(Command(number=1))
        job.operator("op", config, parallelism=SUBTASKS, state=Seen, down=[Command])
        [facts] = port.operators()
        assert [schema.name for schema in facts.events] == ["Command"]
        assert facts.events[0].schema["properties"]["number"]["type"] == "integer"
        wrong: list[tuple[type[Exception], Any]] = [
            (errors.OperatorNotFound, ("opp", "Command", {"number": 1}, None)),
            (errors.UndeclaredEvent, ("op", "Poison", {}, None)),
            (errors.EventInvalid, ("op", "Command", {"number": "x"}, None)),
            (errors.NoSuchSubtask, ("op", "Command", {"number": 1}, 2)),
            (errors.SubtaskNotAllowed, ("op", "Command", {"number": 1}, 0)),
        ]
        for kind, arguments in wrong:
            with pytest.raises(kind) as caught:
                port.check_event(*arguments)
            if isinstance(caught.value, errors.EventInvalid):
                assert [field["loc"] for field in caught.value.fields] == [["number"]]
            if isinstance(caught.value, errors.OperatorNotFound):
                assert caught.value.near == ["op"]
        # An earlier version of the program had a field more, and has accepted this.
        assert port.check_event("op", "Command", {"number": 2, "more": 1}, None, is_accepted=True).payload
        with pytest.raises(errors.EventInvalid, match="field more: there is no such field"):
            port.check_event("op", "Command", {"number": 2, "more": 1}, None)
        event = port.check_event("op", "Command", {"number": 2}, None)
        assert not port.feed(1, event)  # nobody knows how far the coordinator is
