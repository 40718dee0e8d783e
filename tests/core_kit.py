"""Short names for tests of the protocol core, and a stage on which it meets Spark and the epoch store.

:class:`Stage` plays both: it keeps the durable records and Spark's two numbers (last planned, last committed epoch),
executes every batch in the order of its fields, and can die between them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coord_control.errors import CoordinatorFailed
from coord_control.ids import (
    NO_EPOCH,
    AttemptId,
    BarrierId,
    CheckpointId,
    Epoch,
    Generation,
    OperatorUid,
    QueryName,
    RunId,
    SubtaskIndex,
)
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import (
    Acknowledge,
    Answer,
    Answered,
    AskSnapshot,
    AttemptEnded,
    Batch,
    Hello,
    Measurements,
    Notice,
)
from coord_control.protocol.operator import OperatorSpec
from coord_control.protocol.records import Ack, Begin, EventBatch, Record, RunStarted
from coord_control.protocol.recovery import Facts

KindOfNotice = TypeVar("KindOfNotice", bound=Notice)

QUERY = QueryName("q")
QUERY_ID = "id-of-q"
OP = OperatorUid("op")
FIRST_RUN = RunId("run-1")
FIRST_GENERATION = Generation(1)


def event(name: str, kind: int = 0) -> EventBatch:
    """One control event; the core only moves its bytes, so its name will do for a payload."""
    return EventBatch(kind, 1, name.encode())


def events(names: str, kind: int = 0) -> tuple[EventBatch, ...]:
    """One batch of one type per word."""
    return tuple(event(name, kind) for name in names.split())


def names(batches: Iterable[EventBatch]) -> str:
    """The events of ``batches``, joined or not, as words."""
    return " ".join(name for batch in batches for name in batch.payload.decode().split(","))


def spec(uid: str = OP, parallelism: int = 2, *, observes_attempts: bool = False) -> OperatorSpec:
    return OperatorSpec(OperatorUid(uid), parallelism, observes_attempts=observes_attempts)


def attempt(
    subtask: int = 0,
    epoch: int = 0,
    task: int = 0,
    *,
    operator: str = OP,
    generation: int = 1,
    run: str = FIRST_RUN,
    query_id: str = QUERY_ID,
) -> AttemptId:
    return AttemptId(
        Generation(generation),
        RunId(run),
        query_id,
        OperatorUid(operator),
        SubtaskIndex(subtask),
        Epoch(epoch),
        task_attempt=task,
        stage=epoch,
        attempt_number=0,
    )


def begin(epoch: int, state: bytes = b"S", inputs: dict[int, str] | None = None, *, operator: str = OP) -> Begin:
    frozen = {SubtaskIndex(subtask): events(words) for subtask, words in (inputs or {}).items()}
    return Begin(OperatorUid(operator), Epoch(epoch), BarrierId(100 + epoch), state, frozen)


def ack(
    epoch: int, subtask: int = 0, state: bytes | None = b"s", outbox: str = "", *, task: int = 0, operator: str = OP
) -> Ack:
    return Ack(OperatorUid(operator), SubtaskIndex(subtask), Epoch(epoch), task, state, events(outbox))


def run_started(committed: int, planned: int, generation: int = 2) -> RunStarted:
    return RunStarted(Generation(generation), Epoch(committed), Epoch(planned))


class Crash(enum.Enum):
    """Where in a batch the driver dies."""

    BEFORE_PERSIST = "before-persist"
    AFTER_PERSIST = "after-persist"
    AFTER_ANSWERS = "after-answers"


@dataclass
class Stage:
    """A driver generation, the epoch store and Spark, without any of them."""

    specs: Sequence[OperatorSpec] = field(default_factory=lambda: [spec()])
    log: list[Record] = field(default_factory=list)
    committed: Epoch = NO_EPOCH
    planned: Epoch = NO_EPOCH
    generation: Generation = FIRST_GENERATION
    run: RunId = FIRST_RUN
    now: float = 0.0

    def __post_init__(self) -> None:
        self.asked: dict[OperatorUid, AskSnapshot] = {}
        self.core = self._new_core()

    def _new_core(self) -> JobCore:
        core = JobCore(self.generation)
        core.add_query(QUERY, QUERY_ID, self.specs)
        return core

    @property
    def facts(self) -> Facts:
        return Facts(tuple(self.log), self.committed, self.planned)

    def execute(self, crash: Crash | None = None) -> Batch:
        """Execute what the core has put out, up to ``crash``; returns all of it."""
        batch = self.core.take()
        if crash is not Crash.BEFORE_PERSIST:
            self.log += [persist.record for persist in batch.persist]
        if crash is None:
            self.asked |= {notice.operator: notice for notice in batch.notices if isinstance(notice, AskSnapshot)}
        return batch

    # The driver.

    def start(self) -> Batch:
        """Start the query's first run, or its next one in place."""
        self.core.start_run(QUERY, self.facts, self.now)
        return self.execute()

    def end_run(self) -> Batch:
        """The run has ended; the next one has another id."""
        self.core.end_run(QUERY, self.run, self.now)
        self.run = RunId(f"run-{int(self.run.removeprefix('run-')) + 1}")
        return self.execute()

    def new_driver(self) -> None:
        """The driver died: nothing but records and Spark's numbers is left."""
        self.generation = Generation(self.generation + 1)
        self.run = RunId(f"run-{int(self.run.removeprefix('run-')) + 1}")
        self.asked.clear()
        self.core = self._new_core()

    # Subtasks.

    def attempt(self, subtask: int, epoch: int, task: int, operator: str = OP) -> AttemptId:
        """An attempt of the run that Spark runs now."""
        return attempt(subtask, epoch, task, operator=operator, generation=self.generation, run=self.run)

    def hello(
        self, subtask: int, epoch: int, task: int, operator: str = OP, *, stale: AttemptId | None = None
    ) -> Batch:
        """Spark has planned ``epoch`` and runs a task; ``stale`` speaks in its place. The token is the task's id."""
        self.planned = max(self.planned, Epoch(epoch))
        self.core.hello(Hello(stale or self.attempt(subtask, epoch, task, operator)), task, self.now)
        return self.execute()

    def ack(
        self,
        subtask: int,
        epoch: int,
        task: int,
        state: bytes | None = None,
        outbox: str = "",
        operator: str = OP,
        *,
        crash: Crash | None = None,
        measured: Measurements | None = None,
        stale: AttemptId | None = None,
    ) -> Batch:
        who = stale or self.attempt(subtask, epoch, task, operator)
        message = Acknowledge(who, state, events(outbox), measured or Measurements())
        self.core.acknowledge(message, task, self.now)
        return self.execute(crash)

    def attempt_ended(
        self, subtask: int, epoch: int, task: int, operator: str = OP, *, reason: str = "it raised", fatal: bool = False
    ) -> Batch:
        self.core.attempt_ended(AttemptEnded(self.attempt(subtask, epoch, task, operator), reason, fatal))
        return self.execute()

    def disconnect(self, task: int) -> Batch:
        self.core.disconnected(task)
        return self.execute()

    # The coordinator.

    def send(self, subtask: int, name: str, operator: str = OP) -> Batch:
        self.core.send(OperatorUid(operator), self.incarnation(operator), SubtaskIndex(subtask), event(name), self.now)
        return self.execute()

    def snapshot(self, state: bytes = b"S", operator: str = OP, *, crash: Crash | None = None) -> Batch:
        """The coordinator answers what it was asked last."""
        asked = self.asked[OperatorUid(operator)]
        self.core.snapshot_completed(asked.operator, asked.incarnation, asked.barrier, state, self.now)
        return self.execute(crash)

    def snapshot_fails(self, operator: str = OP) -> Batch:
        """The coordinator refuses to give the state that it was asked for last."""
        asked = self.asked[OperatorUid(operator)]
        error = CoordinatorFailed(operator, "checkpoint_coordinator", "boom")
        self.core.snapshot_failed(asked.operator, asked.incarnation, asked.barrier, error, self.now)
        return self.execute()

    # Triggered checkpoints.

    def trigger_checkpoint(self, checkpoint: int) -> Batch:
        self.core.trigger_checkpoint(CheckpointId(checkpoint), [QUERY], self.now)
        return self.execute()

    def abort_checkpoint(self, checkpoint: int) -> Batch:
        self.core.abort_checkpoint(CheckpointId(checkpoint), self.now)
        return self.execute()

    def checkpoint_stored(self, checkpoint: int) -> Batch:
        self.core.checkpoint_stored(CheckpointId(checkpoint))
        return self.execute()

    def incarnation(self, operator: str = OP) -> int:
        return next(run.channel.incarnation for run in self.core.operators() if run.spec.uid == operator)

    # Spark.

    def commit(self, epoch: int) -> Batch:
        """Spark commits, and the driver sees it."""
        self.spark_commits(epoch)
        self.core.committed(QUERY, Epoch(epoch), self.now, self.run)
        return self.execute()

    def spark_commits(self, epoch: int) -> None:
        """Spark commits, and the driver does not know yet."""
        self.committed = Epoch(epoch)
        self.planned = max(self.planned, self.committed)


def answer_to(batch: Batch, token: object) -> Answer | None:
    """What the one who asked with ``token`` is answered in ``batch``."""
    found = [answered.answer for answered in batch.answers if answered.token == token]
    assert len(found) <= 1, f"{token} was answered twice in one batch"
    return found[0] if found else None


def of_type(kind: type[KindOfNotice], batch: Batch) -> list[KindOfNotice]:
    """The notices of one type, in order."""
    return [notice for notice in batch.notices if isinstance(notice, kind)]


__all__ = [
    "FIRST_RUN",
    "OP",
    "QUERY",
    "QUERY_ID",
    "Answered",
    "Crash",
    "Stage",
    "ack",
    "answer_to",
    "attempt",
    "begin",
    "event",
    "events",
    "names",
    "of_type",
    "run_started",
    "spec",
]
