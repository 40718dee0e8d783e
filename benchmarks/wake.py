"""What an operator with ``wake=True`` costs on a silent stream, and how soon an event is applied there.

Real Spark, real job, a stream of files to which none is added. *Idle* is the CPU time of the driver, JVM included, in
a minute in which nothing happens, for the same job without and with ``wake``, in turns; Spark looks for files all the
time, which is most of it. *Applied* is the time from ``context.send`` until the coordinator has the subtask's report:
the epoch that wakes the subtask is committed by then.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import SparkSession

import coord_control as cc
from benchmarks.report import Goal, at_most, main, median
from benchmarks.session import session
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import spark_position
from coord_control.ids import NO_EPOCH

_PARALLELISM: Final = 4
_IDLE_SECONDS: Final = 60.0
_WARM_SECONDS: Final = 5.0
_ROUNDS: Final = 3
_EVENTS: Final = 30
_WAIT_SECONDS: Final = 120.0


class Ping(BaseModel):
    number: int


class Nothing(BaseModel):
    pass


class Pinger(cc.StatefulCoordinator[Nothing]):
    """Sends a ping, and waits for its echo."""

    def __init__(self) -> None:
        super().__init__(Nothing())
        self._heard = threading.Semaphore(0)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Ping) -> None:
        self._heard.release()

    def ping(self, number: int) -> float:
        """Return the seconds until the echo."""
        began = time.perf_counter()
        self.context.send(number % _PARALLELISM, Ping(number=number))
        assert self._heard.acquire(timeout=_WAIT_SECONDS), "no echo"
        return time.perf_counter() - began


def echo(subtask: cc.Subtask[Nothing], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    for event in subtask.events:
        subtask.send(event)


def wake(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """An idle minute without and with ``wake``, and events on a silent stream."""
    rounds, seconds, events = (1, 1.0, 2) if quick else (_ROUNDS, _IDLE_SECONDS, _EVENTS)
    numbers: dict[str, Any] = {"idle_seconds": seconds, "plain_cpu_seconds": [], "wake_cpu_seconds": []}
    with session() as spark, tempfile.TemporaryDirectory(prefix="coord-bench-") as name:
        folder = Path(name)
        for number in range(rounds):
            for is_waking in (False, True):
                cpu, epochs = _idle(spark, folder / f"{number}-{is_waking}", seconds, is_waking)
                numbers["wake_cpu_seconds" if is_waking else "plain_cpu_seconds"].append(round(cpu, 3))
                assert epochs == 0, "an idle query has run an epoch"
        numbers["applied_ms"] = [round(each * 1000, 1) for each in _applied(spark, folder / "events", events)]
    plain, waking = median(numbers["plain_cpu_seconds"]), median(numbers["wake_cpu_seconds"])
    goals = [
        at_most("idle, more than without wake", 100 * (waking - plain) / seconds, 1.0, "% of a core"),
        at_most("event on a silent stream, median", median(numbers["applied_ms"][events // 3 :]), 2_000.0, "ms"),
    ]
    return goals, numbers


def _started(spark: SparkSession, folder: Path, *, is_waking: bool) -> tuple[cc.Job, Pinger]:
    (folder / "in").mkdir(parents=True)
    pinger = Pinger()
    job = cc.Job("bench", spark, root=str(folder / "jobs"), control="none", metrics="none")
    operator = job.operator(
        "op", pinger, parallelism=_PARALLELISM, state=Nothing, down=[Ping], up=[Ping], wake=is_waking
    )
    silent = spark.readStream.schema("key STRING").json(str(folder / "in"))
    out = operator.apply(silent, echo, schema="key STRING", partition_by=["key"])
    job.start("q", out.writeStream.format("noop"))
    return job, pinger


def _idle(spark: SparkSession, folder: Path, seconds: float, is_waking: bool) -> tuple[float, int]:
    """Return CPU seconds, and how many epochs there were."""
    job, _ = _started(spark, folder, is_waking=is_waking)
    with job:
        time.sleep(min(seconds, _WARM_SECONDS))
        before = _cpu_seconds()
        time.sleep(seconds)
        used = _cpu_seconds() - before
    checkpoint = folder / "jobs" / "bench" / "queries" / "q" / "lineage-000001" / "spark"
    return used, spark_position(LocalFiles(), str(checkpoint))[1] - NO_EPOCH


def _applied(spark: SparkSession, folder: Path, events: int) -> list[float]:
    job, pinger = _started(spark, folder, is_waking=True)
    with job:
        return [pinger.ping(number) for number in range(events)]


def _cpu_seconds() -> float:
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


if __name__ == "__main__":
    sys.exit(main("wake", wake))
