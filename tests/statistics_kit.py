"""Parts of checkpoints, with names and numbers as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from coord_control.ids import OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.statistics import OperatorStatistics, QueryStatistics, SubtaskTotals
from coord_control.storage.records import CheckpointRecord, SubtaskRecord

__all__ = ["operator_part", "query_part", "subtask_part", "with_subtasks"]


def query_part(query: str = "q", **values: Any) -> QueryStatistics:
    return QueryStatistics(query=QueryName(query), **values)


def operator_part(operator: str = "op", **values: Any) -> OperatorStatistics:
    """An operator without its subtasks; ``values``: its own, and totals of its subtasks."""
    totals = {each.name: values.pop(each.name) for each in fields(SubtaskTotals) if each.name in values}
    return OperatorStatistics(operator=OperatorUid(operator), totals=SubtaskTotals(**totals), **values)


def subtask_part(subtask: int = 0, operator: str = "op", **values: Any) -> SubtaskRecord:
    """A subtask that has not passed, unless ``values`` say so."""
    return SubtaskRecord(operator=operator, subtask=SubtaskIndex(subtask), **{"passed_seconds": None, **values})


def with_subtasks(record: CheckpointRecord, subtasks: Sequence[SubtaskRecord]) -> CheckpointRecord:
    """The record with these subtasks, in an operator of the first query where it does not have theirs."""
    found = {
        uid: tuple(each for each in subtasks if each.operator == uid) for uid in {each.operator for each in subtasks}
    }
    queries = [
        replace(
            query,
            operators=tuple(
                replace(operator, subtasks=found.pop(operator.operator, ())) for operator in query.operators
            ),
        )
        for query in record.queries or (query_part(),)
    ]
    more = tuple(OperatorStatistics(OperatorUid(uid), subtasks=parts) for uid, parts in found.items())
    queries[0] = replace(queries[0], operators=(*queries[0].operators, *more))
    return replace(record, queries=tuple(queries))
