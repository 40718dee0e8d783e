"""``coordctl savepoint state``: looks at one state in a checkpoint or savepoint, or compares it with another one's.

Spark's states are read by a separate process with Spark; those of the job's operators are in the metadata.

Threads: the command's thread.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from coord_control.cli.job_places import opened
from coord_control.cli.options import AnyRoot, Control, Json
from coord_control.cli.output import human_bytes, print_json, print_table, reported, say
from coord_control.cli.references import Reference, checkpoint_and, checkpoint_named, checkpoint_words
from coord_control.cli.spark_commands import read_state
from coord_control.cli.storage import absolute
from coord_control.coordinators.requests import StatesPage
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.checkpoints.metadata_file import StateOperator
from coord_control.durable.checkpoints.state_lookup import (
    find_operator,
    find_query,
    find_spark_operator,
    find_state,
    operator_states,
)
from coord_control.errors import StateNotLoaded
from coord_control.ids import OperatorUid
from coord_control.spark.states.state_request import StateRequest

__all__ = ["state"]

_PURPOSE = "its states are being read"
_CHANGES = ("added", "removed", "changed")


def state(
    named: Annotated[list[str], checkpoint_words("QUERY")],
    root: AnyRoot = None,
    control: Control = None,
    operator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="COORD_OPERATOR",
            help="Id or name of one of Spark's operators, or the name of one of the job's. Default: the only one.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="NAME",
            envvar="COORD_STATE",
            help="left or right of a join, or a variable of transformWithState. Default: the only one.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            envvar="COORD_COMPARE",
            help="Show what is different in this checkpoint or savepoint: keys added, removed, changed.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, envvar="COORD_LIMIT", help="How many rows.")] = 20,
    scratch: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            envvar="COORD_SCRATCH",
            help="A folder for temporary files; on the file system of the savepoint they take no space.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at a state of QUERY in a checkpoint or savepoint: one of Spark's, or that of an operator of the job.

    Spark's states are read by a local Spark; PYSPARK_SUBMIT_ARGS gives it memory or another master. Nothing is changed.
    """
    place = None if scratch is None else absolute(scratch)
    checkpoint, (query,) = checkpoint_and(named, 1)
    with reported(as_json), _both(checkpoint, compare, root, control) as (source, other):
        found = find_operator(source.metadata, query, operator)
        head = {"path": source.path, "query": query, "epoch": find_query(source.metadata, query).epoch}
        if other is not None:
            head["compared_with"] = other.path
        if isinstance(found, StateOperator):
            answer = _spark(source, other, query, found, name, place, limit)
        else:
            if name is not None:
                raise typer.BadParameter(
                    f"--state is for operators of Spark, and {found} is one of the job: leave it out"
                )
            answer = _own(source, other, found, limit)
        if as_json:
            print_json({**head, **answer})
        else:
            _print(source, other, head, answer)


@contextlib.contextmanager
def _both(
    named: Reference, compare: str | None, root: str | None, control: str | None
) -> Iterator[tuple[CheckpointSource, CheckpointSource | None]]:
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(opened(named, root, control, _PURPOSE))
        words = [] if compare is None else [compare] if named.job is None else [named.job, compare]
        other = stack.enter_context(opened(checkpoint_named(words), root, control, _PURPOSE)) if words else None
        yield source, other


def _spark(
    source: CheckpointSource,
    other: CheckpointSource | None,
    query: str,
    operator: StateOperator,
    name: str | None,
    scratch: str | None,
    limit: int,
) -> dict[str, Any]:
    # Looked up before Spark is started.
    found = find_state(source.metadata, query, operator, name, {})
    if other is not None:
        find_state(other.metadata, query, find_spark_operator(other.metadata, query, operator.id), name, {})
    answer = read_state(
        StateRequest(
            path=source.path,
            query=query,
            operator=operator.id,
            state=name,
            other=None if other is None else other.path,
            scratch=scratch,
            limit=limit,
        )
    )
    if answer.problem is not None:
        raise StateNotLoaded(source.path, str(found), answer.problem)
    shown: dict[str, Any] = {"operator": {"id": operator.id, "name": operator.name}, "state": found.name or None}
    if other is not None:
        shown["counts"] = {change: answer.counts.get(change, 0) for change in _CHANGES}
    return {**shown, "rows": answer.rows, "has_more": answer.has_more}


def _own(source: CheckpointSource, other: CheckpointSource | None, uid: OperatorUid, limit: int) -> dict[str, Any]:
    page = operator_states(source.metadata, uid)
    shown: dict[str, Any] = {"operator": {"id": None, "name": uid}, "state": None}
    if other is None:
        rows: list[dict[str, Any]] = [each.model_dump(mode="json") for each in page.subtasks]
        shown["coordinator"] = page.coordinator
    else:
        rows = list(_differences(page, operator_states(other.metadata, uid)))
        shown["counts"] = {change: sum(row["change"] == change for row in rows) for change in _CHANGES}
    return {**shown, "rows": rows[:limit], "has_more": len(rows) > limit}


def _differences(before: StatesPage, after: StatesPage) -> Iterator[dict[str, Any]]:
    """Yield a row for the coordinator and each subtask whose state is not the same; ``subtask`` None: coordinator."""
    old, new = _states(before), _states(after)
    for subtask in {**old, **new}:
        if subtask not in old or subtask not in new or old[subtask] != new[subtask]:
            change = "added" if subtask not in old else "removed" if subtask not in new else "changed"
            yield {"change": change, "subtask": subtask, "before": old.get(subtask), "after": new.get(subtask)}


def _states(page: StatesPage) -> dict[int | None, Any]:
    states: dict[int | None, Any] = {None: page.coordinator} if page.coordinator_size else {}
    states.update((each.subtask, each.state) for each in page.subtasks)
    return states


def _print(
    source: CheckpointSource, other: CheckpointSource | None, head: dict[str, Any], answer: dict[str, Any]
) -> None:
    operator, metadata, rows = answer["operator"], source.metadata, answer["rows"]
    what = operator["name"] if operator["id"] is None else f"{operator['id']} ({operator['name']})"
    which = f", state {answer['state']}" if answer["state"] else ""
    say(
        f"operator {what}{which} of query {head['query']} after epoch {head['epoch']}: {metadata.kind} "
        f"{metadata.checkpoint} of job {metadata.job} in {source.path}"
    )
    if other is not None:
        counts = ", ".join(f"{count} {change}" for change, count in answer["counts"].items())
        say(f"{other.metadata.kind} {other.metadata.checkpoint} in {other.path} has: {counts}")
    elif operator["id"] is None:
        say(f"coordinator: {_text(answer['coordinator'])}")
    print_table("", *_table(rows))
    if not rows and other is None:
        say("it is empty")
    if answer["has_more"]:
        say("there is more: --limit shows more rows")


def _table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    columns = list(rows[0]) if rows else []
    return [column.replace("_", " ") for column in columns], [
        [_cell(name, row[name]) for name in columns] for row in rows
    ]


def _cell(column: str, value: Any) -> str:
    if column == "subtask" and value is None:
        return "coordinator"
    if column == "size":
        return human_bytes(value)
    return value if column == "change" else _text(value)


def _text(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
