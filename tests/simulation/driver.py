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
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from coord_control import errors
from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.job_folder.generations import Claim
from coord_control.errors import (
    ChannelFull,
    CoordControlError,
    CoordinatorFailed,
    Fenced,
    OutputNotConsumed,
    StoreError,
)
from coord_control.ids import (
    NO_EPOCH,
    AttemptId,
    BarrierId,
    CheckpointId,
    Epoch,
    OperatorUid,
    QueryName,
    RunId,
    SubtaskIndex,
)
from coord_control.protocol import messages
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import Acknowledge, Answer, AttemptEnded, Batch, Hello
from coord_control.protocol.operator import OperatorRun, OperatorSpec
from coord_control.protocol.records import LiveChanged, Record
from coord_control.protocol.recovery import Facts
from tests.simulation.checkpoints import Desk, UnderWay, Watched
from tests.simulation.checks import check_driver, check_measured, tell_committed, waiting_behind
from tests.simulation.coordinators import SimulatedCoordinator
from tests.simulation.invariants import Invariants, View
from tests.simulation.lineages import Lineage
from tests.simulation.memory_files import Crash
from tests.simulation.requests import Shown, check_shown
from tests.simulation.spark import Run, RunStage, SparkLog
from tests.simulation.values import Event, Violation, batch_of, events_of

__all__ = ["Driver", "DriverStage", "Notify", "Started"]

Notify: TypeAlias = Callable[[str], None]


class DriverStage(enum.Enum):
    ALIVE = "alive"
    FENCED = "fenced"  #: it has noticed that a newer driver exists, and stopped itself
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Started:
    """Call ``start``."""

    operator: OperatorUid


