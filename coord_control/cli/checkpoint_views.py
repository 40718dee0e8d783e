"""Tables of the history of checkpoints.

Threads: any; pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from rich.table import Table

from coord_control.cli.output import human_bytes, human_seconds, human_time, print_table, say, text_table
from coord_control.control.measure import Measure, Place, shown
from coord_control.control.measures import CHECKPOINT, OPERATOR, QUERY, SUBTASK, operator_parts, query_parts
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    CheckpointSummary,
    Percentiles,
    SubtaskRecord,
)

__all__ = ["checkpoint_table", "print_checkpoint", "print_subtasks", "print_summary"]

_T = TypeVar("_T")

_COLUMNS: Final = ("id", "kind", "state", "triggered", "took", "size", "new", "blocked", "label", "path or problem")


def checkpoint_table(title: str, checkpoints: Iterable[CheckpointRecord]) -> Table:
    """Return a table with one row per checkpoint."""
    return text_table(title, _COLUMNS, [_row(each) for each in checkpoints])


def _row(one: CheckpointRecord) -> tuple[object, ...]:
    is_over = one.state is not CheckpointState.IN_PROGRESS
    return (
        one.id,
        one.kind.value,
        one.state.value if is_over else f"{one.passed_subtasks} of {one.subtasks} subtasks",
        human_time(one.triggered_at),
        human_seconds(one.duration_seconds),
        human_bytes(one.state_bytes) if is_over else None,
        human_bytes(one.new_bytes) if is_over else None,
        f"{one.blocked_events} for {human_seconds(one.blocked_seconds)}",
        one.label,
        one.path if one.reason is None else f"{one.reason}: {one.message}",
    )


def print_checkpoint(one: CheckpointRecord) -> None:
    """Print one checkpoint, without its subtasks."""
    by = f" by {one.requested_by}" if one.requested_by else ""
    say(f"{one.kind.value} {one.id} of job {one.job}: {one.state.value}" + (f", {one.path}" if one.path else ""))
    say(f"triggered {human_time(one.triggered_at)} UTC{by}, cause: {one.cause}, generation {one.generation}")
    if one.label is not None:
        say(f"label: {one.label}")
    if one.reason is not None:
        say(f"{one.reason}: {one.message}")
    if one.state is CheckpointState.IN_PROGRESS:
        say(
            f"{one.passed_subtasks} of {one.subtasks} subtasks have passed the boundary, "
            f"{one.blocked_events} events blocked"
        )
        return
    took = human_seconds(one.duration_seconds)
    # A savepoint shares no files, so all of it is new.
    new = "" if one.kind is CheckpointKind.SAVEPOINT else f", of which {human_bytes(one.new_bytes)} are new"
    say(
        f"took {took}; {human_bytes(one.state_bytes)}{new} ({human_bytes(one.linked_bytes)} linked, "
        f"{human_bytes(one.copied_bytes)} copied), {human_bytes(one.channel_bytes)} from channels"
    )
    say(
        f"{one.blocked_events} events were blocked, for at most {human_seconds(one.blocked_seconds)}; coordinators "
        f"took at most {human_seconds(one.snapshot_seconds)}"
    )
    for measure in shown(CHECKPOINT, Place.CLI):
        if text := measure.text(one):
            say(f"{measure.title}: {text}")
    _print_measures("queries", QUERY, query_parts(one))
    offsets = [
        (query.query, source, json.dumps(offset)) for query in one.queries for source, offset in query.offsets.items()
    ]
    print_table("offsets", ("query", "source", "read up to"), offsets)
    _print_measures("operators", OPERATOR, operator_parts(one))


def print_subtasks(subtasks: Sequence[SubtaskRecord]) -> None:
    """Print a table with one row per subtask."""
    _print_measures("subtasks", SUBTASK, subtasks)


def _print_measures(title: str, measures: Sequence[Measure[_T]], parts: Sequence[_T]) -> None:
    columns = shown(measures, Place.CLI)
    rows = [[measure.text(part) for measure in columns] for part in parts]
    print_table(title, [measure.title for measure in columns], rows)


def print_summary(job: str, summary: CheckpointSummary) -> None:
    """Print counts and percentiles."""
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in summary.counts.items())
    say(f"checkpoints of job {job}: {counts or 'none'}")
    columns = ("newest completed", "count", "min", "average", "p50", "p90", "p95", "p99", "p99.9", "max")
    rows = [_spread(measure, summary) for measure in shown(CHECKPOINT, Place.SUMMARY)]
    print_table(f"the newest {summary.window}", columns, rows if summary.duration.count else [])


def _spread(measure: Measure[CheckpointRecord], summary: CheckpointSummary) -> list[object]:
    one: Percentiles = getattr(summary, measure.summary or measure.name)
    values = (one.minimum, one.average, one.p50, one.p90, one.p95, one.p99, one.p999, one.maximum)
    return [measure.title, one.count, *map(measure.unit.text, values)]
