"""Extracts from Spark's progress events how much waits in the sources of a query, and where the time of a batch goes.

A source may report up to where it has records (``latestOffset``) next to where the batch ended (``endOffset``): Kafka
does, files do not. Offsets are numbers, or objects of numbers, such as topics with partitions; their difference is the
backlog as of the last batch. For Kafka it is a number of records.

A source whose offsets cannot be compared may still say in its ``metrics`` how far behind it is, as Kafka's does: the
average over its partitions, and the largest (``avgOffsetsBehindLatest``, ``maxOffsetsBehindLatest``, texts). Metrics in
bytes do not count, because a backlog is a number of records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "backlog",
    "backlog_of_partitions",
    "backlog_of_sources",
    "batch_parts_seconds",
    "input_rows_per_second",
    "is_comparable",
    "records_between",
]


def backlog(progress: Mapping[str, Any]) -> int | None:
    """Return how many records all sources have that the query has not read, or None if no source reports it."""
    found = backlog_of_partitions(progress)
    return sum(found.values()) if found else None


def backlog_of_partitions(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return the backlog by source and partition, as in ``0/orders/2``; empty if no source reports any.

    A source that only has metrics counts as one partition.
    """
    return {
        "/".join(path): count
        for index, source in enumerate(progress.get("sources") or ())
        for path, count in _of_source(str(index), source)
    }


def backlog_of_sources(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return the backlog by source: the number of its place in the plan, from 0; empty if no source reports any."""
    found: dict[str, int] = {}
    for name, count in backlog_of_partitions(progress).items():
        source = name.partition("/")[0]
        found[source] = found.get(source, 0) + count
    return found


def is_comparable(offset: Any) -> bool:
    """Return whether an offset consists of counts alone, as Kafka's do: then it can be seen whether it is reached.

    Those of Delta have a text and a flag, and a count that begins again with each version of the table.
    """
    return (
        bool(offset) and all(map(is_comparable, offset.values())) if isinstance(offset, Mapping) else _is_count(offset)
    )


def records_between(end: Any, to: Any) -> int:
    """Return how many records there are from an offset to a comparable one; 0 if that is reached in every partition."""
    return sum(count for _, count in _behind((), 0 if end is None else end, to))


def input_rows_per_second(progress: Mapping[str, Any]) -> float | None:
    """Return how many rows per second the last batch took in, from the batch before it; None if not reported."""
    value = progress.get("inputRowsPerSecond")
    return float(value) if isinstance(value, int | float) else None


def batch_parts_seconds(progress: Mapping[str, Any]) -> dict[str, float]:
    """Return how long each part of the last batch took, by Spark's names: ``latestOffset``, ``addBatch`` and others."""
    parts = progress.get("durationMs") or {}
    return {
        name: value / 1000 for name, value in parts.items() if name != "triggerExecution" and isinstance(value, int)
    }


def _of_source(index: str, source: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], int]]:
    end = source.get("endOffset")
    found = list(_behind((index,), end, source.get("latestOffset")))
    if found:
        yield from found
    elif (count := _in_metrics(source.get("metrics") or {}, _partitions(end))) is not None:
        yield (index,), count


def _in_metrics(metrics: Mapping[str, Any], partitions: int) -> int | None:
    # In all partitions together there is at least what is in the one that is furthest behind.
    average, largest = (_number(metrics.get(f"{which}OffsetsBehindLatest")) for which in ("avg", "max"))
    known = [each for each in (average and average * partitions, largest) if each is not None]
    return round(max(known)) if known else None


def _partitions(offset: Any) -> int:
    return sum(map(_partitions, offset.values())) if isinstance(offset, Mapping) else 1


def _number(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _behind(path: tuple[str, ...], end: Any, latest: Any) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(latest, Mapping):
        ends = end if isinstance(end, Mapping) else {}
        for name, value in latest.items():
            # A partition that the batch did not know yet is read from its beginning.
            yield from _behind((*path, str(name)), ends.get(name, 0), value)
    elif _is_count(latest) and _is_count(end):
        yield path, max(0, latest - end)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
