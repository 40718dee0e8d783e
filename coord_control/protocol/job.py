"""The protocol core of one driver: every query and operator of a job, behind one door.

Inputs are method calls with ``now`` in seconds; what must happen because of them is collected in one ordered
:class:`~coord_control.protocol.messages.Batch`, which :meth:`JobCore.take` hands out: persist, then answer, then
notify. Given the same calls the core gives the same batches. It does no I/O, reads no clock and starts no thread; one
thread owns it.

Fencing has one door, :meth:`JobCore._refusal`: an attempt's generation, query, run, task attempt and epoch are
compared there, once, before any other code sees the attempt. Older ones are refused and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coord_control.errors import (
    CommittedElsewhere,
    CoordControlError,
    CoordinatorFailed,
    CoordinatorTimeout,
    LiveValuesRefused,
    SubtaskFailed,
)
from coord_control.ids import (
    NO_CHECKPOINT,
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
from coord_control.protocol import messages
from coord_control.protocol.checkpoint import PendingCheckpoints, Progress
from coord_control.protocol.control_events import Seal, unseal
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.live_epochs import JobLive, QueryLive
from coord_control.protocol.messages import Acknowledge, AttemptEnded, Batch, Hello, Token
from coord_control.protocol.operator import OperatorRun, OperatorSpec, OperatorStates, Totals
from coord_control.protocol.query_in_core import QueryInCore
from coord_control.protocol.records import EventBatch, LiveInForce, LiveValue
from coord_control.protocol.recovery import Facts, recover, recovery_marker, rerun_marker
from coord_control.protocol.statistics import QueryStatistics

__all__ = ["JobCore", "first_barrier"]

# Barrier ids grow strictly across generations without being written down: the generation is their upper half (rule C9).
_BARRIERS_PER_GENERATION = 1 << 32


def first_barrier(generation: Generation) -> BarrierId:
    """Return the first barrier id of a generation: above those of all earlier ones, below those of all later ones
    (C9)."""
    return BarrierId(_BARRIERS_PER_GENERATION * generation + 1)


class JobCore:
    """All operators of one driver's generation.

    Args:
        job: whose numbers count among the events from outside.
    """

    def __init__(self, generation: Generation, job: str = "") -> None:
        self.generation = generation
        self._job = job
        self._batch = Batch()
        self._queries: dict[QueryName, QueryInCore] = {}
        self._query_of: dict[OperatorUid, QueryInCore] = {}
        self._operators: dict[OperatorUid, OperatorRun] = {}
        self._totals: dict[OperatorUid, Totals] = {}
        self._incarnations: dict[OperatorUid, int] = {}  # 1: the coordinator as it was made
        self._started: set[OperatorUid] = set()  # in a run of any query: a start that failed may be tried elsewhere
        self._open_attempts: dict[Token, AttemptId] = {}
        self._highest_attempt = -1
        self._barriers = generation * _BARRIERS_PER_GENERATION
        self._checkpoints = PendingCheckpoints()
        self._live = JobLive()

    def take(self) -> Batch:
        """Take what must happen now. Afterwards execute it in the order of its fields."""
        batch, self._batch = self._batch, Batch()
        return batch

    @property
    def has_output(self) -> bool:
        """Whether :meth:`take` would return anything."""
        return bool(self._batch)

    @property
    def expects_acks(self) -> bool:
        """Whether :meth:`take` would return a record, and running attempts may acknowledge soon."""
        return bool(self._batch.persist and self._open_attempts)

    # Runs of queries.

    def add_query(self, name: QueryName, query_id: str, specs: Iterable[OperatorSpec]) -> None:
        """Declare a query and its operators; nothing runs before :meth:`start_run`."""
        query = QueryInCore(name, query_id, {spec.uid: spec for spec in specs})
        self._queries[name] = query
        for uid in query.specs:
            self._query_of[uid] = query
            self._totals[uid] = Totals()
            self._incarnations.setdefault(uid, 1)

    def start_run(self, name: QueryName, facts: Facts, now: float) -> None:
        """Recover a query's operators from durable facts. Afterwards execute the batch, and only then start the query.

        Coordinators with something to go back to, and all of them when this is not their first start, are reset (C12).

        Raises:
            DamagedRecord, UnsupportedFormat: a coordinator's state cannot be taken apart; nothing has changed.
        """
        query = self._queries[name]
        marker = recovery_marker(facts, self.generation)
        if marker is not None:
            facts = Facts((*facts.records, marker), facts.committed, facts.planned)
        recovery = {uid: recover(facts, uid) for uid in query.specs}
        sealed = {uid: unseal(uid, recovered.coordinator_state) for uid, recovered in recovery.items()}
        if marker is not None:
            self._batch.persist.append(messages.Persist(name, marker))
        query.rerun = rerun_marker(facts, self.generation)
        for uid, spec in query.specs.items():
            recovered = recovery[uid]
            is_reset = uid in self._started or recovered.barrier != NO_CHECKPOINT
            self._started.add(uid)
            # Every reset begins an incarnation, so what a coordinator sends before its first reset has not happened
            # either.
            incarnation = self._incarnations[uid] = self._incarnations[uid] + is_reset
            seal = Seal(self._job, sealed[uid].numbers, sealed[uid].refused)
            self._operators[uid] = OperatorRun(
                spec, name, recovered, incarnation, self._totals[uid], self._next_barrier, facts.committed, seal
            )
            if is_reset:
                state = sealed[uid].data
                reset = messages.ResetCoordinator(uid, incarnation, recovered.barrier, state, seal.number, seal.refused)
                self._batch.notices.append(reset)
            for outbox in recovered.undelivered:
                events = messages.DeliverEvents(uid, outbox.subtask, outbox.attempt, outbox.events)
                self._batch.notices.append(events)
            self._operators[uid].say_waiting(map(SubtaskIndex, range(spec.parallelism)), self._batch)
        self._live.start_run(name, facts)
        query.committed, query.unfinished = facts.committed, None
        query.starts += 1
        query.running = True

    def end_run(self, name: QueryName, run: RunId | None, now: float) -> None:
        """End the query's run, for whatever reason: its attempts are refused from now on."""
        query = self._queries[name]
        query.running = False
        query.attempt_floor = self._highest_attempt
        if run is not None:
            query.ended_runs.append(run)
        self._checkpoints.run_ended(name, query.specs, now, self._batch)
        for uid in query.specs:
            if (operator := self._operators.pop(uid, None)) is not None:
                if (unfinished := operator.unfinished()) is not None:
                    query.unfinished = unfinished
                operator.fail(self._batch)
                operator.retire(now)
        self._open_attempts = {
            token: attempt for token, attempt in self._open_attempts.items() if attempt.operator not in query.specs
        }

    def fail_all(self, error: CoordControlError, now: float) -> None:
        """Handle the loss of records that were to become durable: every started query ends its run and must recover.

        Output that was not taken yet may rest on them and is lost too: the requests that it would have answered are
        refused.
        """
        lost, self._batch = self._batch, Batch()
        refused = messages.Refused("the driver could not make it durable")
        self._batch.answers += [messages.Answered(answered.token, refused) for answered in lost.answers]
        self._batch.notices += lost.told_anyway()
        self._checkpoints.fail_all(FailureReason.QUERY_FAILED, str(error), now, self._batch)
        for query in self._queries.values():
            if query.starts:
                self.end_run(query.name, None, now)
                self._batch.notices.append(messages.FailQuery(query.name, error))

    def committed(self, name: QueryName, epoch: Epoch, now: float, run: RunId | None = None) -> None:
        """Settle everything up to ``epoch``, whose file in Spark's ``commits`` exists. Calls may be repeated, or late.

        Args:
            run: the run of this driver that has committed it, as reported by Spark; None if only the file was seen,
                which any driver may have written. Then the query fails (CommittedElsewhere) and nothing is settled.
        """
        query = self._queries[name]
        if query.running and epoch > query.committed:
            self._settle(query, epoch, run, now)

    # What subtasks say.

    def hello(self, message: Hello, token: Token, now: float) -> None:
        """Handle an attempt that has rows. Answered with Welcome once the epoch's begin record is durable, or with
        Refused."""
        attempt = message.attempt
        refusal = self._refusal(attempt)
        if refusal is None and attempt.epoch - 1 > self._query_of[attempt.operator].committed:
            # The first hello of an epoch implies that its run has committed the ones before it.
            if not self._settle(self._query_of[attempt.operator], Epoch(attempt.epoch - 1), attempt.run, now):
                refusal = "the epoch before it failed"
        if refusal is not None:
            self._refuse(attempt, token, refusal)
            return
        query = self._query_of[attempt.operator]
        self._highest_attempt = max(self._highest_attempt, attempt.task_attempt)
        if query.rerun is not None:  # Spark runs the planned epoch again: its sink does not have it
            self._batch.persist.append(messages.Persist(query.name, query.rerun))
            query.rerun = None
            for uid in query.specs:
                self._operators[uid].runs_again()
        # A worker runs one subtask of an operator at a time: the one before, neither acknowledged nor failed, is over.
        before = self._open_attempts.get(token, attempt)
        if before != attempt and before.operator == attempt.operator:
            self._gone(token, "its Python worker has begun another one")
        self._open_attempts[token] = attempt
        self._operators[attempt.operator].hello(attempt, token, now, self._batch)

    def acknowledge(self, message: Acknowledge, token: Token, now: float) -> None:
        """Handle an attempt that has produced all its output. Answered with Accepted once that is durable, or with
        Refused."""
        attempt = message.attempt
        refusal = self._refusal(attempt)
        if refusal is None:
            refusal = self._operators[attempt.operator].acknowledge(message, token, now, self._batch)
        if refusal is None:
            self._open_attempts.pop(token, None)
        else:
            self._refuse(attempt, token, refusal)

    def attempt_ended(self, message: AttemptEnded) -> None:
        """Handle the end of an attempt without an ack. Not answered."""
        attempt = message.attempt
        if self._refusal(attempt) is not None:
            return  # late news
        self._operators[attempt.operator].attempt_ended(attempt, message.reason, self._batch)
        if message.fatal:
            self._fail(self._query_of[attempt.operator].name, SubtaskFailed(attempt, message.reason))

    def disconnected(self, token: Token) -> None:
        """Handle the end of a subtask's connection, which ends an attempt that has not acknowledged."""
        self._gone(token, "the connection to its Python worker was lost")

    def _gone(self, token: Token, reason: str) -> None:
        if (attempt := self._open_attempts.pop(token, None)) is not None:
            self.attempt_ended(AttemptEnded(attempt, reason))

    # What coordinators say.

    def send(self, uid: OperatorUid, incarnation: int, subtask: SubtaskIndex, event: EventBatch, now: float) -> None:
        """Send an event of a coordinator to one subtask; one of an earlier incarnation is ignored.

        Raises:
            NoSuchSubtask: there is no such subtask.
        """
        operator = self._current(uid, incarnation)
        if operator is None:
            return
        error = operator.send(subtask, event, now)
        operator.say_waiting((subtask,), self._batch)
        if error is not None:
            self._fail(operator.query, error)

    def snapshot_completed(
        self, uid: OperatorUid, incarnation: int, barrier: BarrierId, state: bytes, now: float
    ) -> None:
        """Handle the coordinator's answer to AskSnapshot."""
        if (operator := self._current(uid, incarnation)) is not None:
            operator.snapshot_completed(barrier, state, now, self._batch)
            self._checkpoints.collect(self._batch)

    def control_event(self, uid: OperatorUid, incarnation: int, number: int, refused: tuple[int, ...] = ()) -> None:
        """Count an event from outside as applied by the coordinator from here on.

        Args:
            refused: the numbers of refused events whose outcome is not durable yet, perhaps this one among them.
        """
        if (operator := self._current(uid, incarnation)) is not None:
            operator.control_event(number, refused, self._batch)

    def snapshot_failed(
        self, uid: OperatorUid, incarnation: int, barrier: BarrierId, error: CoordinatorFailed, now: float
    ) -> None:
        """Handle a coordinator that cannot give its state: an epoch fails with it, a checkpoint fails alone (C17)."""
        if self._current(uid, incarnation) is None:
            return
        if (checkpoint := self._checkpoints.of_barrier(barrier)) is not None:
            self._checkpoints.fail(checkpoint, FailureReason.COORDINATOR_FAILED, str(error), now, self._batch)
        elif self._operators[uid].is_asked_for(barrier):
            self._fail(self._query_of[uid].name, error)

    def coordinator_failed(self, uid: OperatorUid, incarnation: int, error: CoordinatorFailed) -> None:
        """Fail the query, because a callback raised or the coordinator failed an epoch's snapshot (C17)."""
        if self._current(uid, incarnation) is not None:
            self._fail(self._query_of[uid].name, error)

    def tick(self, now: float) -> None:
        """Let time pass: a coordinator that owes its state for too long fails its query, or a checkpoint alone."""
        for uid, operator in self._operators.items():
            if (barrier := operator.overdue(now)) is None:
                continue
            error = CoordinatorTimeout(uid, operator.spec.snapshot_timeout_seconds)
            if (checkpoint := self._checkpoints.of_barrier(barrier)) is None:
                self._fail(self._query_of[uid].name, error)
            else:
                self._checkpoints.fail(checkpoint, FailureReason.COORDINATOR_TIMEOUT, str(error), now, self._batch)

    def may_have_finished(self, name: QueryName, committed: Epoch) -> bool:
        """Return whether an interrupted run may have made a commit that it did not report: all its tasks were over."""
        query = self._queries[name]
        running = {self._operators[uid].unfinished() for uid in query.specs if uid in self._operators}
        return not any(epoch is not None and epoch <= committed for epoch in running | {query.unfinished})

    # Epochs without rows.

    def to_wake(self, uid: OperatorUid, run: RunId) -> tuple[SubtaskIndex, ...]:
        """Return the subtasks of an operator to which the epoch brings events that a run of its query plans now.

        The answer may be used once the batch was executed: then this driver has been checked to be the current one.
        """
        return self._operators[uid].to_wake() if self._runs(uid) and run not in self._query_of[uid].ended_runs else ()

    # Live values.

    def live_changed(self, name: str, value: LiveValue) -> Mapping[QueryName, QueryLive]:
        """Take a live value of the job that is durable; return what is in force in the queries that use any."""
        self._live.changed(name, value)
        return self._live.status()

    def freeze(self, name: QueryName, run: RunId, epoch: Epoch) -> Mapping[str, LiveInForce]:
        """Return the live values of an epoch that Spark plans; they may be used once the batch was executed.

        Raises:
            LiveValuesRefused: the epoch is over, or belongs to a run that is.
        """
        query = self._queries[name]
        if not query.running or run in query.ended_runs:
            raise LiveValuesRefused(name, epoch, "it belongs to a run of the query that has ended")
        values, record = self._live.freeze(name, epoch)
        if record is not None:
            self._batch.persist.append(messages.Persist(name, record))
        return values

    def live_values(self) -> Mapping[QueryName, QueryLive]:
        """Return what is in force in the queries that have used a live value."""
        return self._live.status()

    # Triggered checkpoints.

    def trigger_checkpoint(self, checkpoint: CheckpointId, names: Iterable[QueryName], now: float) -> BarrierId:
        """Begin a checkpoint of these queries; announced query by query with QueryCaptured.

        Its boundary in a query is the end of the epoch in progress, or the last commit when none is. A query that does
        not run fails it at once (CheckpointFailed). Queries without operators have no part in it.

        Returns:
            What coordinators see as its id.
        """
        barrier = self._next_barrier()
        queries = [self._queries[name] for name in names if self._queries[name].specs]
        if idle := [query.name for query in queries if not query.running]:
            detail = f"query {idle[0]!r} is being restarted"
            reason = FailureReason.QUERY_RESTARTING
            self._batch.notices.append(messages.CheckpointFailed(checkpoint, barrier, reason, detail))
            return barrier
        parts = {
            query.name: (self._boundary(query), [self._operators[uid] for uid in query.specs]) for query in queries
        }
        self._checkpoints.trigger(checkpoint, barrier, parts, now, self._batch)
        return barrier

    def checkpoint_stored(self, checkpoint: CheckpointId) -> None:
        """Notify the coordinators of a durable checkpoint that it is complete. Late calls do nothing."""
        self._checkpoints.stored(checkpoint, self._batch)

    def abort_checkpoint(self, checkpoint: CheckpointId, now: float) -> tuple[QueryStatistics, ...]:
        """Abort a checkpoint in any state: its gateways open in order, its coordinators are notified.

        Returns:
            The measurements of the queries that were not captured; empty if it is not in progress.
        """
        return self._checkpoints.abort(checkpoint, now, self._batch)

    def checkpoint_progress(self, checkpoint: CheckpointId) -> Progress | None:
        """Return the progress of a checkpoint, or None if it is not in progress."""
        return self._checkpoints.progress(checkpoint)

    # Requests from outside.

    def requested(self, uid: OperatorUid) -> None:
        """Handle a request from outside that waits for a coordinator: HandleRequests, if its query runs.

        Between two runs the coordinator's state is about to go back: what it says then has not happened. So the owner
        of the requests asks again when the next run has begun, and whenever it has let one wait.
        """
        if self._runs(uid):
            incarnation = self._operators[uid].channel.incarnation
            self._batch.notices.append(messages.HandleRequests(uid, incarnation))

    def committed_states(self, uid: OperatorUid, subtasks: Iterable[SubtaskIndex]) -> OperatorStates | None:
        """Return the newest states that no recovery goes back behind; None while the operator does not run.

        They may be shown when everything that the core has said before is durable (I4).
        """
        return self._operators[uid].committed_states(subtasks) if self._runs(uid) else None

    # For people.

    def operators(self) -> Sequence[OperatorRun]:
        """Return the operators that run now, for statistics; read only, on the owning thread."""
        return list(self._operators.values())

    def checkpoint_of(self, barrier: BarrierId) -> CheckpointId | None:
        """Return the checkpoint in progress that has this barrier, or None if the barrier starts an epoch."""
        return self._checkpoints.of_barrier(barrier)

    def totals(self) -> dict[OperatorUid, Totals]:
        """Return the counters per operator since the driver started."""
        return self._totals

    # Parts.

    def _runs(self, uid: OperatorUid) -> bool:
        return uid in self._operators and self._query_of[uid].running

    def _next_barrier(self) -> BarrierId:
        self._barriers += 1
        return BarrierId(self._barriers)

    def _current(self, uid: OperatorUid, incarnation: int) -> OperatorRun | None:
        # Also when its query has failed: the next run discards everything sent until then, and a full channel does not
        # grow.
        operator = self._operators.get(uid)
        is_current = operator is not None and operator.channel.is_current(incarnation) and self._query_of[uid].running
        return operator if is_current else None

    def _boundary(self, query: QueryInCore) -> Epoch:
        # All operators of a query are cut at the same epoch, whichever of them has begun it already.
        epochs = [epoch.epoch for uid in query.specs if (epoch := self._operators[uid].epoch) is not None]
        return max([query.committed, *epochs])

    def _refusal(self, attempt: AttemptId) -> str | None:
        # The one door for staleness. Returns why the attempt must fail, or None.
        query = self._query_of.get(attempt.operator)
        if attempt.generation != self.generation:
            return f"it belongs to generation {attempt.generation} of the driver; this is generation {self.generation}"
        if query is None:
            return "its operator belongs to no query that was started with job.start()"
        if attempt.query_id != query.query_id:
            return (
                f"its operator belongs to query {query.name!r}, but Spark runs it in another one (id "
                f"{attempt.query_id}); start the query with job.start(), and use the operator's result in one query "
                "only"
            )
        if not 0 <= attempt.subtask < query.specs[attempt.operator].parallelism:
            return f"operator {attempt.operator!r} has no subtask {attempt.subtask}"
        if attempt.run in query.ended_runs or attempt.task_attempt <= query.attempt_floor:
            return "it belongs to a run of the query that has ended"
        if not query.running:
            return "the query is being restarted"
        if attempt.epoch <= query.committed:
            return f"epoch {attempt.epoch} is over; epoch {query.committed} is committed"
        return None

    def _refuse(self, attempt: AttemptId, token: Token, reason: str) -> None:
        if (totals := self._totals.get(attempt.operator)) is not None:
            totals.stale_refused += 1
        self._batch.answers.append(messages.Answered(token, messages.Refused(reason)))

    def _settle(self, query: QueryInCore, committed: Epoch, run: RunId | None, now: float) -> bool:
        operators = [self._operators[uid] for uid in query.specs]
        # Where another driver has committed what this one runs, "not acknowledged" does not mean "no rows".
        if run is None or any(operator.is_run_by_another(run, committed) for operator in operators):
            self._fail(query.name, CommittedElsewhere(query.name, committed))
            return False
        for operator in operators:
            if (error := operator.check_consumed(committed)) is not None:
                self._fail(query.name, error)
                return False
        for operator in operators:
            operator.settle(committed, now, self._batch)
        self._checkpoints.collect(self._batch)
        query.committed = committed
        query.rerun = None
        return True

    def _fail(self, name: QueryName, error: CoordControlError) -> None:
        # Counted once until the next start (C16): until then the query's attempts are refused.
        query = self._queries[name]
        if query.running:
            query.running = False
            self._batch.notices.append(messages.FailQuery(name, error))