@dataclass(slots=True, eq=False)
class Driver:
    """One driver of the job.

    Args:
        claim: its generation.
        specs: the operators of each query.
        stores: the epoch store of each query, as this driver sees the storage.
        lineage: what it runs; its invariants check this driver's steps.
        answer: sends an answer to a connection.
        say: tells the history what happens.
        now: what its clock shows; as good as any other time.
        live_log: the log of the job's live values, as this driver sees the storage.
    """

    claim: Claim
    query_ids: dict[QueryName, str]
    specs: dict[QueryName, list[OperatorSpec]]
    stores: dict[QueryName, EpochStore]
    lineage: Lineage
    answer: Callable[[Driver, str, Answer], None]
    say: Notify
    now: float
    live_log: EpochStore
    logs: dict[QueryName, SparkLog] = field(init=False)
    invariants: Invariants = field(init=False)
    core: JobCore = field(init=False)
    stage: DriverStage = DriverStage.ALIVE
    coordinators: dict[OperatorUid, SimulatedCoordinator] = field(default_factory=dict)
    query_of: dict[OperatorUid, QueryName] = field(default_factory=dict)
    runs: dict[QueryName, Run] = field(default_factory=dict)
    finished: dict[QueryName, CoordControlError] = field(default_factory=dict)  #: queries that ended for good
    ended: set[QueryName] = field(default_factory=set)  #: by themselves or on request; they may be started again
    desk: Desk = field(default_factory=Desk)
    writer: deque[Batch] = field(default_factory=deque)
    inbox: deque[Callable[[], None]] = field(default_factory=deque)
    calls: deque[messages.Notice | Started] = field(default_factory=deque)
    run_number: int = 0
    task_attempts: int = 0
    dies_between: bool = False  #: after the next answers, before their notices
    is_dying: bool = False
    observed: dict[QueryName, Epoch] = field(default_factory=dict)  #: the newest commit that it was told of
    live_version: int = 0  #: 0: the log of live values was not read yet
    live_pending: LiveChanged | None = None  #: it is not known whether it is durable
    flags: set[OperatorUid] = field(default_factory=set)  #: operators whose source asks before the next epoch
    checked_records: int = 0  #: of the batch that the core is filling

    def __post_init__(self) -> None:
        self.logs, self.invariants = self.lineage.logs, self.lineage.invariants
        self.core = JobCore(self.claim.generation, self.lineage.job)
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
            self.runs[query] = self._new_run(query)
            self.calls.extend(Started(spec.uid) for spec in self.specs[query])
        return View.of(facts.records)

    def end_run(self, query: QueryName) -> None:
        """Spark's query has ended: everything on its way is written before anybody reads it."""
        run = self.runs.pop(query)
        run.stage = RunStage.OVER
        tell_committed(self, query, run)
        self._check_all()
        self.core.end_run(query, run.id, self.now)
        self._check_all()
        self.flush()
        while self.writer and self.stage is DriverStage.ALIVE:
            self.write(len(self.writer))

    def _new_run(self, query: QueryName) -> Run:
        self.run_number += 1
        self.flags |= {spec.uid for spec in self.specs[query] if spec.wake}  # a stream asks when it is new
        return Run(query, RunId(f"run-{self.core.generation}.{self.run_number}"), self.logs[query])

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
        tell_committed(self, query, self.runs[query])
        for spec in self.specs[query]:
            self._check(spec.uid)

    def go_on(self, run: Run) -> None:
        """A pause is over: Spark runs again, on the operators as they are."""
        self.observe(run.query)
        run.stage = RunStage.OVER
        self.runs[run.query] = self._new_run(run.query)

    # Checkpoints.

    def cut(self, checkpoint: CheckpointId, queries: Collection[QueryName]) -> tuple[BarrierId, dict[QueryName, Epoch]]:
        """Let the core cut these queries, after all that was posted to it before.

        Returns:
            The barrier, and where the queries must be cut.
        """
        self.drain(len(self.inbox))
        boundaries = {query: self._boundary(query) for query in queries}
        barrier = self.core.trigger_checkpoint(checkpoint, queries, self.now)
        for operator in self.core.operators():
            if (cut := operator.cuts.get(barrier)) is not None:
                boundary = boundaries[operator.query]
                self.desk.watched.append(Watched(operator.query, operator.spec.uid, boundary, cut))
        self._check_all()
        return barrier, boundaries

    def abort_checkpoint(self, pending: UnderWay) -> None:
        """The core opens its gateways: all that it held goes on in its order."""
        waiting = waiting_behind(self, pending.barrier)
        check_measured(waiting, self.core.abort_checkpoint(pending.checkpoint, self.now))
        self._check_all()

    def checkpoint_stored(self, checkpoint: CheckpointId) -> None:
        """Tell the coordinators of a checkpoint that exists now."""
        self.core.checkpoint_stored(checkpoint)
        self._check_all()

    def let_time_pass(self, seconds: float) -> None:
        """The loop looks at its clock: coordinators that owe their state for too long are given up."""
        self.now += seconds
        notices, may_fail = len(self.core._batch.notices), self._owe_epochs()
        self.core.tick(self.now)
        self._check_failed(notices, may_fail)
        self._check_all()

    def _owe_epochs(self) -> set[QueryName]:
        # The queries in which a coordinator owes its state for an epoch, and not for a checkpoint.
        return {
            operator.query
            for operator in self.core.operators()
            if operator.epoch is not None and operator.channel.asked == operator.epoch.barrier
        }

    def _check_failed(self, notices: int, may_fail: set[QueryName]) -> None:
        # C17: a coordinator that gives no state for a checkpoint fails it, and no query.
        for notice in self.core._batch.notices[notices:]:
            if isinstance(notice, messages.FailQuery) and notice.query not in may_fail:
                raise Violation(f"C17: {notice.query} fails for the sake of a checkpoint: {notice.error}")

    def is_beginning(self) -> bool:
        """Whether an operator of some query has begun an epoch that another one has not."""
        return any(len({operator.epoch is None for operator in self._operators_of(query)}) > 1 for query in self.specs)

    def _boundary(self, query: QueryName) -> Epoch:
        # The end of the epoch that is under way in any operator, or the last commit that the driver knows of.
        committed = (operator.committed for operator in self._operators_of(query))
        return max(self._epochs_of(query), default=max(committed, default=NO_EPOCH))

    # What coordinators say, first in, first out.

    def send(self, coordinator: SimulatedCoordinator, subtask: int, event: Event) -> None:
        """``context.send`` in whatever thread."""
        uid, incarnation, index = coordinator.uid, coordinator.incarnation, SubtaskIndex(subtask)

        def post() -> None:
            operator = self.operator(uid)
            if operator is not None and self._counts(operator, incarnation):
                self.invariants.sent(self.core.generation, uid, index, event.uid)
            self.core.send(uid, incarnation, index, batch_of(event), self.now)
            self._check(uid)

        self.inbox.append(post)

    def complete(self, coordinator: SimulatedCoordinator, barrier: BarrierId) -> None:
        """``result.complete``: the snapshot point."""
        uid, incarnation, state = coordinator.uid, coordinator.incarnation, coordinator.state.to_bytes()

        def post() -> None:
            operator = self.operator(uid)
            if operator is not None and self._counts(operator, incarnation):
                self.invariants.answered(self.core.generation, operator, barrier)
            self.core.snapshot_completed(uid, incarnation, barrier, state, self.now)
            self._check(uid)

        self.inbox.append(post)

    def mark(self, coordinator: SimulatedCoordinator, number: int) -> None:
        """From here on an item from outside counts."""
        uid, incarnation, refused = coordinator.uid, coordinator.incarnation, coordinator.feed.refused
        self.inbox.append(lambda: self.core.control_event(uid, incarnation, number, refused))

    def refuse(self, coordinator: SimulatedCoordinator, barrier: BarrierId) -> None:
        """``result.fail``."""
        uid, incarnation = coordinator.uid, coordinator.incarnation
        error = CoordinatorFailed(uid, "checkpoint_coordinator", "simulated")

        def post() -> None:
            operator = self.operator(uid)
            epoch = operator.epoch if operator is not None else None
            may_fail = {self.query_of[uid]} if epoch is not None and epoch.barrier == barrier else set()
            notices = len(self.core._batch.notices)
            self.core.snapshot_failed(uid, incarnation, barrier, error, self.now)
            self._check_failed(notices, may_fail)
            self._check_all()

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
        if batch.persist or self.writer or (batch.answers and not self.claim.is_fresh()):
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
            self.say(f"{self} makes {len(of_query)} record(s) of {query} durable")
        if records or any(batch.answers for batch in group):
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

    def _notify(self, notice: messages.Notice | Shown) -> None:
        match notice:
            case messages.FailQuery():
                self.fail_query(notice.query, notice.error)
            case messages.EpochSettled():
                self.invariants.settled(self.core.generation, notice)
            case messages.AskSnapshot():
                self.invariants.asked(self.core.generation, notice)
                self.calls.append(notice)
            case messages.EventsWait():
                self.flags.add(notice.operator)
            case messages.EventsDurable():
                self._durable(notice)
            case messages.QueryCaptured():
                self.say(f"{self} has captured {notice.query} for checkpoint {notice.checkpoint}")
                self.desk.told.append(notice)
            case messages.CheckpointFailed():
                self.say(f"{self} fails checkpoint {notice.checkpoint}: {notice.detail}")
                self.desk.told.append(notice)
            case Shown():
                check_shown(self, notice)
            case _:
                self.calls.append(notice)

    def _durable(self, notice: messages.EventsDurable) -> None:
        self.say(f"{self} has items up to {notice.number} of {notice.operator} durable")
        self.coordinators[notice.operator].feed.recorded(notice.number)
        if self.claim.is_current():
            self.lineage.items_durable(self.query_of[notice.operator], notice.operator, notice.number)

    def fail_query(self, query: QueryName, error: CoordControlError) -> None:
        """End the run; for good when no retry can help."""
        self.say(f"{self} fails query {query}: {type(error).__name__}")
        # An older driver takes the commits of the newer one for its own; nobody listens to it any more.
        if isinstance(error, OutputNotConsumed) and self.claim.is_current():
            self.invariants.not_consumed(query, error)
        self.lineage.statistics.full_channels += isinstance(error, ChannelFull)
        if (run := self.runs.get(query)) is not None:
            run.stage = RunStage.STOPPED
        if isinstance(error, OutputNotConsumed | errors.CommittedElsewhere):
            self.finished[query] = error

    def _lose(self, group: list[Batch], error: CoordControlError) -> None:
        # Nothing that rests on the lost records may become visible: whoever waits is refused, every query ends.
        self.say(f"{self} cannot write: {type(error).__name__}")
        lost, self.writer = [*group, *self.writer], deque()
        for batch in lost:
            for notice in batch.told_anyway():
                self._notify(notice)
            for answered in batch.answers:
                assert isinstance(answered.token, str)
                self.answer(self, answered.token, messages.Refused("the driver could not write"))
        if isinstance(error, Fenced):
            self.stage = DriverStage.FENCED
            return
        self.core.fail_all(error, self.now)
        self.flush()

    # The coordinators' thread.

    def call_next(self) -> tuple[SimulatedCoordinator, messages.Notice | Started] | None:
        """Take the next call of a coordinator; what it does is up to the world."""
        notice = self.calls.popleft()
        uid = getattr(notice, "operator", None)
        if uid is None:
            return None
        coordinator = self.coordinators[uid]
        match notice:
            case messages.ResetCoordinator():
                coordinator.reset(notice.incarnation, notice.state)
                coordinator.feed.recovered(notice.applied, notice.refused)
                self.say(
                    f"the coordinator of {uid} goes back to barrier {notice.barrier}, item {notice.applied}: "
                    f"{coordinator.state}"
                )
            case Started() if coordinator.feed.applied is None:
                coordinator.feed.recovered(0)
            case messages.DeliverEvents():
                for event in events_of(notice.events):
                    if not self.lineage.is_deaf:
                        coordinator.state.receive(notice.subtask, event, uid)
            case messages.AskSnapshot():
                if notice.incarnation == coordinator.incarnation:
                    coordinator.asked(notice.barrier)
            case messages.CheckpointComplete():
                coordinator.told(notice.barrier)
            case messages.CheckpointAborted():
                coordinator.aborted(notice.barrier)
        return coordinator, notice

    # Parts.

    def operator(self, uid: OperatorUid) -> OperatorRun | None:
        return next((operator for operator in self.core.operators() if operator.spec.uid == uid), None)

    def _counts(self, operator: OperatorRun, incarnation: int) -> bool:
        # What a coordinator says once its query has failed has not happened.
        return operator.channel.is_current(incarnation) and self.core._queries[operator.query].running

    def _epochs_of(self, query: QueryName) -> list[Epoch]:
        return [operator.epoch.epoch for operator in self._operators_of(query) if operator.epoch is not None]

    def _operators_of(self, query: QueryName) -> list[OperatorRun]:
        return [operator for operator in self.core.operators() if operator.query == query]

    def _check_all(self) -> None:
        for uid in self.query_of:
            self._check(uid)

    def _check(self, uid: OperatorUid) -> None:
        check_driver(self, uid)
