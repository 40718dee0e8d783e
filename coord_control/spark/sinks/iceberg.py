"""Tables of Iceberg: which snapshot was current at an epoch, and how they go back.

The summary of every snapshot that a stream has made names the query and the epoch. The sink asks the ancestors of the
current snapshot for the last epoch of its query, so a table that was set back takes the epochs that run again.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from coord_control.ids import Epoch

__all__ = ["Iceberg", "Snapshot", "newest_snapshot"]

_QUERY: Final = "spark.sql.streaming.queryId"
_EPOCH: Final = "spark.sql.streaming.epochId"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of a table.

    Attributes:
        epoch: what it holds of the query; None if nothing.
    """

    parent: int | None
    epoch: int | None = None


class Iceberg:
    """Iceberg tables, as :class:`~coord_control.spark.sinks.table_format.TableFormat`."""

    def place(self, spark: SparkSession, sink: Any) -> str | None:
        return str(sink.name())

    def position(self, spark: SparkSession, place: str, query_id: str, epoch: Epoch) -> str:
        if "/" in place:
            raise LookupError("a table is asked by its name: start the query with job.start(..., table=...)")
        _refresh(spark, place)
        rows = spark.sql(f"SELECT snapshot_id, parent_id, summary FROM {place}.snapshots").collect()
        snapshots = {row["snapshot_id"]: Snapshot(row["parent_id"], _epoch(row["summary"], query_id)) for row in rows}
        return str(newest_snapshot(snapshots, _current(spark, place), epoch))

    def exists(self, spark: SparkSession, place: str, position: str) -> bool:
        _refresh(spark, place)
        found = spark.sql(f"SELECT 1 FROM {place}.snapshots WHERE snapshot_id = {int(position)}")
        return bool(found.take(1))

    def roll_back(self, spark: SparkSession, place: str, position: str) -> None:
        catalog, _, table = place.partition(".")
        spark.sql(f"CALL {catalog}.system.set_current_snapshot('{table}', {int(position)})").collect()


def newest_snapshot(snapshots: Mapping[int, Snapshot], current: int | None, epoch: Epoch) -> int:
    """Return the newest ancestor of the current snapshot that holds nothing of the query behind an epoch.

    Raises:
        LookupError: there was no snapshot at that epoch, or it has expired.
    """
    found = current
    while current is not None and current in snapshots:
        held = snapshots[current].epoch
        if held is not None and held <= epoch:
            break
        current = snapshots[current].parent
        if held is not None:
            found = current
    if found is None or found not in snapshots:
        raise LookupError(f"the table had no snapshot at epoch {epoch}, or it has expired")
    return found


def _refresh(spark: SparkSession, place: str) -> None:
    # A session's catalog keeps tables for a while, and does not see what others, and its own clones, have written.
    spark.sql(f"REFRESH TABLE {place}")


def _current(spark: SparkSession, place: str) -> int | None:
    rows = spark.sql(f"SELECT snapshot_id FROM {place}.refs WHERE name = 'main'").collect()
    return rows[0]["snapshot_id"] if rows else None


def _epoch(summary: Mapping[str, str], query_id: str) -> int | None:
    return int(summary[_EPOCH]) if summary.get(_QUERY) == query_id else None
