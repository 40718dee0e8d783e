"""Tables and JSON of stored checkpoints, for ``coordctl savepoint``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from coord_control.cli.output import human_bytes, human_time, print_json, print_table, say
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.checkpoints.metadata_file import OperatorSnapshot, QuerySnapshot, StateOperator
from coord_control.durable.checkpoints.verification import Problem
from coord_control.ids import OperatorUid
from coord_control.protocol.records import EventBatch, count
from coord_control.protocol.recovery import Inputs
from coord_control.storage.records import SavepointRecord

__all__ = ["entry_json", "entry_row", "known_row", "metadata_json", "print_metadata", "print_verified", "verified_json"]

_MAX_SHOWN: Final = 200


def entry_row(entry: CheckpointEntry) -> tuple[object, ...]:
    """Return the row of a stored checkpoint."""
    return (
        entry.checkpoint,
        entry.kind,
        entry.problem or entry.state.value,
        entry.label,
        entry.requested_by,
        None if entry.completed_at is None else entry.completed_at.strftime("%Y-%m-%d %H:%M:%S"),
        ", ".join(f"{query} {epoch}" for query, epoch in entry.epochs),
        entry.file_count if entry.is_completed else None,
        human_bytes(entry.size) if entry.is_completed else None,
        entry.path,
    )


def entry_json(entry: CheckpointEntry) -> dict[str, Any]:
    return {
        "checkpoint": entry.checkpoint,
        "kind": entry.kind,
        "state": entry.state.value,
        "problem": entry.problem or None,
        "label": entry.label,
        "requested_by": entry.requested_by,
        "path": entry.path,
        "completed_at": None if entry.completed_at is None else entry.completed_at.isoformat(),
        "epochs": dict(entry.epochs),
        "files": entry.file_count,
        "size": entry.size,
    }


def known_row(one: SavepointRecord) -> tuple[object, ...]:
    """Return the row of a savepoint in the control database."""
    verified = {None: "never", True: human_time(one.verified_at), False: "DAMAGED"}[one.verified_ok]
    return (
        one.job,
        one.checkpoint,
        one.label,
        human_time(one.created_at),
        human_bytes(one.size),
        "yes" if one.imported else "no",
        verified,
        one.path,
    )


def print_metadata(source: CheckpointSource, sample: int) -> None:
    """Print the contents of a checkpoint as tables."""
    metadata = source.metadata
    say(f"{metadata.kind} {metadata.checkpoint} of job {metadata.job} in {source.path}")
    label = "" if metadata.label is None else f", label {metadata.label}"
    say(
        f"completed {metadata.completed_at:%Y-%m-%d %H:%M:%S} UTC, generation {metadata.generation}, "
        f"cause: {metadata.trigger.cause}{label}; {metadata.file_count} files, {human_bytes(metadata.size)}"
    )
    print_table(
        "queries",
        ("query", "epoch", "planned", "Spark", "lineage", "watermark", "files", "file size", "query id"),
        [
            (
                name,
                query.epoch,
                query.planned if query.planned > query.epoch else None,
                query.spark_version,
                query.lineage,
                query.batch_metadata.get("batchWatermarkMs"),
                len(query.files),
                human_bytes(query.size),
                query.query_id,
            )
            for name, query in metadata.queries.items()
        ],
    )
    print_table("offsets", ("query", "source", "offset"), _offset_rows(source))
    print_table(
        "states of Spark",
        ("query", "operator", "name", "provider", "partitions", "stores", "file size"),
        [
            (
                name,
                one.id,
                one.name,
                one.provider,
                one.partitions,
                ", ".join(one.stores),
                human_bytes(_size(query, one)),
            )
            for name, query in metadata.queries.items()
            for one in query.state_operators
        ],
    )
    print_table(
        "operators",
        ("operator", "query", "subtasks", "events down", "events up", "state model"),
        [_operator_row(uid, operator) for uid, operator in metadata.operators.items()],
    )
    print_table(
        "states",
        ("operator", "of", "state"),
        [row for uid, operator in metadata.operators.items() for row in _state_rows(uid, operator, sample)],
    )


def metadata_json(source: CheckpointSource, sample: int) -> dict[str, Any]:
    """Return the contents of a checkpoint as JSON, with totals instead of the list of files."""
    metadata = source.metadata
    fields = metadata.model_dump(mode="json", exclude={"queries": {"__all__": {"files"}}, "operators": True})
    for name, query in metadata.queries.items():
        fields["queries"][name]["files"] = {"count": len(query.files), "size": query.size}
        sizes = {str(one.id): _size(query, one) for one in query.state_operators}
        fields["queries"][name]["state_sizes"] = sizes
    fields["operators"] = {uid: _operator_json(one, sample) for uid, one in metadata.operators.items()}
    return {"path": source.path, **fields}


def print_verified(source: CheckpointSource, problems: Sequence[Problem], states: list[dict[str, Any]] | None) -> None:
    """Print the result of a verification."""
    print_table("", ("file", "problem", ""), [(p.path, p.kind.value, p.detail) for p in problems])
    columns = ("query", "operator", "name", "state", "rows", "problem")
    print_table("states loaded by Spark", columns, [[each[column] for column in columns] for each in states or ()])
    fatal = sum(problem.is_fatal for problem in problems)
    metadata = source.metadata
    if fatal:
        say(f"{source.path} is damaged: {fatal} of {metadata.file_count} files have changed or are missing")
    else:
        say(f"{source.path}: {metadata.file_count} files, {human_bytes(metadata.size)}, all intact")


def verified_json(source: CheckpointSource, problems: Sequence[Problem], states: list[dict[str, Any]] | None) -> None:
    print_json(
        {
            "path": source.path,
            "files": source.metadata.file_count,
            "size": source.metadata.size,
            "problems": [
                {"path": p.path, "query": p.query, "kind": p.kind.value, "detail": p.detail, "fatal": p.is_fatal}
                for p in problems
            ],
            "states": states,
        }
    )


def _offset_rows(source: CheckpointSource) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name, query in source.metadata.queries.items():
        names = [str(each) for each in query.sources] + [""] * len(query.offsets)
        for one, offset in zip(names, query.offsets, strict=False):
            rows.append((name, one, "none yet" if offset is None else _short(json.dumps(offset))))
    return rows


def _size(query: QuerySnapshot, operator: StateOperator) -> int:
    return sum(entry.size for entry in query.files if entry.path.startswith(f"state/{operator.id}/"))


def _operator_row(uid: OperatorUid, operator: OperatorSnapshot) -> tuple[object, ...]:
    return (
        uid,
        operator.query,
        operator.parallelism,
        sum(count(batches) for down in (_inputs(operator), operator.down) for batches in down.values()),
        sum(count(entry.events) for entry in operator.up),
        operator.state,
    )


def _state_rows(uid: OperatorUid, operator: OperatorSnapshot, sample: int) -> Iterator[tuple[object, ...]]:
    yield uid, "coordinator", _short(_coordinator(operator))
    for job, number in sorted(operator.applied_events.items()):
        yield uid, "control events", f"up to number {number} of job {job}"
    for subtask, state in sorted(operator.subtask_states.items())[:sample]:
        yield uid, f"subtask {subtask}", "default" if state is None else _short(state.decode())


def _operator_json(operator: OperatorSnapshot, sample: int) -> dict[str, Any]:
    states = sorted(operator.subtask_states.items())
    return {
        "query": operator.query,
        "parallelism": operator.parallelism,
        "state": operator.state,
        "coordinator_state": _parsed(operator.coordinator_data),
        "applied_events": dict(operator.applied_events),
        "subtask_states": {str(index): _parsed(state) for index, state in states[:sample]},
        "subtasks": len(states),
        "down": _by_subtask(operator, operator.down),
        "planned": _planned_json(operator),
        "up": [{"subtask": one.subtask, **_events(operator.up_types, one.events)} for one in operator.up],
    }


def _planned_json(operator: OperatorSnapshot) -> dict[str, Any] | None:
    """Return counts of the inputs and acks in the epoch that will be run again, or None if there is none."""
    if (planned := operator.planned) is None:
        return None
    return {"epoch": planned.epoch, "inputs": _by_subtask(operator, planned.inputs), "acknowledged": len(planned.acks)}


def _by_subtask(operator: OperatorSnapshot, down: Inputs) -> dict[str, dict[str, int]]:
    return {str(index): _events(operator.down_types, batches) for index, batches in down.items()}


def _inputs(operator: OperatorSnapshot) -> Inputs:
    return {} if operator.planned is None else operator.planned.inputs


def _events(types: Sequence[str], batches: Sequence[EventBatch]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for batch in batches:
        name = types[batch.type_index] if batch.type_index < len(types) else str(batch.type_index)
        counts[name] = counts.get(name, 0) + batch.length
    return counts


def _coordinator(operator: OperatorSnapshot) -> str:
    state = operator.coordinator_data
    if state is None:
        return "none yet"
    parsed = _parsed(state)
    return parsed if isinstance(parsed, str) else json.dumps(parsed, ensure_ascii=False)


def _parsed(state: bytes | None) -> Any:
    if state is None:
        return None
    try:
        return json.loads(state)
    except ValueError:
        return f"{len(state)} bytes"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
