"""What Spark has reported of a query's batches since the driver started.

Threads: changed by that of Spark's listener; any may read.
"""

from __future__ import annotations

from typing import Any, Final

from coord_control.control.progress import with_newest_event
from coord_control.ids import NO_EPOCH, Epoch

__all__ = ["BatchCounts"]

_RATES: Final = ("inputRowsPerSecond", "processedRowsPerSecond")


class BatchCounts:
    """The batches of one query, each counted once.

    Attributes:
        progress: Spark's newest progress event, with the newest event time of the last batch that had any. Of a query
            that is idle, with rates of zero.
        output_rows: what the sink has received; None if it does not report that of every batch.
    """

    def __init__(self) -> None:
        self.progress: dict[str, Any] = {}
        self.batches = 0
        self.rows = 0
        self.output_rows: int | None = 0
        self.seconds = 0.0
        self._newest = NO_EPOCH

    def hear(self, epoch: Epoch, progress: dict[str, Any]) -> None:
        """Take up a progress event; Spark repeats that of the last batch while there is nothing to do."""
        self.progress = with_newest_event(progress, self.progress)
        if epoch > self._newest:
            self._newest = epoch
            self.batches += 1
            self.rows += int(progress.get("numInputRows") or 0)
            self.output_rows = _sum(self.output_rows, (progress.get("sink") or {}).get("numOutputRows"))
            self.seconds += float(progress.get("batchDuration") or 0.0) / 1000

    def idle(self) -> None:
        """No batch has run for a while: a rate of the last one would otherwise stay."""
        self.progress = {**self.progress, **dict.fromkeys(_RATES, 0.0)}


def _sum(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None or more < 0 else total + more
