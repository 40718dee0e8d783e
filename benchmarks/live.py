"""What an epoch costs with two live values, against the same one with literals, and against what is done without them.

*literal*: the numbers stand in the plan. *live*: they are two live values, in three places. *table*: every epoch joins
a static table of one row, read from a file. *broadcast*: a function of ``foreachBatch`` reads the file and broadcasts
it. Source, expressions and sink are the same. All four run at once, each in a job of its name, but only one has
something to read: the next file goes to the next of them, so whatever disturbs the machine disturbs all of them alike.
An epoch takes what Spark calls triggerExecution.

Then the records that a change leaves are counted, and a driver is killed in the middle of an epoch of each of the ways
whose value has just been changed: what does the epoch see that the next driver runs again?
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
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
_ROWS: Final = 1_000_000  #: in one epoch
_WARM_UP: Final = 10  #: epochs that do not count: Spark compiles
_EPOCHS: Final = 60  #: of each variant
_CHANGES: Final = 20
_POLL_SECONDS: Final = 0.02
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
    rows, warm_up, epochs, tasks = (1_000, 1, 2, _TASKS[:1]) if quick else (_ROWS, _WARM_UP, _EPOCHS, _TASKS)
    with session() as spark, tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
        bench = _Bench(spark, Path(root), rows)
        found = {number: bench.compared(number, warm_up, epochs) for number in tasks}
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
        "epochs_per_variant": epochs,
        "median_epoch_ms": _rounded(medians, 1000, 1),
        "against_literals": {
            number: {name: round(seconds / each["literal"], 3) for name, seconds in each.items()}
            for number, each in medians.items()
        },
        "writes": writes,
        "seen_by_an_epoch_before_and_after_a_crash": seen,
    }


class _Query:
    """A query that has an epoch for each file that it is given."""

    def __init__(self, started: StreamingQuery, folder: Path, file: Path) -> None:
        self._started, self._folder, self._file = started, folder, file
        self._epochs = 0

    def epoch(self) -> float:
        """Run one epoch; returns its seconds."""
        hidden = self._folder / f".{self._epochs}"
        shutil.copyfile(self._file, hidden)
        hidden.rename(self._folder / f"{self._epochs:06}.parquet")
        epoch, self._epochs = self._epochs, self._epochs + 1
        while True:
            for progress in reversed(self._started.recentProgress):
                if progress.batchId == epoch and progress.numInputRows > 0:
                    return float(progress.durationMs["triggerExecution"]) / 1000
            if not self._started.isActive:
                raise RuntimeError(f"the query ended: {self._started.exception()}")
            time.sleep(_POLL_SECONDS)


class _Bench:
    """The variants, and the file that all of them read."""

    def __init__(self, spark: SparkSession, root: Path, rows: int) -> None:
        self._spark, self._root = spark, root
        self._rows = root / "rows.parquet"
        self._numbers = root / "numbers.json"
        self._numbers.write_text(json.dumps({"minutes": _MINUTES, "factor": _FACTOR}))
        # As many groups of rows as there may be tasks.
        pq.write_table(pa.table({"value": range(rows)}), self._rows, row_group_size=max(1, rows // max(_TASKS)))
        self._variants: dict[str, _Variant] = {
            "literal": self._literal,
            "live": self._live,
            "table": self._table,
            "broadcast": self._broadcast,
        }

    def compared(self, tasks: int, warm_up: int, epochs: int) -> dict[str, list[float]]:
        """Return the seconds of the epochs of each variant."""
        self._spark.conf.set("spark.sql.files.maxPartitionBytes", -(-self._rows.stat().st_size // tasks))
        found: dict[str, list[float]] = {name: [] for name in self._variants}
        with contextlib.ExitStack() as running:
            queries = {
                name: running.enter_context(self._running(f"{name}-{tasks}", variant))[1]
                for name, variant in self._variants.items()
            }
            for number in range(warm_up + epochs):
                # In reverse order every other time, so that no variant always comes first.
                for name in list(queries)[:: -1 if number % 2 else 1]:
                    seconds = queries[name].epoch()
                    if number >= warm_up:
                        found[name].append(seconds)
        return found

    def writes(self, changes: int) -> dict[str, float]:
        """Return the durable records of a change, in the log of the job and in the one of its query."""
        limits: list[cc.Live[Limits]] = []

        def declared(job: cc.Job, frame: DataFrame) -> DataStreamWriter:
            limits.append(job.live("limits", Limits()))
            return _judged(frame, limits[0].minutes, sf.lit(_FACTOR)).writeStream.format("noop")

        with self._running("writes", declared) as (job, query):
            query.epoch()
            files, writer = _log_files(self._root / "writes"), job._driver.runtime.writer
            records = writer.records
            for _ in range(3):
                query.epoch()
            idle = writer.records - records
            for number in range(changes):
                limits[0].set(minutes=_MINUTES + 1 + number)
                query.epoch()
                query.epoch()
            return {
                "log_per_change": (_log_files(self._root / "writes") - files) / changes,
                "query_per_change": (writer.records - records - idle) / changes,
                "query_without_change": float(idle),
            }

    @contextlib.contextmanager
    def _running(self, name: str, variant: _Variant) -> Iterator[tuple[cc.Job, _Query]]:
        folder = self._root / f"in-{name}"
        folder.mkdir()
        reader = self._spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
        with cc.Job(name, self._spark, root=str(self._root)) as job:
            yield job, _Query(job.start("query", variant(job, reader.parquet(str(folder)))), folder, self._rows)

    def _literal(self, job: cc.Job, frame: DataFrame) -> DataStreamWriter:
        return _judged(frame, sf.lit(_MINUTES), sf.lit(_FACTOR)).writeStream.format("noop")

    def _live(self, job: cc.Job, frame: DataFrame) -> DataStreamWriter:
        limits, weights = job.live("limits", Limits()), job.live("weights", Weights())
        return _judged(frame, limits.minutes, weights.factor).writeStream.format("noop")

    def _table(self, job: cc.Job, frame: DataFrame) -> DataStreamWriter:
        table = self._spark.read.schema("minutes double, factor double").json(str(self._numbers))
        joined = frame.crossJoin(sf.broadcast(table))
        return _judged(joined, sf.col("minutes"), sf.col("factor")).writeStream.format("noop")

    def _broadcast(self, job: cc.Job, frame: DataFrame) -> DataStreamWriter:
        def write(batch: DataFrame, epoch: int) -> None:
            numbers = self._spark.sparkContext.broadcast(json.loads(self._numbers.read_text()))
            minutes, factor = numbers.value["minutes"], numbers.value["factor"]
            _judged(batch, sf.lit(minutes), sf.lit(factor)).write.format("noop").mode("overwrite").save()
            numbers.unpersist()

        return frame.writeStream.foreachBatch(write)


def _judged(frame: DataFrame, minutes: Column, factor: Column) -> DataFrame:
    """Use both numbers, in three expressions; Spark makes the same plan of columns and of literals."""
    delay = sf.pmod(sf.xxhash64("value"), sf.lit(1000)) / 10
    weighted, late = (delay * factor).alias("weighted"), (delay - minutes).alias("late")
    return frame.where(delay > minutes).select("value", weighted, late)


def _log_files(job: Path) -> int:
    """Count the files of the log of the job's live values; each holds one change."""
    return sum(1 for path in (job / "live").rglob("*.log"))


def _rounded(found: dict[int, dict[str, float]], scale: int, digits: int) -> dict[int, dict[str, float]]:
    return {
        number: {name: round(scale * value, digits) for name, value in each.items()} for number, each in found.items()
    }


if __name__ == "__main__":
    sys.exit(main("live", live))
