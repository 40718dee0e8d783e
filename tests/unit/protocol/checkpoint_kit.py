"""What the tests of checkpoints under way have in common: stages with several operators or queries, short words."""

from __future__ import annotations

from collections.abc import Iterable

from coord_control.errors import StoreUnavailable
from coord_control.ids import BarrierId, CheckpointId, Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.messages import (
    Batch,
    CheckpointFailed,
    QueryCaptured,
)
from coord_control.protocol.recovery import Facts
from tests.core_kit import OP, QUERY, Stage, names, of_type, spec

S0, S1 = SubtaskIndex(0), SubtaskIndex(1)
A, B = OperatorUid("a"), OperatorUid("b")
OTHER = QueryName("other")
C1, C2 = CheckpointId(1), CheckpointId(2)
LOST = StoreUnavailable("/store", "write", "disk full")


def started(*operators: str, parallelism: int = 1) -> Stage:
    stage = Stage(specs=[spec(uid, parallelism) for uid in operators or (OP,)])
    stage.start()
    return stage


def with_another_query() -> Stage:
    """Query ``q`` with operator ``a``, and query ``other`` with operator ``b``."""
    stage = Stage(specs=[spec("a", 1)])
    stage.core.add_query(OTHER, "id-of-other", [spec("b", 1)])
    stage.start()
    stage.core.start_run(OTHER, Facts((), Epoch(-1), Epoch(-1)), 0.0)
    stage.execute()
    return stage


def trigger(stage: Stage, checkpoint: int = 1, queries: Iterable[QueryName] = (QUERY, OTHER)) -> BarrierId:
    return stage.core.trigger_checkpoint(CheckpointId(checkpoint), queries, stage.now)


def captured(batch: Batch) -> QueryCaptured:
    [notice] = of_type(QueryCaptured, batch)
    return notice


def failed(batch: Batch) -> CheckpointFailed:
    [notice] = of_type(CheckpointFailed, batch)
    return notice


def cut(batch: Batch, operator: str = OP) -> OperatorCut:
    return next(cut for cut in captured(batch).cuts if cut.operator == operator)


def mailboxes(stage: Stage, operator: str = OP) -> list[str]:
    run = next(run for run in stage.core.operators() if run.spec.uid == operator)
    return [names(gateway.mailbox) for gateway in run.channel.gateways]


def begun(stage: Stage, epoch: int, *operators: str) -> None:
    """Subtask 0 of each operator is in ``epoch``; its task attempt has the number of the epoch, times ten."""
    for operator in operators or (OP,):
        stage.hello(0, epoch, epoch * 10, operator)
        stage.snapshot(f"S{epoch}".encode(), operator)


def ended(stage: Stage, epoch: int, *operators: str, outbox: str = "") -> Batch:
    for operator in operators or (OP,):
        stage.ack(0, epoch, epoch * 10, f"s{epoch}".encode(), outbox, operator)
    return stage.commit(epoch)
