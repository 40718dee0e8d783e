"""The overhead of coordination per epoch: the same query with and without it, in turns, in one session.

*plain*: repartitionById, then mapInArrow with the function body of the others. *idle*: an operator whose coordinator
and subtasks say nothing and whose state does not change. *busy*: 100 events to and 100 events from each subtask in
every epoch, and changing state on both sides. Each variant runs in short segments, one after the other, again and
again, so that what disturbs the machine disturbs all of them. An epoch takes what Spark calls triggerExecution: from
planning the offsets to the commit.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import coord_control as cc
from benchmarks import query
from benchmarks.report import Goal, at_most, main, median
from benchmarks.session import session

_WARM_UP: Final = 5  #: epochs of each segment that do not count: Spark plans and compiles again
_SEGMENT: Final = 20  #: epochs of each segment that count
_SEGMENTS: Final = 8


def overhead(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Epochs with an idle and a busy control plane, against the same query without one."""
    segments, epochs, warm_up = (1, 3, 1) if quick else (_SEGMENTS, _SEGMENT, _WARM_UP)
    seconds: dict[str, list[float]] = {"plain": [], "idle": [], "busy": []}
    ratios: dict[str, list[float]] = {"idle": [], "busy": []}
    with session() as spark, tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
        bench = _Bench(spark, root, warm_up, epochs)
        variants: dict[str, Callable[[], list[float]]] = {"plain": bench.plain, "idle": bench.idle, "busy": bench.busy}
        for run in variants.values():
            run()  # compiles, forks workers, imports
        for number in range(segments):
            # In reverse order every other time, so that no variant always comes first.
            names = list(variants)[:: -1 if number % 2 else 1]
            found = {name: variants[name]() for name in names}
            for name, durations in found.items():
                seconds[name] += durations
            for name, those in ratios.items():
                those.append(median(found[name]) / median(found["plain"]))
    plain = median(seconds["plain"])
    goals = [
        at_most("idle control plane, median epoch", median(seconds["idle"]) / plain, 1.03, "x plain"),
        at_most("busy control plane, median epoch", median(seconds["busy"]) / plain, 1.10, "x plain"),
    ]
    return goals, {
        "subtasks": query.SUBTASKS,
        "rows_per_epoch": query.ROWS,
        "events_per_subtask_epoch_and_direction": query.EVENTS,
        "epochs": {name: len(durations) for name, durations in seconds.items()},
        "median_epoch_ms": {name: round(1000 * median(durations), 1) for name, durations in seconds.items()},
        "ratio_of_each_round": {name: [round(ratio, 3) for ratio in those] for name, those in ratios.items()},
    }


class _Bench:
    """Runs one segment of each variant; each resumes where its last one stopped."""

    def __init__(self, spark: SparkSession, root: str, warm_up: int, epochs: int) -> None:
        self._spark, self._root = spark, root
        self._warm_up, self._epochs = warm_up, epochs

    def plain(self) -> list[float]:
        started = query.start_plain(self._spark, f"{self._root}/plain")
        try:
            return self._measured(started)
        finally:
            started.stop()

    def idle(self) -> list[float]:
        with cc.Job("idle", self._spark, root=self._root) as job:
            return self._measured(query.start_coordinated(self._spark, job, query.Silent(), query.idle))

    def busy(self) -> list[float]:
        with cc.Job("busy", self._spark, root=self._root) as job:
            durations = self._measured(query.start_coordinated(self._spark, job, query.Talkative(), query.busy))
            totals = job.status().operators[0].totals
        events = query.SUBTASKS * len(durations) * query.EVENTS
        assert totals.events_down >= events <= totals.events_up, totals
        return durations

    def _measured(self, started: StreamingQuery) -> list[float]:
        return query.epoch_seconds(started, self._warm_up, self._epochs)


if __name__ == "__main__":
    sys.exit(main("overhead", overhead))
