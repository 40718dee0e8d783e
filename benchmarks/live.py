"""What an epoch costs with two live values, against the same epoch with literals and with what is done without them.

*literal*: the numbers stand in the plan. *live*: they are two live values, in three places. *table*: every epoch joins
a static table of one row, read from a file. *broadcast*: a function of ``foreachBatch`` reads the file and broadcasts
it. The job, the source, the expressions and the sink are the same. Each variant runs in short segments, one after the
other, again and again, with few tasks and with many. An epoch takes what Spark calls triggerExecution.

Then the records that a change leaves are counted, and a driver is killed in the middle of an epoch of each of the ways
whose value has just been changed: what does the epoch see that the next driver runs again?
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from benchmarks.live_crash import crashes
from benchmarks.report import Goal, at_most, main, median
from benchmarks.session import session

_TASKS: Final = (2, 64)
_ROWS: Final = 2_000_000  #: in one epoch
_WARM_UP: Final = 4  #: epochs of each segment that do not count: Spark plans and compiles again
_SEGMENT: Final = 12  #: epochs of each segment that count
_ROUNDS: Final = 6
_CHANGES: Final = 20
_POLL_SECONDS: Final = 0.05
_MINUTES: Final = 30.0
_FACTOR: Final = 1.5

#: Writes a frame that is judged by the two numbers.
_Variant: TypeAlias = Callable[[cc.Job, DataFrame], DataStreamWriter]


class Limits(BaseModel):
    minutes: float = _MINUTES


class Weights(BaseModel):
    factor: float = _FACTOR


def live(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Epochs with live values, literals, a joined table and a broadcast variable; writes of a change; a crash."""
    rounds, epochs, warm_up, rows, tasks = (
        (1, 2, 1, 1_000, _TASKS[:1]) if quick else (_ROUNDS, _SEGMENT, _WARM_UP, _ROWS, _TASKS)
    )
    with session() as spark, tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
        bench = _Bench(spark, Path(root), rows, warm_up, epochs)
        found = {number: bench.compared(number, rounds) for number in tasks}
        writes = bench.writes(2 if quick else _CHANGES)
    with tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
        seen = crashes(Path(root))
    medians = {
        number: {name: median(seconds) for name, seconds in variants.items()} for number, variants in found.items()
    }
    goals = [
        at_most(f"epoch of {number} tasks with two live values", each["live"] / each["literal"], 1.02, "x literals")
        for number, each in medians.items()
    ]
    goals += [
        at_most("a change", writes["log_per_change"], 1.0, "durable record"),
        at_most("... in each query, with its next epoch", writes["query_per_change"], 1.0, "durable record"),
        at_most("epochs without a change", writes["query_without_change"], 0.0, "durable records"),
        at_most("values that a live value has in an epoch that is run again", len(set(seen["live"])), 1.0, ""),
    ]
    return goals, {
        "rows_per_epoch": rows,
        "epochs_per_variant": rounds * epochs,
        "median_epoch_ms": _rounded(medians, 1000, 1),
        "against_literals": {
            number: {name: round(seconds / each["literal"], 3) for name, seconds in each.items()}
            for number, each in medians.items()
        },
        "writes": writes,
        "seen_by_an_epoch_before_and_after_a_crash": seen,
    }


