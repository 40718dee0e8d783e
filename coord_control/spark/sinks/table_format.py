"""What is needed of a table format whose tables have versions, and the formats that are known.

A format is one module here that implements :class:`TableFormat`, with a row in :data:`FORMATS`, and a row in
``durable/restore/sink_kinds.py`` with what is known of it without Spark.

Threads: those of checkpoints, and the one that restores.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from pyspark.sql import SparkSession

from coord_control.ids import Epoch
from coord_control.spark.sinks.delta import Delta
from coord_control.spark.sinks.iceberg import Iceberg

__all__ = ["FORMATS", "TableFormat"]


class TableFormat(Protocol):
    """A format whose tables have versions. Every method may raise anything; the text of the error is the reason."""

    def place(self, spark: SparkSession, sink: Any) -> str | None:
        """Return what a table is called in SQL, or its path with the scheme.

        Args:
            sink: Spark's object in the JVM.
        """
        ...

    def position(self, spark: SparkSession, place: str, query_id: str, epoch: Epoch) -> str:
        """Return the newest version that holds nothing of a query behind ``epoch``.

        The query may run: later epochs may be in the table already.
        """
        ...

    def exists(self, spark: SparkSession, place: str, position: str) -> bool:
        """Return whether the table can still be set to a version."""
        ...

    def roll_back(self, spark: SparkSession, place: str, position: str) -> None:
        """Set the table to a version, older or newer. Repeatable."""
        ...


#: By the kind of the sink.
FORMATS: Final[dict[str, TableFormat]] = {"delta": Delta(), "iceberg": Iceberg()}
