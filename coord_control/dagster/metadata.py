"""Dagster metadata of checkpoints, recoveries and queries: entries under ``coord_control/``, whose names never change.

What is measured is a number, because Dagster plots every numeric entry over time; durations are in seconds, sizes in
bytes. Numbers that name something, or are the same each time, are texts: their plots would say nothing. Unknown values
are left out, so that no plot shows a zero that was never measured.

Text from users (labels, messages, job names) goes into Markdown only as code, where it cannot become a link, an image
or markup.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar

import dagster as dg

from coord_control.control.measure import Measure, Place, Unit, shown
from coord_control.control.measures import QUERY, SUBTASK, query_parts
from coord_control.control.metadata_values import checkpoint_values, live_numbers, measured
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    JobRecord,
    LiveValueRecord,
    QueryRecord,
    RecoveryRecord,
    SubtaskRecord,
)

__all__ = [
    "NAMESPACE",
    "Metadata",
    "checkpoint_metadata",
    "entries",
    "failure_metadata",
    "query_metadata",
    "recovery_metadata",
    "table_metadata",
    "written_metadata",
]

NAMESPACE: Final = "coord_control/"
Metadata: TypeAlias = dict[str, dg.MetadataValue[Any]]

_T = TypeVar("_T")

_SUBTASK_ROWS: Final = 500
#: Numbers that name something, or are the same each time.
_NOT_PLOTTED: Final = frozenset(
    {
        "checkpoint_id",
        "failed_checkpoint_id",
        "from_checkpoint",
        "from_epoch",
        "generation",
        "passed_subtasks",
        "sequence",
        "since_epoch",
        "subtasks",
    }
)
_BACKTICKS: Final = re.compile("`+")
_Cell: TypeAlias = str | int | float | None

_LIVE_COLUMNS: Final = (
    ("name", "string", "The live value."),
    ("version", "int", "Its accepted version."),
    ("value", "string", "Its fields, as JSON."),
    ("by", "string", "Who has changed it."),
    ("at", "string", "When."),
    ("in_force", "string", "Which version each query sees, and since which epoch."),
)
_TYPES: Final = {Unit.TEXT: "string", Unit.SECONDS: "float"}  # all others are whole numbers


def checkpoint_metadata(
    record: CheckpointRecord,
    subtasks: Sequence[SubtaskRecord] = (),
    *,
    job: JobRecord | None = None,
    recovery: RecoveryRecord | None = None,
    sequence: int | None = None,
    note: str | None = None,
    reported_by: Literal["run", "sensor"] = "run",
) -> Metadata:
    """Return the metadata of a completed checkpoint or savepoint.

    Args:
        record: the checkpoint, with its queries if they are known.
        subtasks: its subtasks; if there are more than 500, the table shows the slowest ones.
        job: the job, for its live values and the number of restarts of its queries.
        recovery: the newest recovery of the job.
        sequence: the number of the change in the control database.
        note: the note in the config of the run.
    """
    values: dict[str, object] = {
        **checkpoint_values(record, job),
        "path": dg.MetadataValue.path(record.path) if record.path else None,
        "queries": _table(QUERY, query_parts(record)),
        "subtask_table": _table(SUBTASK, _shown(subtasks)),
        "restore_command": _restore_command(record),
        "recovery": None if recovery is None else _recovery_text(recovery),
        **({} if job is None else live_entries(job.live_values)),
        "note": note,
        "sequence": sequence,
        "reported_by": reported_by,
    }
    return entries(values)


def failure_metadata(record: CheckpointRecord, subtasks: Sequence[SubtaskRecord] = (), *, sequence: int) -> Metadata:
    """Return why a checkpoint or savepoint failed, and how far each of its subtasks got."""
    return entries(
        {
            "failed_checkpoint_id": record.id,
            "kind": record.kind.value,
            "label": record.label,
            "reason": record.reason,
            "message": record.message,
            **measured(record, Place.FAILURE),
            "subtask_table": _table(SUBTASK, _shown(subtasks)),
            "cause": record.cause,
            "requested_by": record.requested_by,
            "triggered_at": record.triggered_at,
            "finished_at": record.finished_at,
            "generation": record.generation,
            "sequence": sequence,
        }
    )


def recovery_metadata(record: RecoveryRecord, *, sequence: int | None = None) -> Metadata:
    """Return what was recovered from where, why, how long it took, and how much was repeated."""
    return entries(
        {
            "recovery_cause": record.cause,
            "recovery": _recovery_text(record),
            "query": record.query,
            "from_checkpoint": record.from_checkpoint,
            "from_epoch": record.from_epoch,
            "path": dg.MetadataValue.path(record.path) if record.path else None,
            "recovery_seconds": record.duration_seconds,
            "epochs_rerun": record.epochs_rerun,
            "generation": record.generation,
            "recovered_at": record.started_at,
            "message": record.message,
            "sequence": sequence,
        }
    )


def query_metadata(query: QueryRecord, live_values: Sequence[LiveValueRecord] = ()) -> Metadata:
    """Return the progress of a query as last reported by its driver.

    Args:
        live_values: of its job; those that the query has used are shown, with the epoch since which it has.
    """
    return entries(
        {
            **live_entries([each for each in live_values if query.name in each.uses], query.name),
            "epoch": query.epoch,
            "input_rows_per_second": query.input_rows_per_second,
            "rows_per_second": query.rows_per_second,
            "backlog": query.backlog,
            "backlog_of_partitions": json.dumps(query.backlog_of_partitions) if query.backlog_of_partitions else None,
            "lag_seconds": query.lag_seconds,
            "state_rows": query.state_rows,
            "watermark": query.watermark,
            "restarts": query.restarts,
        }
    )


def written_metadata(
    query: QueryRecord, *, since_epoch: int | None, rows_read: int | None, rows_written: int | None
) -> Metadata:
    """Return how far a query has written, and how much since the epoch of the last materialization."""
    return entries(
        {
            "epoch": query.epoch,
            "since_epoch": since_epoch,
            "rows_read": rows_read,
            "rows_written": rows_written,
        }
    )


def table_metadata(query: QueryRecord) -> Metadata:
    """Return the table that a query writes to, and its columns, under Dagster's own names."""
    found: Metadata = {}
    if query.table:
        found["dagster/table_name"] = dg.MetadataValue.text(query.table)
    if query.columns:
        columns = [dg.TableColumn(name, kind) for name, kind in query.columns.items()]
        found["dagster/column_schema"] = dg.MetadataValue.table_schema(dg.TableSchema(columns))
    return found


