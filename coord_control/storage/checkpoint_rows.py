"""The rows of checkpoints, as records.

Threads: any; pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from coord_control.storage import tables
from coord_control.storage.records import CheckpointKind, CheckpointRecord, CheckpointState, QueryCheckpoint

__all__ = ["checkpoint_record"]

#: Columns that are a field of the same name, with the same value.
_PLAIN: Final = tuple(
    name
    for name in tables.checkpoints.c.keys()
    if name not in ("job_id", "checkpoint", "kind", "state", "settled_sequence")
)


def checkpoint_record(job: str, row: Row[Any], queries: Sequence[Any] | None = None) -> CheckpointRecord:
    """Return a checkpoint of ``job`` as its row says; ``queries``: what its details say, when they were read."""
    values = row._mapping
    return CheckpointRecord(
        **{name: values[name] for name in _PLAIN},
        job=job,
        id=row.checkpoint,
        kind=CheckpointKind(row.kind),
        state=CheckpointState(row.state),
        queries=msgspec.convert(queries or [], tuple[QueryCheckpoint, ...]),
        sequence=row.settled_sequence,
    )
