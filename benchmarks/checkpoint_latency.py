"""How long a checkpoint takes, and what it costs the query: parts of :mod:`benchmarks.checkpoints`.

*idle*: from the trigger to the completed checkpoint or savepoint, of a job whose operator has four subtasks and nothing
to do. *running*: from the end of the epoch at which it was cut, which is when Spark's entry in the commit log was
written; where no epoch was open, from the trigger. *stall*: the same query without, and with savepoints one after
another without a pause, in turns.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import coord_control as cc
from benchmarks import checkpoint_queries as queries
from benchmarks import query
from benchmarks.checkpoint_queries import Part
from benchmarks.report import at_most, median

__all__ = ["idle", "running", "stall"]

_TRIGGERS: Final = 40
_WAIT_SECONDS: Final = 60.0
_LONGEST_PAUSE_SECONDS: Final = 0.5
_WARM_UP: Final = 10  #: epochs that do not count
_SEGMENT: Final = 7  #: epochs that count, of each variant in turn: short, because the speed of a machine drifts
_SEGMENTS: Final = 10


def idle(spark: SparkSession, root: str, quick: bool) -> Part:
    """Measure checkpoints and savepoints of an idle job."""
    count = 3 if quick else _TRIGGERS
    seconds: dict[str, list[float]] = {"checkpoint": [], "savepoint": []}
    with cc.Job("idle", spark, root=root) as job:
        queries.start_idle(spark, job, f"{root}/idle-rows")
        for _ in range(count):
            for kind, trigger in (("checkpoint", job.trigger_checkpoint), ("savepoint", job.trigger_savepoint)):
                began = time.monotonic()
                trigger().wait(_WAIT_SECONDS)
                seconds[kind].append(time.monotonic() - began)
    goals = [at_most(f"idle job, {kind}", 1000 * median(those), 50, "ms") for kind, those in seconds.items()]
    return Part(goals, {kind: {"ms": _milliseconds(those)} for kind, those in seconds.items()})


def running(spark: SparkSession, root: str, quick: bool) -> Part:
    """Measure checkpoints and savepoints of a running job."""
    count = 3 if quick else _TRIGGERS
    after_epoch: list[float] = []
    after_trigger: list[float] = []
    source = random.Random(1)
    queries.use_rocksdb(spark)
    with cc.Job("running", spark, root=root) as job:
        started = queries.start_running(spark, job)
        _await_epochs(started, _WARM_UP)
        for number in range(count):
            time.sleep(source.uniform(0, _LONGEST_PAUSE_SECONDS))  # any moment of an epoch
            triggered = time.time()
            handle = job.trigger_savepoint() if number % 2 else job.trigger_checkpoint()
            completed = handle.wait(_WAIT_SECONDS)
            now = time.time()
            ended = _epoch_end(f"{root}/running", completed.path)
            (after_epoch if ended >= triggered else after_trigger).append(now - max(ended, triggered))
    both = after_epoch + after_trigger
    return Part(
        [at_most("running job, after its epoch", 1000 * median(both), 50, "ms")],
        {"after_the_epoch_ms": _milliseconds(after_epoch), "between_two_epochs_ms": _milliseconds(after_trigger)},
    )


def stall(spark: SparkSession, root: str, quick: bool) -> Part:
    """Measure epochs while savepoints are taken without a pause, against epochs without savepoints."""
    segments, epochs = (1, 3) if quick else (_SEGMENTS, _SEGMENT)
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    ratios = []
    queries.use_rocksdb(spark)
    with cc.Job("stall", spark, root=root) as job:
        started = queries.start_running(spark, job)
        _await_epochs(started, _WARM_UP)
        taken = 0
        for number in range(segments):
            found: dict[str, list[float]] = {}
            for variant in ("without", "with")[:: -1 if number % 2 else 1]:
                with _savepoints(job, variant == "with") as savepoints:
                    found[variant] = _epochs(started, epochs)
                taken += len(savepoints)
            for variant, those in found.items():
                seconds[variant] += those
            ratios.append(median(found["with"]) / median(found["without"]))
    return Part(
        # Of the rounds, because the machine is not equally fast in all of them.
        [at_most("epochs under savepoints", median(ratios), 1.05, "x without")],
        {
            "median_epoch_ms": {name: round(1000 * median(those), 1) for name, those in seconds.items()},
            "epochs": {name: len(those) for name, those in seconds.items()},
            "savepoints": taken,
            "ratio_of_each_round": [round(each, 3) for each in ratios],
        },
    )


def _epoch_end(job_folder: str, path: str) -> float:
    metadata = json.loads(Path(path, "_metadata").read_bytes())
    snapshot = metadata["queries"]["query"]
    commits = queries.spark_directory(job_folder, snapshot["lineage"]) / "commits"
    return (commits / str(snapshot["epoch"])).stat().st_mtime


@contextlib.contextmanager
def _savepoints(job: cc.Job, are_taken: bool) -> Iterator[list[float]]:
    """Take savepoints on a separate thread until the block ends."""
    taken: list[float] = []
    ends = threading.Event()

    def take() -> None:
        while not ends.is_set():
            began = time.monotonic()
            job.trigger_savepoint().wait(_WAIT_SECONDS)
            taken.append(time.monotonic() - began)

    thread = threading.Thread(target=take)
    if are_taken:
        thread.start()
    try:
        yield taken
    finally:
        ends.set()
        if are_taken:
            thread.join()


def _epochs(started: StreamingQuery, count: int) -> list[float]:
    """Return the seconds of the next epochs, without the current one."""
    first = _await_epochs(started, 1) + 1
    _await_epochs(started, count + 1)
    found = [p for p in started.recentProgress if first <= p.batchId < first + count and p.numInputRows == query.ROWS]
    return [p.durationMs["triggerExecution"] / 1000 for p in found]


def _await_epochs(started: StreamingQuery, count: int) -> int:
    """Wait for some epochs, and return the newest one."""
    first = _newest(started)
    queries.wait_until(lambda: _newest(started) >= first + count, started)
    return _newest(started)


def _newest(started: StreamingQuery) -> int:
    progress = started.lastProgress
    return -1 if progress is None else progress.batchId


def _milliseconds(seconds: list[float]) -> dict[str, Any]:
    ordered = sorted(1000 * each for each in seconds)
    if not ordered:
        return {"count": 0}
    names = {"min": 0.0, "median": 0.5, "p90": 0.9, "max": 1.0}
    found = {name: round(ordered[round(at * (len(ordered) - 1))], 1) for name, at in names.items()}
    return {"count": len(ordered), **found}
