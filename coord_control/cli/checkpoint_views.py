"""Tables of the history of checkpoints.

Threads: any; pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from rich.table import Table

from coord_control.cli.output import human_bytes, human_seconds, human_time, print_table, say, text_table
from coord_control.protocol.statistics import OperatorStatistics, QueryStatistics
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    CheckpointSummary,
    Percentiles,
    SubtaskRecord,
)

__all__ = ["checkpoint_table", "print_checkpoint", "print_subtasks", "print_summary"]

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
    _print_parts(one)


def _print_parts(one: CheckpointRecord) -> None:
    print_table(
        "queries",
        ("query", "up to epoch", "waited for it", "pinned in", "files", "size", "linked", "copied"),
        [
            (
                query.query,
                query.boundary,
                human_seconds(query.boundary_seconds) if one.reason is None else _reached(query),
                human_seconds(query.pin_seconds),
                query.files,
                human_bytes(query.file_bytes),
                human_bytes(query.linked_bytes),
                human_bytes(query.copied_bytes),
            )
            for query in one.queries
        ],
    )
    offsets = [
        (query.query, source, json.dumps(offset)) for query in one.queries for source, offset in query.offsets.items()
    ]
    if offsets:
        print_table("offsets", ("query", "source", "read up to"), offsets)
    print_table(
        "operators",
        ("operator", "query", "subtasks passed", "coordinator took", "coordinator", "states", "channels", "blocked"),
        [
            (
                operator.operator,
                query.query,
                f"{operator.passed_subtasks} of {operator.totals.subtasks}",
                human_seconds(operator.snapshot_seconds) if one.reason is None else _answered(operator),
                human_bytes(operator.coordinator_bytes),
                human_bytes(operator.state_bytes),
                human_bytes(operator.channel_bytes),
                f"{operator.blocked_events} for {human_seconds(operator.blocked_seconds)}",
            )
            for query in one.queries
            for operator in query.operators
        ],
    )


def _reached(query: QueryStatistics) -> str:
    return "not reached" if query.boundary_seconds is None else human_seconds(query.boundary_seconds)


def _answered(operator: OperatorStatistics) -> str:
    if operator.snapshot_seconds is not None:
        return human_seconds(operator.snapshot_seconds)
    return "not asked" if operator.asked_seconds is None else "no answer"


def print_subtasks(subtasks: Sequence[SubtaskRecord]) -> None:
    """Print a table with one row per subtask."""
    print_table(
        "subtasks",
        ("operator", "subtask", "acknowledged after", "passed after", "state", "blocked", "events down", "events up"),
        [
            (
                one.operator,
                one.subtask,
                human_seconds(one.ack_seconds),
                "not passed" if one.passed_seconds is None else human_seconds(one.passed_seconds),
                human_bytes(one.state_bytes),
                f"{one.blocked_events} for {human_seconds(one.blocked_seconds)}",
                human_bytes(one.down_bytes),
                human_bytes(one.up_bytes),
            )
            for one in subtasks
        ],
    )


def print_summary(job: str, summary: CheckpointSummary) -> None:
    """Print counts and percentiles."""
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in summary.counts.items())
    say(f"checkpoints of job {job}: {counts or 'none'}")
    columns = ("newest completed", "count", "min", "average", "p50", "p90", "p95", "p99", "p99.9", "max")
    rows = [
        ("took", *_seconds(summary.duration)),
        ("size", *_bytes(summary.state_bytes)),
        ("new", *_bytes(summary.new_bytes)),
        ("blocked for", *_seconds(summary.blocked_seconds)),
        ("events blocked", *_counts(summary.blocked_events)),
        ("coordinators took", *_seconds(summary.snapshot_seconds)),
    ]
    print_table(f"the newest {summary.window}", columns, rows if summary.duration.count else [])


def _values(one: Percentiles) -> tuple[float | None, ...]:
    return (one.minimum, one.average, one.p50, one.p90, one.p95, one.p99, one.p999, one.maximum)


def _seconds(one: Percentiles) -> list[object]:
    return [one.count, *map(human_seconds, _values(one))]


def _bytes(one: Percentiles) -> list[object]:
    return [one.count, *(None if value is None else human_bytes(round(value)) for value in _values(one))]


def _counts(one: Percentiles) -> list[object]:
    return [one.count, *(None if value is None else f"{value:,.0f}" for value in _values(one))]
