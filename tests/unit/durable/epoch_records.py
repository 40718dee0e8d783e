"""Records for tests of the epoch store: a plausible history of one operator with two subtasks."""

from __future__ import annotations

from coord_control.ids import BarrierId, Epoch, Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.records import Ack, Begin, EventBatch, Record, RunStarted

OPERATOR = OperatorUid("operator")


def begin(epoch: int) -> Begin:
    inputs = {SubtaskIndex(epoch % 2): (EventBatch(0, 1, b"{}"),)}
    return Begin(OPERATOR, Epoch(epoch), BarrierId(epoch + 1), b"S%d" % epoch, inputs)


def ack(epoch: int, subtask: int = 0, *, size: int = 0) -> Ack:
    outbox = (EventBatch(0, 1, b"{}"),) if epoch % 3 == 0 else ()
    return Ack(
        OPERATOR, SubtaskIndex(subtask), Epoch(epoch), 10 * epoch + subtask, b"s%d" % epoch + bytes(size), outbox
    )


def started(committed: int) -> RunStarted:
    return RunStarted(Generation(1), Epoch(committed), Epoch(committed))


def epoch_batches(epoch: int) -> list[list[Record]]:
    """What one epoch makes durable: the begin by itself, then the acks, one write each."""
    return [[begin(epoch)], [ack(epoch, 0), ack(epoch, 1)]]
