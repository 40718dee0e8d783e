"""The measures of a checkpoint, a query, an operator and a subtask: name, title, unit, meaning and places of each.

The tables of ``coordctl`` and of the pages, Dagster's metadata and the metrics of the newest checkpoint are rendered
from these tables, in this order. What is not listed here is only in ``--json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from coord_control.control.measure import Measure, Place, Unit
from coord_control.control.wording import human_seconds
from coord_control.protocol.statistics import OperatorStatistics, QueryStatistics
from coord_control.storage.records import CheckpointRecord, SubtaskRecord

__all__ = ["CHECKPOINT", "OPERATOR", "QUERY", "SUBTASK", "OperatorPart", "QueryPart", "operator_parts", "query_parts"]


class QueryPart(NamedTuple):
    """A query's part of a checkpoint."""

    checkpoint: CheckpointRecord
    query: QueryStatistics


class OperatorPart(NamedTuple):
    """An operator's part of a checkpoint."""

    checkpoint: CheckpointRecord
    query: QueryStatistics
    operator: OperatorStatistics


def query_parts(checkpoint: CheckpointRecord) -> list[QueryPart]:
    """Return the parts of all queries."""
    return [QueryPart(checkpoint, query) for query in checkpoint.queries]


def operator_parts(checkpoint: CheckpointRecord) -> list[OperatorPart]:
    """Return the parts of all operators."""
    return [OperatorPart(checkpoint, query, each) for query in checkpoint.queries for each in query.operators]


_SECONDS, _BYTES, _COUNT, _ORDINAL, _TEXT = Unit.SECONDS, Unit.BYTES, Unit.COUNT, Unit.ORDINAL, Unit.TEXT
_PEOPLE, _METRIC, _DAGSTER, _FAILURE = Place.PEOPLE, Place.METRIC, Place.DAGSTER, Place.DAGSTER | Place.FAILURE
_PAGE_DAGSTER, _SUMMARY = Place.PAGE | Place.DAGSTER, Place.DAGSTER | Place.METRIC | Place.SUMMARY


def _slowest(name: str) -> Callable[[CheckpointRecord], float | None]:
    values = attrgetter(name)
    return lambda record: max((each for each in map(values, record.queries) if each is not None), default=None)


def _coordinator_bytes(record: CheckpointRecord) -> int | None:
    return sum(part.operator.coordinator_bytes for part in operator_parts(record)) if record.queries else None


#: Of a checkpoint. Metrics are fields of ``CheckpointTotals``; the others may need the parts as well.
CHECKPOINT: Final[tuple[Measure[Any], ...]] = (
    Measure("duration_seconds", "took", _SECONDS, "How long {} took.", _FAILURE | _SUMMARY, summary="duration"),
    Measure("state_bytes", "size", _BYTES, "Size of everything that belongs to {}.", _SUMMARY, dagster="size_bytes"),
    Measure("new_bytes", "new", _BYTES, "Size of what {} contains and no older one does.", _SUMMARY),
    Measure(
        "boundary_seconds",
        "reached",
        _SECONDS,
        "How long {} took to reach the boundary of all queries.",
        _DAGSTER,
        _slowest("boundary_seconds"),
    ),
    Measure(
        "pin_seconds",
        "pinned in",
        _SECONDS,
        "How long pinning the files took, in the slowest query of {}.",
        _DAGSTER,
        _slowest("pin_seconds"),
    ),
    Measure(
        "blocked_seconds",
        "blocked for",
        _SECONDS,
        "Longest time for which {} kept a gateway closed.",
        _FAILURE | _SUMMARY,
    ),
    Measure("blocked_events", "events blocked", _COUNT, "Events that waited behind {}.", _FAILURE | _SUMMARY),
    Measure(
        "snapshot_seconds", "coordinators took", _SECONDS, "How long the slowest coordinator of {} took.", _SUMMARY
    ),
    Measure("passed_subtasks", "subtasks passed", _COUNT, "Subtasks that have passed the boundary of {}.", _FAILURE),
    Measure("subtasks", "subtasks", _COUNT, "Subtasks that take part in {}.", _FAILURE),
    Measure(
        "channel_bytes",
        "in transit",
        _BYTES,
        "Size of the events in transit in {}, in both directions.",
        _DAGSTER | _METRIC,
    ),
    Measure(
        "coordinator_bytes",
        "coordinators",
        _BYTES,
        "Size of the coordinators' states in {}.",
        _PEOPLE | _DAGSTER,
        _coordinator_bytes,
    ),
    Measure("linked_bytes", "linked", _BYTES, "Size of {}'s files that were hard-linked.", _METRIC),
    Measure("copied_bytes", "copied", _BYTES, "Size of {}'s files that were copied.", _METRIC),
    Measure("metadata_bytes", "metadata", _BYTES, "Size of {}'s metadata file.", _PEOPLE | _METRIC),
)


def _blocked(part: Any) -> str:
    return f"{part.blocked_events} for {human_seconds(part.blocked_seconds)}"


