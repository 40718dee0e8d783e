"""Live values in tests: a model, rows that carry the value that they were judged by, and a sink that keeps both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.spark.live.live_handle import Live
from tests.patience import SECONDS

__all__ = ["LIMIT", "Limits", "Seen", "with_limit"]

LIMIT: Final = "limit"


class Limits(BaseModel):
    """What tests change while queries run."""

    minutes: float = 30.0
    rows: int = 5
    is_open: bool = True
    carrier: str | None = None


class Seen:
    """A sink that keeps the rows of each epoch; an epoch that is run again replaces what it has brought."""

    def __init__(self, before: Callable[[DataFrame, int], object] = lambda frame, epoch: None) -> None:
        self.epochs: dict[int, list[dict[str, Any]]] = {}
        self.runs: list[int] = []
        self._before = before
        self._changed = threading.Condition()

    def writer(self, frame: DataFrame, mode: str = "append") -> DataStreamWriter:
        return frame.writeStream.outputMode(mode).foreachBatch(self._take)

    def wait(self, epoch: int) -> list[dict[str, Any]]:
        """Wait for the rows of an epoch."""
        with self._changed:
            assert self._changed.wait_for(lambda: epoch in self.epochs, SECONDS), f"no epoch {epoch} in time"
            return self.epochs[epoch]

    def values(self, column: str = LIMIT) -> dict[int, set[Any]]:
        """Return the distinct values of a column, by epoch; epochs without rows are left out."""
        return {epoch: {row[column] for row in rows} for epoch, rows in sorted(self.epochs.items()) if rows}

    def _take(self, frame: DataFrame, epoch: int) -> None:
        self.runs.append(epoch)
        self._before(frame, epoch)
        rows = [row.asDict() for row in frame.collect()]
        with self._changed:
            self.epochs[epoch] = rows
            self._changed.notify_all()


def with_limit(frame: DataFrame, limits: Live[Limits]) -> DataFrame:
    return frame.withColumn(LIMIT, limits.minutes)
