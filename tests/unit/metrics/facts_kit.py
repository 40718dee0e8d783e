"""What a job tells its listeners, for the tests of its metrics: a checkpoint at any stage, and a recovery."""

from __future__ import annotations

from typing import Any, Final

from coord_control.ids import CheckpointId, CheckpointKind, Generation, OperatorUid, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job_facts import RecoveryCause, RecoveryFact
from coord_control.protocol.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    OperatorStatistics,
    QueryStatistics,
    SubtaskStatistics,
)
from tests.core_kit import OP, QUERY

__all__ = ["UID", "ended", "recovery", "statistics"]

UID: Final = OperatorUid(OP)


def statistics(checkpoint: int = 1, **changes: Any) -> CheckpointStatistics:
    """One under way, triggered at 2000 seconds, whose subtask had four blocked events."""
    subtask = SubtaskStatistics(0, 1.0, 10, blocked_events=4, blocked_seconds=0.5, down_bytes=3, up_bytes=2)  # type: ignore[arg-type]
    operator = OperatorStatistics(UID, 0.1, 0.3, 20, (subtask,))
    query = QueryStatistics(QUERY, file_bytes=100, linked_bytes=60, copied_bytes=40, operators=(operator,))
    values: dict[str, Any] = {
        "checkpoint": CheckpointId(checkpoint),
        "kind": CheckpointKind.CHECKPOINT,
        "triggered_at_seconds": 2000.0,
        "metadata_bytes": 7,
        "queries": (query,),
    }
    return CheckpointStatistics(**{**values, **changes})


def ended(checkpoint: int = 1, reason: FailureReason | None = None, **changes: Any) -> CheckpointStatistics:
    """The same, two seconds later; without a reason it is complete."""
    status = CheckpointStatus.COMPLETED if reason is None else CheckpointStatus.FAILED
    return statistics(checkpoint, status=status, reason=reason, duration_seconds=2.0, **changes)


def recovery(cause: RecoveryCause, **changes: Any) -> RecoveryFact:
    """One that began at 3000 seconds and took 0.7."""
    values: dict[str, Any] = {
        "cause": cause,
        "what": "",
        "query": QueryName(QUERY),
        "generation": Generation(3),
        "from_epoch": 4,
        "epochs_again": 2,
        "started_at_seconds": 3000.0,
        "duration_seconds": 0.7,
    }
    return RecoveryFact(**{**values, **changes})
