"""When checkpoints and savepoints start, and when they must end: the queue, the clockwork, and what counts as failure.

```
submit --> queue: savepoints, people's, schedules' --> admission --> Start ... completed/failed --> Finished
              ^                                            |                    ^
        tick: the period                       max_concurrent, min_pause        +-- Abort: timeout, request, restart
```

- Savepoints are always admitted. At most ``max_concurrent`` checkpoints run; one that is being aborted still does.
- One that was completed in parallel with running epochs may request a rest, a fraction of a second in which nothing
  starts.
- A periodic one never starts within the minimal pause. At most one waits for its turn: a period that finds it waiting
  is left out.
- While queries restart nothing starts. Running checkpoints are aborted, waiting periodic ones are cancelled, other
  requests wait. Periodic checkpoints resume one minimal pause after the restart.
- Requests with the same key are one, also after its end (:mod:`.ticket_book`).
- Every ticket ends once, with one :class:`Finished`.

Inputs are calls with ``now`` in seconds of any monotonic clock. What must happen because of them is collected in order,
and :meth:`CheckpointScheduler.take` hands it out. Between the start of a checkpoint and the report of its end the
driver works on it alone; ids come from here, and only grow (rule C9).

Single-threaded; has the same owner as the protocol core.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from coord_control.errors import CoordControlError, InvalidTransition, TooManyFailedCheckpoints
from coord_control.ids import CheckpointId
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.pacing import Pacing
from coord_control.protocol.scheduler.ticket_book import TicketBook
from coord_control.protocol.scheduler.tickets import CheckpointRequest, Ticket, TicketId, TicketInput, TicketState

__all__ = [
    "TRANSITIONS",
    "AbortCheckpoint",
    "CheckpointScheduler",
    "Effect",
    "FailJob",
    "Finished",
    "Input",
    "StartCheckpoint",
    "State",
]

_FIRST: Final = CheckpointId(1)
_PERIOD: Final = CheckpointRequest(periodic=True, cause="interval")


class State(enum.Enum):
    """Whether checkpoints can be taken."""

    STARTING = "starting"  #: not all queries have been started; requests wait
    ACTIVE = "active"  #: every query runs, pauses or has ended: it can be cut as it is
    SUSPENDED = "suspended"  #: a query is being restarted; requests wait
    CLOSED = "closed"  #: the job ends; requests are refused


class Input(enum.Enum):
    RESUME = "resume"
    SUSPEND = "suspend"
    SHUTDOWN = "shutdown"


#: Every legal pair. A pair that is not here raises and changes nothing.
TRANSITIONS: Final[Mapping[tuple[State, Input], State]] = {
    (State.STARTING, Input.RESUME): State.ACTIVE,
    (State.STARTING, Input.SUSPEND): State.STARTING,  # a query fails before all have run
    (State.ACTIVE, Input.SUSPEND): State.SUSPENDED,
    (State.SUSPENDED, Input.SUSPEND): State.SUSPENDED,  # another query fails meanwhile
    (State.SUSPENDED, Input.RESUME): State.ACTIVE,
    (State.STARTING, Input.SHUTDOWN): State.CLOSED,
    (State.ACTIVE, Input.SHUTDOWN): State.CLOSED,
    (State.SUSPENDED, Input.SHUTDOWN): State.CLOSED,
    (State.CLOSED, Input.SHUTDOWN): State.CLOSED,
    (State.CLOSED, Input.SUSPEND): State.CLOSED,  # late news: a query fails while the job ends
}


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    """Begin: claim the id on storage, ask the coordinators; then report the end exactly once."""

    ticket: Ticket

    @property
    def checkpoint(self) -> CheckpointId:
        assert self.ticket.checkpoint is not None, "given when it starts"
        return self.ticket.checkpoint


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Abort a checkpoint, unless its metadata is already written; then report the end, as always."""

    checkpoint: CheckpointId
    reason: FailureReason
    detail: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A ticket has its outcome: notify those that wait for it."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class FailJob:
    """Too many checkpoints in a row have failed."""

    error: CoordControlError


