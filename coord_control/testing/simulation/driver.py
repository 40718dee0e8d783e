"""One simulated driver: the real core and the real epoch store, executed as the runtime executes them.

What the runtime does on three threads is done here one small step at a time, in an order that the world chooses: a
batch with records waits for the writer, several that wait become one write; after the write the generation is
checked; then the answers go out, then the notices become calls on the coordinators' queue. What coordinators do is
posted to one first-in-first-out inbox. A driver may be abandoned between any two steps, and goes on as a zombie when
the world says so.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from coord_control.durable.epoch_store import EpochStore
from coord_control.durable.generations import Claim
from coord_control.errors import CoordControlError, CoordinatorFailed, Fenced, OutputNotConsumed, StoreError
from coord_control.ids import NO_EPOCH, AttemptId, BarrierId, Epoch, OperatorUid, QueryName, RunId, SubtaskIndex
from coord_control.protocol import messages
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import Acknowledge, Answer, AttemptEnded, Batch, Hello
from coord_control.protocol.operator import OperatorRun, OperatorSpec
from coord_control.protocol.records import Record
from coord_control.protocol.recovery import Facts
from coord_control.testing.memory_files import Crash
from coord_control.testing.simulation.invariants import Invariants, View
from coord_control.testing.simulation.spark import Run, RunStage, SparkLog
from coord_control.testing.simulation.values import CoordinatorState, Event, batch_of, events_of

__all__ = ["Driver", "DriverStage", "Notify", "SimulatedCoordinator"]

Notify: TypeAlias = Callable[[str], None]


class DriverStage(enum.Enum):
    ALIVE = "alive"
    FENCED = "fenced"  #: it has noticed that a newer driver exists, and stopped itself
    DEAD = "dead"


@dataclass(slots=True, eq=False)
class SimulatedCoordinator:
    """A user's coordinator: counts, sends, answers snapshots at once or late."""

    uid: OperatorUid
    parallelism: int
    incarnation: int = 1
    state: CoordinatorState = field(default_factory=lambda: CoordinatorState.empty(0))
    owed: list[BarrierId] = field(default_factory=list)  #: snapshots asked for and not completed

    def reset(self, incarnation: int, state: bytes | None) -> None:
        self.incarnation = incarnation
        self.state = CoordinatorState.empty(self.parallelism) if state is None else CoordinatorState.of(state)
        self.owed = []