class _Bench:
    """Runs one segment of each variant; each resumes where its last one stopped."""

    def __init__(self, spark: SparkSession, root: Path, rows: int, warm_up: int, epochs: int) -> None:
        self._spark, self._root, self._rows = spark, root, rows
        self._warm_up, self._epochs = warm_up, epochs
        self._file = root / "numbers.json"
        self._file.write_text(json.dumps({"minutes": _MINUTES, "factor": _FACTOR}))
        self._variants: dict[str, _Variant] = {
            "literal": self._literal,
            "live": self._live,
            "table": self._table,
            "broadcast": self._broadcast,
        }

    def compared(self, tasks: int, rounds: int) -> dict[str, list[float]]:
        """Return the seconds of the epochs of each variant."""
        found: dict[str, list[float]] = {name: [] for name in self._variants}
        for number in range(rounds + 1):
            # In reverse order every other time, so that no variant always comes first.
            for name in list(self._variants)[:: -1 if number % 2 else 1]:
                with self._running(f"{name}-{tasks}", tasks, self._variants[name]) as (_, started):
                    seconds = self._measured(started)
                if number:  # the first round compiles
                    found[name] += seconds
        return found

    def writes(self, changes: int) -> dict[str, float]:
        """Return the durable records of a change, in the log of the job and in the one of its query."""
        limits: list[Any] = []

        def declared(job: cc.Job, frame: DataFrame) -> DataStreamWriter:
            limits.append(job.live("limits", Limits()))
            return _judged(frame, limits[0].minutes, sf.lit(_FACTOR)).writeStream.format("noop")

        with self._running("writes", _TASKS[0], declared) as (job, started):
            _await(started, 1)
            files, writer = _log_files(self._root / "writes"), job._driver.runtime.writer
            records, first = writer.records, limits[0].get().minutes
            _await(started, _newest(started) + 3)
            idle = writer.records - records
            for number in range(changes):
                limits[0].set(minutes=first + 1 + number)
                _await(started, _newest(started) + 3)
            return {
                "log_per_change": (_log_files(self._root / "writes") - files) / changes,
                "query_per_change": (writer.records - records - idle) / changes,
                "query_without_change": float(idle),
            }

    @contextlib.contextmanager
    def _running(self, name: str, tasks: int, variant: _Variant) -> Iterator[tuple[cc.Job, StreamingQuery]]:
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self._rows)
        frame = source.option("numPartitions", tasks).load()
        with cc.Job(name, self._spark, root=str(self._root)) as job:
            yield job, job.start("query", variant(job, frame))

    def _literal(self, job: cc.Job, frame: DataFrame) -> DataStreamWriter:
        return _judged(frame, sf.lit(_MINUTES), sf.lit(_FACTOR)).writeStream.format("noop")

    def _live(self, job: cc.Job, frame: DataFrame) -> DataStreamWriter:
        limits, weights = job.live("limits", Limits()), job.live("weights", Weights())
        return _judged(frame, limits.minutes, weights.factor).writeStream.format("noop")

    def _table(self, job: cc.Job, frame: DataFrame) -> DataStreamWriter:
        table = self._spark.read.schema("minutes double, factor double").json(str(self._file))
        joined = frame.crossJoin(sf.broadcast(table))
        return _judged(joined, sf.col("minutes"), sf.col("factor")).writeStream.format("noop")

    def _broadcast(self, job: cc.Job, frame: DataFrame) -> DataStreamWriter:
        def write(batch: DataFrame, epoch: int) -> None:
            numbers = self._spark.sparkContext.broadcast(json.loads(self._file.read_text()))
            minutes, factor = numbers.value["minutes"], numbers.value["factor"]
            _judged(batch, sf.lit(minutes), sf.lit(factor)).write.format("noop").mode("overwrite").save()
            numbers.unpersist()

        return frame.writeStream.foreachBatch(write)

    def _measured(self, started: StreamingQuery) -> list[float]:
        """Seconds of the epochs after the warm-up."""
        first = _newest(started)
        _await(started, first + self._warm_up + self._epochs)
        counted = range(first + self._warm_up + 1, first + self._warm_up + self._epochs + 1)
        return [p.durationMs["triggerExecution"] / 1000 for p in started.recentProgress if p.batchId in counted]


def _judged(frame: DataFrame, minutes: Column, factor: Column) -> DataFrame:
    """Use both numbers, on every row and on those that are kept."""
    delay = sf.pmod(sf.xxhash64("value"), sf.lit(1000)) / 10
    kept = frame.withColumn("delay", delay * factor).where(sf.col("delay") > minutes)
    return kept.select("value", "delay", (sf.col("delay") - minutes).alias("late"))


def _newest(started: StreamingQuery) -> int:
    """Return the newest epoch that has ended, after waiting for one."""
    while (progress := started.lastProgress) is None:
        _check(started)
        time.sleep(_POLL_SECONDS)
    return int(progress.batchId)


def _await(started: StreamingQuery, epoch: int) -> None:
    while _newest(started) < epoch:
        _check(started)
        time.sleep(_POLL_SECONDS)


def _check(started: StreamingQuery) -> None:
    if not started.isActive:
        raise RuntimeError(f"the query ended: {started.exception()}")


def _log_files(job: Path) -> int:
    """Count the files of the log of the job's live values; each holds one change."""
    return sum(1 for path in (job / "live").rglob("*.log"))


def _rounded(found: dict[int, dict[str, float]], scale: int, digits: int) -> dict[int, dict[str, float]]:
    return {
        number: {name: round(scale * value, digits) for name, value in each.items()} for number, each in found.items()
    }


if __name__ == "__main__":
    sys.exit(main("live", live))