def live_entries(values: Sequence[LiveValueRecord], query: str | None = None) -> dict[str, object]:
    """Return a table of live values, and their versions, numbers and booleans to be plotted: what is accepted.

    Args:
        query: plot what this query sees in its newest epoch, or None for the job.
    """
    rows: list[dict[str, _Cell]] = [
        {
            "name": each.name,
            "version": each.version,
            "value": json.dumps(each.value, ensure_ascii=False),
            "by": each.by,
            "at": each.at.isoformat(timespec="seconds"),
            "in_force": "; ".join(_in_force(each, name) for name in each.uses if query in (None, name)),
        }
        for each in values
    ]
    found: dict[str, object] = {}
    if rows:
        schema = dg.TableSchema([dg.TableColumn(name, kind, text) for name, kind, text in _LIVE_COLUMNS])
        found["live_values"] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=schema)
    return found | live_numbers(values, query)


def _in_force(value: LiveValueRecord, query: str) -> str:
    use = value.uses[query]
    soon = "" if use.next_epoch is None else f", version {value.version} from epoch {use.next_epoch} on"
    return f"{query}: version {use.version} since epoch {use.since}{soon}"


def entries(values: Mapping[str, object]) -> Metadata:
    """Return metadata of the matching types; None, empty strings, infinity and NaN are left out."""
    made = {f"{NAMESPACE}{name}": _value(_text_of(name, value)) for name, value in values.items()}
    return {name: value for name, value in made.items() if value is not None}


def _text_of(name: str, value: object) -> object:
    return str(value) if name in _NOT_PLOTTED and value is not None else value


def _value(value: object) -> dg.MetadataValue[Any] | None:
    if isinstance(value, dg.MetadataValue):
        return value
    if isinstance(value, datetime):
        return dg.MetadataValue.timestamp(value)
    if isinstance(value, int):
        return dg.MetadataValue.int(value)
    if isinstance(value, float):
        return dg.MetadataValue.float(_rounded(value)) if math.isfinite(value) else None
    return dg.MetadataValue.text(value) if isinstance(value, str) and value else None


def _rounded(value: float) -> float:
    # Dagster shows every digit; clocks are no finer than microseconds.
    return round(value, 6)


def _table(measures: Sequence[Measure[_T]], parts: Sequence[_T]) -> dg.MetadataValue[Any] | None:
    if not parts:
        return None
    columns = shown(measures, Place.DAGSTER)
    schema = dg.TableSchema([dg.TableColumn(each.name, _TYPES.get(each.unit, "int"), each.meaning) for each in columns])
    rows = [{each.name: _cell(each.value(part)) for each in columns} for part in parts]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=schema)


def _cell(value: Any) -> _Cell:
    return _rounded(value) if isinstance(value, float) else value


def _shown(subtasks: Sequence[SubtaskRecord]) -> Sequence[SubtaskRecord]:
    if len(subtasks) > _SUBTASK_ROWS:
        subtasks = sorted(subtasks, key=lambda each: math.inf if each.passed_seconds is None else each.passed_seconds)[
            -_SUBTASK_ROWS:
        ]
    return sorted(subtasks, key=lambda each: (each.operator, each.subtask))


def _restore_command(record: CheckpointRecord) -> dg.MetadataValue[Any]:
    lines = [shlex.join(["coordctl", "restore", record.job, str(record.id)])]
    if record.kind is CheckpointKind.SAVEPOINT and record.path:
        fork = shlex.join(["coordctl", "restore", record.job, record.path, "--as", f"{record.job}-fork"])
        lines.append(f"{fork}  # as a second job, in parallel")
    lines.append("# --check shows what would happen; --roll-back-sinks sets back sinks that hold later epochs")
    return dg.MetadataValue.md(_block("\n".join(lines)))


def _recovery_text(record: RecoveryRecord) -> dg.MetadataValue[Any]:
    parts = [f"**{record.started_at:%Y-%m-%d %H:%M:%S} UTC**: {_code(record.what or record.cause)}"]
    if record.from_checkpoint is not None:
        parts.append(f"- restored from checkpoint {record.from_checkpoint} {_code(record.path or '')}".rstrip())
    if record.from_epoch is not None:
        parts.append(f"- resumed after epoch {record.from_epoch}; epochs run again: {record.epochs_rerun}")
    parts.append(f"- why: {_code(record.cause)} {_code(record.message)}".rstrip())
    parts.append(f"- driver generation {record.generation}")
    return dg.MetadataValue.md("\n".join([parts[0], "", *parts[1:]]))


def _fence(text: str, at_least: int) -> str:
    # Code must be closed by a run of backticks that does not occur in the text.
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    return "`" * max(at_least, longest + 1)


def _block(text: str) -> str:
    fence = _fence(text, 3)
    return f"{fence}sh\n{text}\n{fence}"


def _code(text: str) -> str:
    text = " ".join(text.split())
    fence = _fence(text, 1)
    return f"{fence} {text} {fence}" if text else ""