@dataclass(slots=True, eq=False)
class Driver:
    """One driver of the job.

    Args:
        claim: its generation.
        specs: the operators of each query.
        stores: the epoch store of each query, as this driver sees the storage.
        invariants: what checks its steps.
        answer: sends an answer to a connection.
        say: tells the history what happens.
    """

    claim: Claim
    query_ids: dict[QueryName, str]
    specs: dict[QueryName, list[OperatorSpec]]
    stores: dict[QueryName, EpochStore]
    logs: dict[QueryName, SparkLog]
    invariants: Invariants
    answer: Callable[[Driver, str, Answer], None]
    say: Notify
    is_deaf: bool = False  #: what subtasks send does not change the state of a coordinator
    core: JobCore = field(init=False)
    stage: DriverStage = DriverStage.ALIVE
    coordinators: dict[OperatorUid, SimulatedCoordinator] = field(default_factory=dict)
    query_of: dict[OperatorUid, QueryName] = field(default_factory=dict)
    runs: dict[QueryName, Run] = field(default_factory=dict)
    finished: dict[QueryName, CoordControlError] = field(default_factory=dict)  #: queries that ended for good
    triggered: dict[OperatorUid, list[BarrierId]] = field(default_factory=dict)
    writer: deque[Batch] = field(default_factory=deque)
    inbox: deque[Callable[[], None]] = field(default_factory=deque)
    calls: deque[messages.Notice] = field(default_factory=deque)
    run_number: int = 0
    task_attempts: int = 0
    now: float = 0.0
    dies_between: bool = False  #: after the next answers, before their notices
    is_dying: bool = False
    observed: dict[QueryName, Epoch] = field(default_factory=dict)  #: the newest commit that it was told of
    checked_records: int = 0  #: of the batch that the core is filling

    def __post_init__(self) -> None:
        self.core = JobCore(self.claim.generation)
        for query, specs in self.specs.items():
            self.core.add_query(query, self.query_ids[query], specs)
            for spec in specs:
                self.query_of[spec.uid] = query
                coordinator = SimulatedCoordinator(spec.uid, spec.parallelism)
                coordinator.reset(1, None)
                self.coordinators[spec.uid] = coordinator

    def __str__(self) -> str:
        return f"driver {self.claim.generation}"

    # Runs of queries.

    def start_run(self, query: QueryName) -> View:
        """Recover a query from what is durable, then start Spark.

        Raises:
            StoreError: the epoch store cannot be read; nothing was started.
        """
        log = self.logs[query]
        store = self.stores[query]
        committed, planned = log.committed, log.planned
        store.committed(committed)
        facts = Facts(tuple(store.open()), committed, planned)
        self.core.start_run(query, facts, self.now)
        for operator in self._operators_of(query):
            self.invariants.recovered(self.core.generation, operator, facts)
        self.flush()
        while self.writer:
            self.write(len(self.writer))
        if self.stage is DriverStage.ALIVE:
            self.run_number += 1
            run = Run(query, RunId(f"run-{self.core.generation}.{self.run_number}"), log)
            self.runs[query] = run
        return View.of(facts.records)

    def end_run(self, query: QueryName) -> None:
        """Spark's query has ended: everything on its way is written before anybody reads it."""
        run = self.runs.pop(query)
        run.stage = RunStage.OVER
        self.core.committed(query, self.logs[query].committed, self.now)
        self.core.end_run(query, run.id, self.now)
        self._forget_barriers(query)
        self.flush()
        while self.writer and self.stage is DriverStage.ALIVE:
            self.write(len(self.writer))

    def _forget_barriers(self, query: QueryName) -> None:
        for spec in self.specs[query]:
            self.triggered.pop(spec.uid, None)

    def is_stale(self, attempt: AttemptId, run: Run) -> bool:
        """Whether an attempt must be refused, by all that this driver knows."""
        is_over = attempt.epoch <= self.observed.get(run.query, NO_EPOCH)
        return attempt.generation != self.core.generation or run.stage is RunStage.OVER or is_over

    # What subtasks say, on the loop.

    def hello(self, attempt: AttemptId, token: str) -> None:
        self.core.hello(Hello(attempt), token, self.now)
        self._check(attempt.operator)

    def acknowledge(self, ack: Acknowledge, token: str) -> None:
        self.core.acknowledge(ack, token, self.now)
        operator = self.operator(ack.attempt.operator)
        if operator is not None and operator.epoch is not None and operator.epoch.epoch == ack.attempt.epoch:
            participant = operator.epoch.participant(ack.attempt.subtask)
            if participant is not None and participant.ack is not None and participant.ack.attempt == ack.attempt:
                self.invariants.acknowledged(self.core.generation, ack)
        self._check(ack.attempt.operator)

    def attempt_ended(self, ended: AttemptEnded) -> None:
        self.core.attempt_ended(ended)

    def disconnected(self, token: str) -> None:
        self.core.disconnected(token)

    def observe(self, query: QueryName) -> None:
        """The progress listener sees Spark's newest commit."""
        committed = self.observed[query] = self.logs[query].committed
        self.stores[query].committed(committed)
        self.core.committed(query, committed, self.now)
        for spec in self.specs[query]:
            self._check(spec.uid)

    # Barriers of triggered checkpoints. Nothing triggers them yet; the gateways are made for several barriers at once.

    def trigger_barrier(self, operator: OperatorRun) -> BarrierId:
        """Ask for a snapshot in the middle of an epoch."""
        barrier = self.core._next_barrier()
        self.triggered.setdefault(operator.spec.uid, []).append(barrier)
        operator._ask(operator.channel.trigger(barrier, self.now), self.now, self.core._batch)
        return barrier

    def abort_barrier(self, uid: OperatorUid, barrier: BarrierId) -> None:
        """Give the barrier up: all that it held goes on in its order."""
        self.triggered[uid].remove(barrier)
        operator = self.operator(uid)
        assert operator is not None, "a run that ends forgets its barriers"
        operator.channel.abort(barrier, self.now)
        operator._ask(operator.channel.next_phase(self.now), self.now, self.core._batch)
        self._check(uid)

    def abort_barriers(self, query: QueryName) -> None:
        """A barrier ends with the epoch in which it was triggered (protocol section 5)."""
        for spec in self.specs[query]:
            for barrier in list(self.triggered.get(spec.uid, ())):
                self.abort_barrier(spec.uid, barrier)

    # What coordinators say, first in, first out.

    def send(self, coordinator: SimulatedCoordinator, subtask: int, event: Event) -> None:
        """``context.send`` in whatever thread."""
        uid, incarnation, index = coordinator.uid, coordinator.incarnation, SubtaskIndex(subtask)

        def post() -> None:
            operator = self.operator(uid)
            if operator is not None and operator.channel.is_current(incarnation):
                self.invariants.sent(self.core.generation, uid, index, event.uid)
            self.core.send(uid, incarnation, index, batch_of(event), self.now)
            self._check(uid)

        self.inbox.append(post)

    def complete(self, coordinator: SimulatedCoordinator, barrier: BarrierId) -> None:
        """``result.complete``: the snapshot point."""
        uid, incarnation, state = coordinator.uid, coordinator.incarnation, coordinator.state.to_bytes()

        def post() -> None:
            self.core.snapshot_completed(uid, incarnation, barrier, state, self.now)
            self._check(uid)

        self.inbox.append(post)

    def coordinator_failed(self, coordinator: SimulatedCoordinator) -> None:
        uid, incarnation = coordinator.uid, coordinator.incarnation
        error = CoordinatorFailed(uid, "handle_event_from_operator", "simulated")
        self.inbox.append(lambda: self.core.coordinator_failed(uid, incarnation, error))

    def drain(self, count: int) -> None:
        """The loop runs what was posted."""
        for _ in range(min(count, len(self.inbox))):
            self.inbox.popleft()()

    # The batches.

    def flush(self) -> None:
        """Take what the core wants done, and begin to execute it."""
        if not self.core.has_output:
            return
        batch = self.core.take()
        self.checked_records = 0
        for notice in batch.notices:
            if isinstance(notice, messages.DeliverEvents):
                self.invariants.delivered(self.core.generation, notice.operator)
        if batch.persist or self.writer:
            self.writer.append(batch)
        else:
            self.execute(batch)

    def write(self, count: int) -> None:
        """The writer thread: one append per query for everything that waits; then the check; then answers and
        notices."""
        group = [self.writer.popleft() for _ in range(min(count, len(self.writer)))]
        try:
            self.persist(group)
        except (StoreError, Fenced) as error:
            self._lose(group, error)
            return
        for batch in group:
            self.execute(batch)

    def persist(self, group: list[Batch]) -> None:
        """Make the records of a group durable.

        Raises:
            StoreError: they may be durable or not.
            Fenced: a newer driver owns the job.
        """
        records: dict[QueryName, list[Record]] = {}
        for batch in group:
            for persist in batch.persist:
                records.setdefault(persist.query, []).append(persist.record)
        for query, of_query in records.items():
            self.stores[query].append(of_query)
        if records:
            self.say(f"{self} makes {sum(map(len, records.values()))} record(s) durable")
            self.verify()

    def verify(self) -> None:
        """Check the claim, after the write and before any answer.

        Raises:
            Fenced: a newer driver owns the job.
        """
        if not self.claim.is_current():
            raise Fenced("job", self.core.generation)

    def execute(self, batch: Batch) -> None:
        """Answer, then notify."""
        for answered in batch.answers:
            assert isinstance(answered.token, str)
            self.answer(self, answered.token, answered.answer)
        if self.dies_between:
            self.is_dying = True
            raise Crash("after the answers, before the notices")
        for notice in batch.notices:
            self._notify(notice)

    def _notify(self, notice: messages.Notice) -> None:
        match notice:
            case messages.FailQuery():
                self.fail_query(notice.query, notice.error)
            case messages.EpochSettled():
                self.invariants.settled(self.core.generation, notice)
            case messages.AskSnapshot():
                self.invariants.asked(self.core.generation, notice)
                self.calls.append(notice)
            case _:
                self.calls.append(notice)

    def fail_query(self, query: QueryName, error: CoordControlError) -> None:
        """End the run; for good when no retry can help."""
        self.say(f"{self} fails query {query}: {type(error).__name__}")
        # An older driver takes the commits of the newer one for its own; nobody listens to it any more.
        if isinstance(error, OutputNotConsumed) and self.claim.is_current():
            self.invariants.not_consumed(query, error)
        if (run := self.runs.get(query)) is not None:
            run.stage = RunStage.STOPPED
        if isinstance(error, OutputNotConsumed):
            self.finished[query] = error

    def _lose(self, group: list[Batch], error: CoordControlError) -> None:
        # Nothing that rests on the lost records may become visible: whoever waits is refused, every query ends.
        self.say(f"{self} cannot write: {type(error).__name__}")
        lost, self.writer = [*group, *self.writer], deque()
        for batch in lost:
            for answered in batch.answers:
                assert isinstance(answered.token, str)
                self.answer(self, answered.token, messages.Refused("the driver could not write"))
        if isinstance(error, Fenced):
            self.stage = DriverStage.FENCED
            return
        self.core.fail_all(error, self.now)
        self.triggered.clear()
        self.flush()

    # The coordinators' thread.

    def call_next(self) -> tuple[SimulatedCoordinator, messages.Notice] | None:
        """Take the next call of a coordinator; what it does is up to the world."""
        notice = self.calls.popleft()
        uid = getattr(notice, "operator", None)
        if uid is None:
            return None
        coordinator = self.coordinators[uid]
        match notice:
            case messages.ResetCoordinator():
                coordinator.reset(notice.incarnation, notice.state)
                self.say(f"the coordinator of {uid} goes back to barrier {notice.barrier}: {coordinator.state}")
            case messages.DeliverEvents():
                for event in events_of(notice.events):
                    if not self.is_deaf:
                        coordinator.state.receive(notice.subtask, event, uid)
            case messages.AskSnapshot():
                if notice.incarnation == coordinator.incarnation:
                    coordinator.owed.append(notice.barrier)
        return coordinator, notice

    # Parts.

    def operator(self, uid: OperatorUid) -> OperatorRun | None:
        return next((operator for operator in self.core.operators() if operator.spec.uid == uid), None)

    def _operators_of(self, query: QueryName) -> list[OperatorRun]:
        return [operator for operator in self.core.operators() if operator.query == query]

    def _check(self, uid: OperatorUid) -> None:
        # At once: a record's reason is gone when the epoch is settled in the same batch.
        for persist in self.core._batch.persist[self.checked_records :]:
            self.invariants.persisted(self.core.generation, persist.record, self.operator(uid))
        self.checked_records = len(self.core._batch.persist)
        if (operator := self.operator(uid)) is not None:
            self.invariants.check_channels(self.core.generation, operator)