Effect: TypeAlias = StartCheckpoint | AbortCheckpoint | Finished | FailJob


class CheckpointScheduler:
    """The checkpoints and savepoints of one job, in one driver."""

    __slots__ = (
        "_book",
        "_effects",
        "_failures",
        "_first_delay",
        "_last_success",
        "_next_checkpoint",
        "_options",
        "_pacing",
        "_state",
    )

    def __init__(
        self,
        options: CheckpointOptions,
        *,
        next_checkpoint: CheckpointId = _FIRST,
        first_delay_seconds: float | None = None,
    ) -> None:
        """Nothing starts before the first :meth:`resume`.

        Args:
            next_checkpoint: above every id that storage has seen.
            first_delay_seconds: from the first resume to the first periodic checkpoint, drawn by the driver so that
                jobs that start together do not checkpoint together; None for one interval.
        """
        self._options = options
        self._first_delay = first_delay_seconds
        self._pacing = Pacing(options)
        self._state = State.STARTING
        self._book = TicketBook()
        self._next_checkpoint = next_checkpoint
        self._last_success = CheckpointId(0)
        self._failures = 0
        self._effects: list[Effect] = []

    # What comes out.

    def take(self) -> list[Effect]:
        """Take what must happen now, in order."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def has_output(self) -> bool:
        """Whether :meth:`take` would return anything."""
        return bool(self._effects)

    def next_wakeup(self) -> float | None:
        """Return the latest time for the next :meth:`tick`, or None if nothing is waited for."""
        times = [self._deadline(ticket) for ticket in self.running if ticket.state is TicketState.RUNNING]
        if self._state is State.ACTIVE:
            if self._pacing.next_due is not None:
                times.append(self._pacing.next_due)
            first = self._book.first
            # A first one that has room and does not start waits for the pause, or for the rest.
            if first is not None and self._has_room(first.request):
                opens_at = self._pacing.opens_at(periodic=first.request.periodic)
                times += [] if opens_at is None else [opens_at]
        return min(times, default=None)

    @property
    def state(self) -> State:
        return self._state

    @property
    def queued(self) -> tuple[Ticket, ...]:
        """What waits, in the order in which it starts."""
        return self._book.queued

    @property
    def running(self) -> tuple[Ticket, ...]:
        """What was started and has not ended, oldest first."""
        return self._book.running

    @property
    def is_idle(self) -> bool:
        """Whether every ticket has its outcome."""
        return not self._book.pending

    def by_key(self, key: str) -> Ticket | None:
        """Return the ticket with this key, or None if there was none, or it is forgotten."""
        return self._book.by_key(key)

    def by_checkpoint(self, checkpoint: CheckpointId) -> Ticket | None:
        """Return the ticket of a checkpoint, or None if the checkpoint is not in progress."""
        return self._book.by_checkpoint(checkpoint)

    # What people and the clock want.

    def submit(self, request: CheckpointRequest, now: float) -> Ticket:
        """Request a checkpoint or savepoint.

        Returns:
            Its ticket, which may be running or, when it was refused, have its outcome. The ticket of an earlier request
            with the same key instead of a new one, with its outcome if it has ended, which is not reported again.
        """
        earlier = self.by_key(request.key) if request.key is not None else None
        if earlier is not None and earlier.request.is_same(request):
            return earlier
        ticket = self._book.new(request, now)
        refusal = FailureReason.KEY_REUSED if earlier is not None else self._refusal(request, now)
        if refusal is not None:
            return self._finished(ticket.aborted(refusal, "", now))
        self._book.enqueue(ticket)
        self._admit(now)
        refused = self._shorten_queue(now)
        return refused if refused is not None and refused.id == ticket.id else self._book.latest(ticket)

    def abort(
        self, ticket: TicketId, now: float, reason: FailureReason = FailureReason.ABORTED, detail: str = ""
    ) -> bool:
        """Cancel a ticket. Return False if it has ended, or is already being aborted.

        A queued ticket ends now; a running one when the driver has reported its end.
        """
        pending = self._book.by_id(ticket)
        return pending is not None and self._abort(pending, reason, detail, now)

    def tick(self, now: float) -> None:
        """Time has passed: abort what took too long, and start what is due."""
        for ticket in self.running:
            if now >= self._deadline(ticket):
                self._abort(ticket, FailureReason.EXPIRED, f"after {self._limit(ticket):g} s", now)
        if self._pacing.take_due(now) and not any(ticket.request == _PERIOD for ticket in self.queued):
            self._book.enqueue(self._book.new(_PERIOD, now))
        self._admit(now)
        self._shorten_queue(now)

    # What the driver reports.

    def completed(
        self, checkpoint: CheckpointId, now: float, path: str | None = None, *, rest_seconds: float = 0.0
    ) -> Ticket:
        """End a running checkpoint as completed: its metadata is written, at ``path``.

        Args:
            rest_seconds: how long nothing else starts.

        Raises:
            InvalidTransition: no checkpoint with this id is in progress.
        """
        ticket = self._under_way(checkpoint, TicketInput.COMPLETE).completed(path, now)
        self._last_success = max(self._last_success, checkpoint)
        self._failures = 0
        self._end(ticket, now, rest_seconds)
        self._admit(now)
        return ticket

    def failed(self, checkpoint: CheckpointId, reason: FailureReason, now: float, detail: str = "") -> Ticket:
        """End a running checkpoint as failed: its metadata was not written, its gateways are open.

        Raises:
            InvalidTransition: no checkpoint with this id is in progress.
        """
        ticket = self._under_way(checkpoint, TicketInput.FAIL).failed(reason, detail, now)
        self._end(ticket, now)
        self._count(checkpoint, ticket)
        self._admit(now)
        return ticket

    def suspend(self, now: float, reason: FailureReason = FailureReason.QUERY_RESTARTING, detail: str = "") -> None:
        """Suspend while a query restarts: running checkpoints are aborted, requests of people wait."""
        self._step(Input.SUSPEND)
        self._pacing.stop()
        for ticket in self._book.pending:
            if ticket.state is not TicketState.QUEUED or ticket.request.periodic:
                self._abort(ticket, reason, detail, now)

    def resume(self, now: float) -> None:
        """Resume: every query of the job has been started, and none is being restarted.

        Raises:
            InvalidTransition: it was so before, or the job ends.
        """
        is_first = self._state is State.STARTING
        self._step(Input.RESUME)
        if is_first:
            self._pacing.begin(now, self._first_delay)
        else:
            self._pacing.restart(now)
        self._admit(now)

    def shutdown(self, now: float, detail: str = "") -> None:
        """End the job's checkpoints: nothing starts any more, what waits is refused, what runs is aborted.
        Repeatable."""
        self._step(Input.SHUTDOWN)
        self._pacing.stop()
        for ticket in self._book.pending:
            self._abort(ticket, FailureReason.JOB_ENDING, detail, now)

    # What storage knows.

    def remember(self, request: CheckpointRequest, checkpoint: CheckpointId, now: float, path: str | None) -> None:
        """Add a checkpoint that an earlier driver completed: a repeated request returns it, and its id is not used
        again. Call oldest first."""
        self.skip(checkpoint)
        self._book.remember(self._book.new(request, now).started(checkpoint, now).completed(path, now))

    def forget(self, checkpoint: CheckpointId) -> None:
        """Forget a completed checkpoint that was removed: a request that repeats its key gets another one."""
        self._book.forget(checkpoint)

    def skip(self, checkpoint: CheckpointId) -> None:
        """Ids up to this one are taken."""
        self._next_checkpoint = max(self._next_checkpoint, CheckpointId(checkpoint + 1))

    # Inside.

    def _step(self, input_: Input) -> None:
        try:
            self._state = TRANSITIONS[self._state, input_]
        except KeyError:
            raise InvalidTransition("checkpoint scheduler", self._state, input_) from None

    def _refusal(self, request: CheckpointRequest, now: float) -> FailureReason | None:
        if self._state is State.CLOSED:
            return FailureReason.JOB_ENDING
        if request.periodic and self._state is not State.ACTIVE:
            return FailureReason.NOT_RUNNING
        if request.periodic and self._pacing.is_pause(now):
            return FailureReason.MIN_PAUSE
        return None

    def _shorten_queue(self, now: float) -> Ticket | None:
        """Refuse the last of a queue that has become too long by one."""
        queued = self._book.queued
        if len(queued) <= self._options.queue_limit:
            return None
        refused = queued[-1].aborted(FailureReason.QUEUE_FULL, "", now)
        self._book.end(refused)
        return self._finished(refused)

    def _admit(self, now: float) -> None:
        """Start from the front of the queue: if the head cannot start, nothing behind it can."""
        while self._state is State.ACTIVE and (first := self._book.first) is not None:
            opens_at = self._pacing.opens_at(periodic=first.request.periodic)
            if not self._has_room(first.request) or (opens_at is not None and now < opens_at):
                return
            started = self._book.start_first(self._next_checkpoint, now)
            self._next_checkpoint = CheckpointId(self._next_checkpoint + 1)
            self._effects.append(StartCheckpoint(started))

    def _has_room(self, request: CheckpointRequest) -> bool:
        if request.is_savepoint:
            return True
        running = sum(not ticket.request.is_savepoint for ticket in self.running)
        # A pause begins with the end of what runs.
        return running < (1 if request.periodic and self._pacing.has_pause else self._options.max_concurrent)

    def _deadline(self, ticket: Ticket) -> float:
        assert ticket.started_at is not None, "running ones were started"
        return ticket.started_at + self._limit(ticket)

    def _limit(self, ticket: Ticket) -> float:
        own = ticket.request.timeout_seconds
        return self._options.timeout_seconds if own is None else own

    def _abort(self, ticket: Ticket, reason: FailureReason, detail: str, now: float) -> bool:
        """Cancel a pending ticket. Return False if it is already being aborted."""
        aborted = ticket.aborted(reason, detail, now)
        if aborted.state is ticket.state:
            return False
        if aborted.checkpoint is None:
            self._book.end(aborted)
            self._finished(aborted)
        else:
            self._book.update(aborted)
            self._effects.append(AbortCheckpoint(aborted.checkpoint, reason, detail))
        return True

    def _under_way(self, checkpoint: CheckpointId, input_: TicketInput) -> Ticket:
        ticket = self.by_checkpoint(checkpoint)
        if ticket is None:
            state = "UNSEEN" if checkpoint >= self._next_checkpoint else TicketState.ENDED
            raise InvalidTransition("checkpoint", state, f"{input_.name} of checkpoint {checkpoint}")
        return ticket

    def _end(self, ticket: Ticket, now: float, rest_seconds: float = 0.0) -> None:
        """End a checkpoint that was started."""
        self._book.end(ticket)
        self._pacing.ended(now, rest_seconds)
        self._finished(ticket)

    def _finished(self, ticket: Ticket) -> Ticket:
        self._effects.append(Finished(ticket))
        return ticket

    def _count(self, checkpoint: CheckpointId, ticket: Ticket) -> None:
        """Count a failure: each once, savepoints never, and none that an older start than the last success explains."""
        assert ticket.outcome is not None, "it has failed"
        reason, tolerable = ticket.outcome.reason, self._options.tolerable_consecutive_failures
        assert reason is not None, "it has failed"
        if ticket.request.is_savepoint or not reason.counts or checkpoint < self._last_success:
            return
        self._failures += 1
        if tolerable is not None and self._failures > tolerable:
            error = TooManyFailedCheckpoints(self._failures, f"checkpoint {checkpoint}: {ticket.outcome.message}")
            self._failures = 0
            self._effects.append(FailJob(error))