def _offsets(part: QueryPart) -> str | None:
    return json.dumps(part.query.offsets, ensure_ascii=False) if part.query.offsets else None


def _not_reached(part: QueryPart) -> str:
    return "" if part.checkpoint.reason is None else "not reached"


#: Of a query; times are from the trigger of the checkpoint.
QUERY: Final[tuple[Measure[QueryPart], ...]] = (
    Measure("query", "query", _TEXT, "The name of the query.", pick="query.query"),
    Measure("epoch", "up to epoch", _ORDINAL, "The epoch at whose end the query is cut.", pick="query.boundary"),
    Measure(
        "boundary_seconds",
        "waited for it",
        _SECONDS,
        "Until the end of that epoch.",
        lacking=_not_reached,
        pick="query.boundary_seconds",
    ),
    Measure("pin_seconds", "pinned in", _SECONDS, "How long pinning its files took.", pick="query.pin_seconds"),
    Measure("files", "files", _COUNT, "Files of Spark's checkpoint directory.", pick="query.files"),
    Measure("bytes", "file size", _BYTES, "Size of these files.", pick="query.file_bytes"),
    Measure("linked_bytes", "linked", _BYTES, "Size of those that were hard-linked.", _PEOPLE, "query.linked_bytes"),
    Measure("copied_bytes", "copied", _BYTES, "Size of those that were copied.", _PEOPLE, "query.copied_bytes"),
    Measure("offsets", "sources read up to", _TEXT, "Offsets of its sources, as JSON.", _PAGE_DAGSTER, _offsets),
)


def _passed(part: OperatorPart) -> str:
    return f"{part.operator.passed_subtasks} of {part.operator.totals.subtasks}"


def _unanswered(part: OperatorPart) -> str:
    if part.checkpoint.reason is None:
        return ""
    return "not asked" if part.operator.asked_seconds is None else "no answer"


def _of_operator(name: str, title: str, unit: Unit, meaning: str, **more: Any) -> Measure[OperatorPart]:
    return Measure(name, title, unit, meaning, **{"places": _PEOPLE, "pick": f"operator.{name}", **more})


#: Of an operator.
OPERATOR: Final[tuple[Measure[OperatorPart], ...]] = (
    _of_operator("operator", "operator", _TEXT, "The uid of the operator."),
    _of_operator("query", "query", _TEXT, "The query that it is part of.", pick="query.query"),
    _of_operator("passed_subtasks", "subtasks passed", _COUNT, "Subtasks that have passed the boundary.", pick=_passed),
    _of_operator("asked_seconds", "asked after", _SECONDS, "Until its state was asked for.", places=Place.PAGE),
    _of_operator("snapshot_seconds", "coordinator took", _SECONDS, "From then to the answer.", lacking=_unanswered),
    _of_operator("coordinator_bytes", "coordinator", _BYTES, "Size of the coordinator's state."),
    _of_operator("state_bytes", "states", _BYTES, "Size of all its states, and of the events in transit."),
    _of_operator("channel_bytes", "channels", _BYTES, "Size of the events in transit."),
    _of_operator(
        "blocked",
        "blocked",
        _COUNT,
        "Events that waited, and the longest time that a gateway was closed.",
        pick=lambda part: _blocked(part.operator),
    ),
)


def _closed_after(part: SubtaskRecord) -> float | None:
    if part.passed_seconds is None or not part.blocked_seconds:
        return None
    return max(part.passed_seconds - part.blocked_seconds, 0.0)


#: Of a subtask; times are from the trigger of the checkpoint.
SUBTASK: Final[tuple[Measure[SubtaskRecord], ...]] = (
    Measure("operator", "operator", _TEXT, "The uid of the operator."),
    Measure("subtask", "subtask", _ORDINAL, "The index of the subtask."),
    Measure("closed_after", "gateway closed after", _SECONDS, "Until its gateway closed.", Place.PAGE, _closed_after),
    Measure("ack_seconds", "acknowledged after", _SECONDS, "Until its ack of the boundary epoch, if that came later."),
    Measure(
        "passed_seconds", "passed after", _SECONDS, "Until it passed the boundary.", lacking=lambda _: "not passed"
    ),
    Measure("state_bytes", "state", _BYTES, "Size of its state, without Spark's."),
    Measure(
        "blocked", "blocked", _COUNT, "Events that waited, and how long its gateway was closed.", Place.CLI, _blocked
    ),
    Measure("blocked_events", "events blocked", _COUNT, "Events that waited at its gateway.", _PAGE_DAGSTER),
    Measure("blocked_seconds", "closed for", _SECONDS, "How long its gateway was closed.", _PAGE_DAGSTER),
    Measure("down_bytes", "events down", _BYTES, "Size of the events in transit to it.", _PEOPLE),
    Measure("up_bytes", "events up", _BYTES, "Size of the events in transit from it.", _PEOPLE),
)
