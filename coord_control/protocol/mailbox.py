"""Read, or drop, the events that wait for the subtasks of an operator that does not run.

Both look at the newest begin record, as a recovery does: its inputs that were not consumed return to the mailboxes, and
what a checkpoint held stands behind them. What the coordinator sent later is discarded; it will decide again.

Inputs that a durable ack has consumed are no mailbox. They stay in the record even if the ack's epoch was only planned:
it may be run again, and every attempt must see the same (invariant I3). Without an ack no attempt has completed, so
nothing visible rests on them.
"""

from __future__ import annotations

from dataclasses import replace

from coord_control.ids import OperatorUid, SubtaskIndex
from coord_control.protocol.records import Begin, EventBatch
from coord_control.protocol.recovery import Facts, History, Inputs, in_sequence

__all__ = ["drop", "mailboxes"]


def mailboxes(facts: Facts, operator: OperatorUid) -> Inputs:
    """Return what waits for each subtask; those without events are left out."""
    begin, unconsumed = _newest(facts, operator)
    return {} if begin is None else in_sequence(unconsumed, begin.held)


def drop(facts: Facts, operator: OperatorUid, subtask: SubtaskIndex) -> tuple[Begin, tuple[EventBatch, ...]] | None:
    """Drop the events that wait for a subtask.

    Returns:
        The record that replaces the newest begin record once it is durable, and what is gone then, if anything waits.
    """
    begin, unconsumed = _newest(facts, operator)
    if begin is None:
        return None
    dropped = (*unconsumed.get(subtask, ()), *begin.held.get(subtask, ()))
    if not dropped:
        return None
    inputs = {other: batches for other, batches in begin.inputs.items() if other != subtask or other not in unconsumed}
    held = {other: batches for other, batches in begin.held.items() if other != subtask}
    return replace(begin, inputs=inputs, held=held), dropped


def _newest(facts: Facts, operator: OperatorUid) -> tuple[Begin | None, Inputs]:
    history = History.of(facts.records)
    # Of epochs that Spark has not planned nothing counts.
    begins = {epoch: begin for epoch, begin in history.begins.get(operator, {}).items() if epoch <= facts.planned}
    if not begins:
        return None, {}
    begin = begins[max(begins)]
    return begin, {
        subtask: batches
        for subtask, batches in begin.inputs.items()
        if begin.epoch not in history.acks.get((operator, subtask), {})
    }
