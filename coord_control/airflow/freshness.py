"""Whether the newest completed checkpoint of a job is young enough.

Threads: any; blocks on the control database.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from coord_control.control.client.control_client import ControlClient
from coord_control.control.wording import human_seconds
from coord_control.storage.records import CheckpointKind, CheckpointRecord, CheckpointState

__all__ = ["fresh_checkpoint"]


def fresh_checkpoint(
    client: ControlClient, job: str, kind: str | None, max_age_seconds: float, tell: Callable[[str], object]
) -> CheckpointRecord | None:
    """Return the newest completed checkpoint, or None if there is none, or it is too old.

    Args:
        kind: ``checkpoint``, ``savepoint``, or None for either.
        max_age_seconds: the largest time since its completion.
        tell: receives what was found.

    Raises:
        JobNotFound: there is no such job.
        DatabaseError: the database cannot be read.
    """
    wanted = None if kind is None else CheckpointKind(kind)
    newest = client.checkpoints(job, kind=wanted, state=CheckpointState.COMPLETED, limit=1)
    if not newest:
        tell(f"job {job} has no completed {kind or 'checkpoint'} yet")
        return None
    found = newest[0]
    assert found.finished_at is not None, "it is complete"
    age = (datetime.now(UTC) - found.finished_at).total_seconds()
    tell(f"{found.kind.value} {found.id} was completed {human_seconds(max(age, 0.0))} ago")
    return found if age <= max_age_seconds else None
