"""The core under any schedule of epochs, attempts, failures and crashes: every event is seen once, in order, both ways.

Events are numbers. The coordinator's state counts what it has sent to and received from each subtask, a subtask's state
what it has seen and sent; so a gap, a duplicate or a wrong order is noticed in the moment in which it happens, and so
is a state that does not belong to its events after a recovery. Spark re-runs an epoch with the rows that it had.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final

from hypothesis import given, settings

from coord_control.ids import Epoch, SubtaskIndex
from coord_control.protocol.messages import (
    AskSnapshot,
    Batch,
    DeliverEvents,
    FailQuery,
    ResetCoordinator,
    Welcome,
)
from tests.core_kit import OP, Crash, Stage, names, spec
from tests.machines.schedules import Schedule, schedules

PARALLELISM = 2
SUBTASKS = range(PARALLELISM)
ROWS: Final = [{0, 1}, {0, 1}, {0}, {1}, set[int]()]  # of an epoch; the first ones are what a finished schedule picks
CRASHES: Final = [None] * 15 + list(Crash)


@dataclass
class Coordinator:
    """How many events it has sent to, and received from, each subtask."""

    sent: list[int] = field(default_factory=lambda: [0] * PARALLELISM)
    received: list[int] = field(default_factory=lambda: [0] * PARALLELISM)

    @classmethod
    def restored(cls, data: bytes | None) -> Coordinator:
        return cls() if data is None else cls(**json.loads(data))

    def saved(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass
class Attempt:
    """A task that was welcomed and has read its inputs."""

    task: int
    subtask: int
    state: bytes
    outbox: str


class QueryModel:
    """A query with one operator, its coordinator, and a Spark that does what the schedule says."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.stage = Stage(specs=[spec(parallelism=PARALLELISM, observes_attempts=True)])
        self.coordinator = Coordinator()
        self.tasks = 0
        self.rows: set[int] = set()
        self.waiting: dict[int, int] = {}  # hellos without an answer: task -> subtask
        self.alive: list[Attempt] = []
        self.acked: set[int] = set()
        self.served: dict[int, tuple[bytes | None, str]] = {}  # what the first attempt of this epoch got (I3)
        self.execute(self.stage.start())

    def play(self) -> None:
        while not self.schedule.is_over:
            self.schedule.pick(self.possible_steps())()
        self.bring_home()

    def possible_steps(self) -> list[Callable[[], None]]:
        steps = [self.send, self.send, self.send, self.restart_in_place, self.recover_in_a_new_driver]
        if self.is_asked:
            steps += [self.snapshot] * 6
        if not self.is_running:
            steps += [self.plan] * 6
        elif self.rows:
            steps += [self.hello] * 3
        if self.alive:
            steps += [*[self.ack] * 5, self.fail_attempt]
        if self.is_running and self.rows <= self.acked:
            steps += [self.commit] * 6
        return steps

    # What a batch does, up to a crash.

    def execute(self, batch: Batch, crash: Crash | None = None) -> None:
        if crash in (None, Crash.AFTER_ANSWERS):
            for answered in batch.answers:
                assert isinstance(answered.token, int)
                subtask = self.waiting.pop(answered.token, None)
                if isinstance(answered.answer, Welcome):
                    assert subtask is not None
                    self.run_attempt(answered.token, subtask, answered.answer)
        if crash is not None:
            self.recover_in_a_new_driver()
            return
        for notice in batch.notices:
            match notice:
                case ResetCoordinator():
                    self.coordinator = Coordinator.restored(notice.state)
                case DeliverEvents():
                    for number in names(notice.events).split():
                        assert int(number) == self.coordinator.received[notice.subtask]
                        self.coordinator.received[notice.subtask] += 1
                case FailQuery():
                    raise AssertionError(notice.error)

    def run_attempt(self, task: int, subtask: int, welcome: Welcome) -> None:
        served = (welcome.state, names(welcome.inputs))
        assert self.served.setdefault(subtask, served) == served
        seen, sent = json.loads(welcome.state or b"[0, 0]")
        for number in names(welcome.inputs).split():
            assert int(number) == seen
            seen += 1
        upstream = range(sent, sent + self.schedule.pick([0, 0, 1, 2]))  # with nothing to say, nothing is recorded
        state = json.dumps([seen, upstream.stop]).encode()
        self.alive.append(Attempt(task, subtask, state, " ".join(map(str, upstream))))

    # The coordinator.

    def send(self) -> None:
        subtask = self.schedule.pick(SUBTASKS)
        number = self.coordinator.sent[subtask]
        self.coordinator.sent[subtask] += 1
        self.execute(self.stage.send(subtask, str(number)))

    def snapshot(self) -> None:
        crash = self.schedule.pick(CRASHES)
        self.execute(self.stage.snapshot(self.coordinator.saved(), crash=crash), crash)
        self.stage.asked.pop(OP, None)

    # Spark.

    def plan(self) -> None:
        self.stage.planned = Epoch(self.stage.committed + 1)
        self.rows, self.acked, self.served = self.schedule.pick(ROWS), set(), {}

    def hello(self) -> None:
        self.hello_of(self.schedule.pick(sorted(self.rows)))

    def hello_of(self, subtask: int) -> None:
        self.tasks += 1
        self.waiting[self.tasks] = subtask
        self.execute(self.stage.hello(subtask, self.stage.planned, self.tasks))

    def ack(self) -> None:
        crash = self.schedule.pick(CRASHES)
        attempt = self.pick_attempt()
        self.acked.add(attempt.subtask)
        batch = self.stage.ack(
            attempt.subtask, self.stage.planned, attempt.task, attempt.state, attempt.outbox, crash=crash
        )
        self.execute(batch, crash)

    def fail_attempt(self) -> None:
        self.execute(self.stage.disconnect(self.pick_attempt().task))

    def pick_attempt(self) -> Attempt:
        return self.alive.pop(self.schedule.pick(range(len(self.alive))))

    def commit(self) -> None:
        self.alive.clear()
        epoch = self.stage.planned
        self.stage.spark_commits(epoch)
        if self.schedule.pick([True, False]):
            self.execute(self.stage.commit(epoch))

    # Failures.

    def restart_in_place(self) -> None:
        self.end_tasks()
        self.stage.end_run()
        self.execute(self.stage.start())

    def recover_in_a_new_driver(self) -> None:
        self.end_tasks()
        self.stage.new_driver()
        self.coordinator = Coordinator()
        self.execute(self.stage.start())

    def end_tasks(self) -> None:
        self.waiting.clear()
        self.alive.clear()
        self.acked.clear()
        self.stage.asked.clear()

    def bring_home(self) -> None:
        """Two more epochs with rows everywhere and no failure: then nothing is under way any more."""
        if self.is_running:
            self.finish_epoch()
        for _ in range(2):
            self.plan()
            self.finish_epoch()
        [operator] = self.stage.core.operators()
        for subtask in SUBTASKS:
            state = operator.states[SubtaskIndex(subtask)]
            assert json.loads(state or b"") == [self.coordinator.sent[subtask], self.coordinator.received[subtask]]

    def finish_epoch(self) -> None:
        for subtask in sorted(self.rows):
            self.hello_of(subtask)
        if self.is_asked:
            self.snapshot()
        while self.alive:
            self.ack()
        self.commit()

    @property
    def is_running(self) -> bool:
        return self.stage.planned > self.stage.committed

    @property
    def is_asked(self) -> bool:
        return isinstance(self.stage.asked.get(OP), AskSnapshot)


@settings(max_examples=200)
@given(schedules(250))
def test_every_event_is_seen_once_and_in_order_both_ways(schedule: Schedule) -> None:
    QueryModel(schedule).play()
