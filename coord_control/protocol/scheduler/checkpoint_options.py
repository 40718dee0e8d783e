"""When a job's checkpoints are taken, how long they may take and how many are kept: Flink's options, where they fit.

| option                           | Flink (``execution.checkpointing.``)   | default there | here |
| -------------------------------- | -------------------------------------- | ------------- | ---- |
| ``interval_seconds``             | ``interval``                           | off           | off  |
| ``timeout_seconds``              | ``timeout``                            | 10 min        | 600  |
| ``min_pause_seconds``            | ``min-pause``                          | 0             | 0    |
| ``max_concurrent``               | ``max-concurrent-checkpoints``         | 1             | 1    |
| ``tolerable_consecutive_failures`` | ``tolerable-failed-checkpoints``     | 0             | None |
| ``retained``                     | ``num-retained``                       | 1             | 1    |
| ``history_size``                 | ``web.checkpoints.history``            | 10            | 100  |
| ``queue_limit``                  | fixed                                  | 1000          | 1000 |

Two defaults differ. In Flink a checkpoint is what a job recovers from: one that fails moves the point of recovery back,
and by default restarts the job. Here each epoch is durable by itself and recovery loses nothing when a checkpoint
fails; checkpoints are copies to go back to. A working job does not end because a copy is missing, unless it is
configured to. And a 99th percentile of ten values says nothing.

Values; any thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["CheckpointOptions"]

_SHORTEST_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """The checkpoints of one job.

    Attributes:
        interval_seconds: from the start of one periodic checkpoint to the next; None to take none. Raised to the
            minimal pause when it is shorter.
        timeout_seconds: a checkpoint or savepoint that is not complete this long after its start is aborted. A
            savepoint that ends the job has a separate limit: no epoch waits for it.
        min_pause_seconds: from the end of any checkpoint or savepoint, however it ended, to the start of the next
            periodic one. When it is not 0 a periodic one also waits for other checkpoints to end.
        max_concurrent: checkpoints at the same time. Savepoints are always admitted and do not count.
        tolerable_consecutive_failures: this many checkpoints in a row may fail, one more fails the job; None for any
            number. Savepoints do not count, and not every reason does (:attr:`.FailureReason.counts`).
        retained: how many completed checkpoints are kept, by default the newest alone; savepoints are not removed and
            do not count.
        history_size: ended checkpoints and savepoints in the statistics.
        queue_limit: requests that may wait.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    interval_seconds: float | None = None
    timeout_seconds: float = 600.0
    min_pause_seconds: float = 0.0
    max_concurrent: int = 1
    tolerable_consecutive_failures: int | None = None
    retained: int = 1
    history_size: int = 100
    queue_limit: int = 1000

    def __post_init__(self) -> None:
        if self.interval_seconds is not None:
            _check("interval_seconds", self.interval_seconds, _SHORTEST_SECONDS)
        _check("timeout_seconds", self.timeout_seconds, _SHORTEST_SECONDS)
        _check("min_pause_seconds", self.min_pause_seconds, 0)
        _check("max_concurrent", self.max_concurrent, 1)
        if self.tolerable_consecutive_failures is not None:
            _check("tolerable_consecutive_failures", self.tolerable_consecutive_failures, 0)
        _check("retained", self.retained, 1)
        _check("history_size", self.history_size, 1)
        _check("queue_limit", self.queue_limit, 1)

    @property
    def period_seconds(self) -> float | None:
        """The interval that is kept: never shorter than the minimal pause."""
        return None if self.interval_seconds is None else max(self.interval_seconds, self.min_pause_seconds)


def _check(name: str, value: float, least: float) -> None:
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name} is {value}; it must be a number of at least {least}")
