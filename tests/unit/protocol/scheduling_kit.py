"""Short words for the scheduler's tests: requests, a scheduler at work, and its effects as a line of text."""

from __future__ import annotations

from typing import Any

from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.scheduler import (
    AbortCheckpoint,
    CheckpointScheduler,
    Effect,
    FailJob,
    Finished,
    StartCheckpoint,
)
from coord_control.protocol.scheduler.tickets import CheckpointRequest, Ticket

MANUAL = CheckpointRequest()
PERIODIC = CheckpointRequest(periodic=True, cause="outside")
SAVEPOINT = CheckpointRequest(kind=CheckpointKind.SAVEPOINT)


def active(now: float = 0.0, **options: Any) -> CheckpointScheduler:
    """A scheduler of a job whose queries run."""
    scheduler = CheckpointScheduler(CheckpointOptions(**options))
    scheduler.resume(now)
    return scheduler


def said(scheduler: CheckpointScheduler) -> str:
    """Take the effects, in short: ``start 1``, ``abort 1 expired``, ``done 1``, ``failed 1 expired``, ``fail job``.

    Those that never started are named by their tickets: ``refused #3 queue_full``.
    """
    return ", ".join(map(_said, scheduler.take()))


def _said(effect: Effect) -> str:
    if isinstance(effect, StartCheckpoint):
        return f"start {effect.checkpoint}"
    if isinstance(effect, AbortCheckpoint):
        return f"abort {effect.checkpoint} {effect.reason.code}"
    if isinstance(effect, FailJob):
        return "fail job"
    assert isinstance(effect, Finished)
    ticket, outcome = effect.ticket, effect.ticket.outcome
    assert outcome is not None
    if outcome.reason is None:
        return f"done {ticket.checkpoint}"
    code = outcome.reason.code
    return f"refused #{ticket.id} {code}" if ticket.checkpoint is None else f"failed {ticket.checkpoint} {code}"


def reason(ticket: Ticket) -> FailureReason | None:
    assert ticket.outcome is not None
    return ticket.outcome.reason


def complete(scheduler: CheckpointScheduler, number: int, now: float) -> Ticket:
    return scheduler.completed(CheckpointId(number), now)


def fail(scheduler: CheckpointScheduler, number: int, now: float, why: FailureReason) -> Ticket:
    return scheduler.failed(CheckpointId(number), why, now)
