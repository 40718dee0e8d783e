"""The results of tasks: flat dictionaries that JSON can hold, with the names of Dagster's metadata.

Durations are in seconds, sizes in bytes, times are ISO 8601. Unknown values are left out. What Dagster shows as a table
has one entry per value here: ``query/<name>/<measure>`` and ``live/<name>/<field>``.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias

from coord_control.control.commands import LiveResult, RestoreResult, SendEventResult
from coord_control.control.measure import Place, shown
from coord_control.control.measures import QUERY, query_parts
from coord_control.control.metadata_values import checkpoint_values
from coord_control.storage.records import CheckpointRecord, JobRecord

__all__ = ["Metadata", "checkpoint_metadata", "event_metadata", "live_metadata", "restore_metadata"]

Metadata: TypeAlias = dict[str, str | int | float | bool]


def checkpoint_metadata(record: CheckpointRecord, job: JobRecord | None = None) -> Metadata:
    """Return the metadata of a completed checkpoint or savepoint.

    Args:
        record: the checkpoint, with its queries if they are known.
        job: the job, for its live values and the number of restarts of its queries.
    """
    queries = {
        f"query/{part.query.query}/{measure.name}": measure.value(part)
        for part in query_parts(record)
        for measure in shown(QUERY, Place.DAGSTER)
        if measure.name != "query"
    }
    restore = shlex.join(["coordctl", "restore", record.job, str(record.id)])
    return _entries({"job": record.job, **checkpoint_values(record, job), **queries, "restore_command": restore})


def restore_metadata(way: str, result: RestoreResult) -> Metadata:
    """Return the metadata of a restore.

    Args:
        way: ``driver`` or ``storage``.
    """
    return _entries(
        {
            "way": way,
            "job": result.job,
            "checkpoint_id": result.checkpoint,
            "path": result.path,
            "linked_bytes": result.linked_bytes,
            "copied_bytes": result.copied_bytes,
        }
    )


def event_metadata(operator: str, event_type: str, result: SendEventResult) -> Metadata:
    """Return the metadata of a control event that has taken effect."""
    return _entries({"number": result.number, "operator": operator, "event_type": event_type})


def live_metadata(result: LiveResult) -> Metadata:
    """Return the metadata of a changed live value."""
    fields = {f"live/{result.name}/{name}": value for name, value in result.value.items()}
    return _entries({"live_value": result.name, "version": result.version, "by": result.by, **fields})


def _entries(values: Mapping[str, object]) -> Metadata:
    """Return what JSON can hold; None, empty strings, infinity and NaN are left out."""
    made = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in made.items() if value is not None and value != ""}


def _plain(value: object) -> str | int | float | bool | None:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return value.isoformat() if isinstance(value, datetime) else json.dumps(value, ensure_ascii=False)
