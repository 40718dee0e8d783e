"""The statistics of a complete checkpoint, read from its metadata: the history of a job can be filled from its storage.

Threads: functions of values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from coord_control.conversion import convert
from coord_control.durable.checkpoints.metadata_file import (
    CheckpointMetadata,
    OperatorSnapshot,
    QuerySnapshot,
    encode_metadata,
)
from coord_control.durable.checkpoints.query_snapshot import offsets_by_source
from coord_control.ids import CheckpointKind, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.cut import OperatorCut, SubtaskCut
from coord_control.protocol.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    QueryStatistics,
    offsets_within_limit,
    operator_statistics,
)

__all__ = ["stored_statistics"]


def stored_statistics(metadata: CheckpointMetadata, path: str) -> CheckpointStatistics:
    """Return the statistics of the checkpoint in the folder ``path``.

    What its driver measured is part of the metadata. A savepoint of a job that did not run has no measurements: then
    sizes are those of what the checkpoint holds, and times are unknown.

    Raises:
        DamagedRecord, UnsupportedFormat: the state of a coordinator cannot be taken apart.
    """
    trigger = metadata.trigger
    return CheckpointStatistics(
        checkpoint=metadata.checkpoint,
        kind=CheckpointKind(metadata.kind),
        triggered_at_seconds=metadata.triggered_at.timestamp(),
        label=metadata.label,
        key=trigger.key,
        cause=trigger.cause,
        requested_by=trigger.details.get("requested_by"),
        status=CheckpointStatus.COMPLETED,
        duration_seconds=max(0.0, (metadata.completed_at - metadata.triggered_at).total_seconds()),
        path=path,
        metadata_bytes=len(encode_metadata(metadata)),
        queries=_measured(metadata.statistics) or _held(metadata),
    )


def _measured(statistics: Mapping[str, Any]) -> tuple[QueryStatistics, ...]:
    # Nothing depends on measurements, so those of another release are as good as none.
    try:
        return convert(statistics.get("queries", ()), tuple[QueryStatistics, ...])
    except msgspec.ValidationError:
        return ()


def _held(metadata: CheckpointMetadata) -> tuple[QueryStatistics, ...]:
    offsets = offsets_within_limit({name: offsets_by_source(query) for name, query in metadata.queries.items()})
    return tuple(_query(metadata, name, query, offsets[name]) for name, query in sorted(metadata.queries.items()))


def _query(
    metadata: CheckpointMetadata, name: QueryName, query: QuerySnapshot, offsets: Mapping[str, Any]
) -> QueryStatistics:
    return QueryStatistics(
        query=name,
        boundary=query.epoch,
        files=len(query.files),
        file_bytes=query.size,
        operators=tuple(
            operator_statistics(_at_rest(uid, operator))
            for uid, operator in sorted(metadata.operators.items())
            if operator.query == name
        ),
        offsets=offsets,
    )


def _at_rest(uid: OperatorUid, operator: OperatorSnapshot) -> OperatorCut:
    # Nothing ran, so every subtask was at the boundary when the checkpoint was triggered.
    subtasks = tuple(SubtaskCut(SubtaskIndex(subtask)) for subtask in range(operator.parallelism))
    return replace(operator.cut(uid), subtasks=subtasks)
