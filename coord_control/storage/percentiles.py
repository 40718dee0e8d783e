"""Percentiles, as Flink shows them: interpolated linearly between the two nearest values.

PostgreSQL computes them on the server, which takes a third of the time of sending ten thousand rows. SQLite has no
percentiles, but runs in this process. Both interpolate in the same way; the same tests compare them.

Threads: any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, CompoundSelect, Float, func, literal, select
from sqlalchemy.dialects.postgresql import ARRAY

from coord_control.storage.database import Transaction
from coord_control.storage.records import Percentiles

__all__ = ["percentiles", "spreads"]

_PART: Final = 200
_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)


def spreads(transaction: Transaction, measured: CompoundSelect[Any]) -> Sequence[Percentiles]:
    """Return the spread of each column of a query."""
    if transaction.dialect == "postgresql":
        return _in_database(transaction, measured)
    columns: list[list[float | None]] = [[] for _ in measured.selected_columns]
    # In parts: ten thousand rows at once would trigger a full garbage collection, which takes longer than the query.
    for part in transaction.execute(measured).partitions(_PART):
        for column, values in zip(columns, zip(*part, strict=True), strict=True):
            column.extend(values)
    return [percentiles(column) for column in columns]


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Return the percentiles of ``values``, without missing ones (None)."""
    ordered = [value for value in values if value is not None]
    ordered.sort()
    if not ordered:
        return Percentiles()
    average = sum(ordered) / len(ordered)
    return _percentiles(len(ordered), ordered[0], ordered[-1], average, [_at(ordered, each) for each in _QUANTILES])


def _in_database(transaction: Transaction, measured: CompoundSelect[Any]) -> Sequence[Percentiles]:
    rows = measured.subquery()
    wanted: list[ColumnElement[Any]] = []
    for column in rows.c:
        quantiles = func.percentile_cont(literal(_QUANTILES, ARRAY(Float))).within_group(column)
        wanted += [func.count(column), func.min(column), func.max(column), func.avg(column), quantiles]
    row = transaction.execute(select(*wanted)).one()
    found = [row[begin : begin + 5] for begin in range(0, len(row), 5)]
    return [_percentiles(*each) if each[0] else Percentiles() for each in found]


def _percentiles(count: int, minimum: float, maximum: float, average: float, quantiles: Sequence[float]) -> Percentiles:
    p50, p90, p95, p99, p999 = quantiles
    return Percentiles(
        count=count,
        minimum=minimum,
        maximum=maximum,
        average=float(average),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        p999=p999,
    )


def _at(ordered: Sequence[float], quantile: float) -> float:
    position = quantile * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
