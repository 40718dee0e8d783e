"""An operator without a job around it, for the tests of what one operator does in one run."""

from __future__ import annotations

import itertools

from coord_control.ids import NO_CHECKPOINT, BarrierId, Epoch, SubtaskIndex
from coord_control.protocol.messages import Acknowledge, AskSnapshot, Batch, Measurements
from coord_control.protocol.operator import OperatorRun, OperatorSpec, Totals
from coord_control.protocol.records import Record
from coord_control.protocol.recovery import RecoveredOperator
from tests.core_kit import QUERY, attempt, events, of_type, spec

EMPTY = RecoveredOperator({}, None, NO_CHECKPOINT, (), {}, None)


class Runner:
    """An operator whose batches are taken after every call; its coordinator answers what it was asked last."""

    def __init__(self, recovered: RecoveredOperator = EMPTY, operator_spec: OperatorSpec | None = None) -> None:
        self.totals = Totals()
        ids = itertools.count(1)
        self.run = OperatorRun(operator_spec or spec(), QUERY, recovered, 1, self.totals, lambda: BarrierId(next(ids)))
        self.asked = BarrierId(0)

    def hello(self, subtask: int, epoch: int, task: int, now: float = 0.0) -> Batch:
        batch = Batch()
        self.run.hello(attempt(subtask, epoch, task), task, now, batch)
        for ask in of_type(AskSnapshot, batch):
            self.asked = ask.barrier
        return batch

    def snapshot(self, state: bytes = b"S") -> Batch:
        batch = Batch()
        self.run.snapshot_completed(self.asked, state, 0.0, batch)
        return batch

    def ack(
        self,
        subtask: int,
        epoch: int,
        task: int,
        state: bytes | None = None,
        outbox: str = "",
        measured: Measurements | None = None,
    ) -> tuple[str | None, Batch]:
        batch = Batch()
        message = Acknowledge(attempt(subtask, epoch, task), state, events(outbox), measured or Measurements())
        return self.run.acknowledge(message, task, 0.0, batch), batch

    def ended(self, subtask: int, epoch: int, task: int, reason: str = "it raised") -> Batch:
        batch = Batch()
        self.run.attempt_ended(attempt(subtask, epoch, task), reason, batch)
        return batch

    def settle(self, epoch: int) -> Batch:
        batch = Batch()
        assert self.run.check_consumed(Epoch(epoch)) is None
        self.run.settle(Epoch(epoch), 0.0, batch)
        return batch

    def send(self, subtask: int, words: str) -> None:
        for sent in events(words):
            self.run.send(SubtaskIndex(subtask), sent, 0.0)

    def epoch(self, epoch: int, state: bytes = b"S", outbox: str = "") -> Batch:
        """One whole epoch of subtask 0; returns what settling put out."""
        self.hello(0, epoch, task=epoch)
        self.snapshot(state)
        assert self.ack(0, epoch, task=epoch, outbox=outbox)[0] is None
        return self.settle(epoch)


def records(batch: Batch) -> list[Record]:
    assert all(persist.query == QUERY for persist in batch.persist)
    return [persist.record for persist in batch.persist]
