"""How soon a job recovers after a failed batch, and after ``kill -9`` of its driver, each against Spark alone.

*batch*: from a task's failure to the first task of the batch that is run again. Spark alone: wait for the exception,
start the same query again from its checkpoint at once. With coordination: restarted in place by the job, back-off
included. *kill*: Python and JVM of a driver are killed in the middle of its work; from the start of the next process to
the first newly committed epoch. Both variants take turns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import coord_control as cc
from benchmarks import query
from benchmarks.report import Goal, at_most, main, median
from benchmarks.restarts import Trap
from benchmarks.session import session

_FAILURES: Final = 9  #: per variant
_KILLS: Final = 5  #: per variant
_EPOCHS_BETWEEN: Final = 5
_POLL_SECONDS: Final = 0.01
_TIMEOUT_SECONDS: Final = 120.0


def recovery(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Restarts in place and restarts of the driver, against those of Spark alone."""
    failures, kills = (1, 1) if quick else (_FAILURES, _KILLS)
    with tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
        batch = _batches(root, failures)
    with tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
        kill = _kills(root, kills)
    medians = {name: median(seconds) for name, seconds in {**batch, **kill}.items()}
    goals = [
        at_most("failed batch, above Spark", medians["batch_coordinated"] - medians["batch_plain"], 1.0, "s"),
        at_most("killed driver", medians["kill_coordinated"] / medians["kill_plain"], 1.10, "x plain"),
    ]
    return goals, {
        "median_seconds": {name: round(seconds, 3) for name, seconds in medians.items()},
        "seconds": {name: [round(s, 3) for s in seconds] for name, seconds in {**batch, **kill}.items()},
    }


def _batches(root: str, failures: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"batch_plain": [], "batch_coordinated": []}
    with session() as spark:
        for number in range(failures + 1):
            plain, coordinated = _plain_failure(spark, root), _coordinated_failure(spark, root)
            if number:  # the first round compiles, forks workers and imports
                found["batch_plain"].append(plain)
                found["batch_coordinated"].append(coordinated)
    return found


def _plain_failure(spark: SparkSession, root: str) -> float:
    trap = _trap(root, "trap-plain")

    def start() -> StreamingQuery:
        return query.start_plain(spark, f"{root}/plain", trap.plain)

    started = start()
    _await_epochs(started)
    trap.set()
    with contextlib.suppress(Exception):
        started.awaitTermination()
    started = start()
    try:
        return trap.wait(lambda: _check(started))
    finally:
        started.stop()


def _coordinated_failure(spark: SparkSession, root: str) -> float:
    trap = _trap(root, "trap-coordinated")
    with cc.Job("job", spark, root=root) as job:
        _await_epochs(query.start_coordinated(spark, job, query.Talkative(), trap.coordinated))
        trap.set()
        return trap.wait(lambda: None)


def _trap(root: str, name: str) -> Trap:
    os.makedirs(f"{root}/{name}", exist_ok=True)
    return Trap(f"{root}/{name}")


def _await_epochs(started: StreamingQuery) -> None:
    """Wait for some epochs."""
    first: int | None = None
    while True:
        _check(started)
        if (progress := started.lastProgress) is not None:
            first = progress.batchId if first is None else first
            if progress.batchId >= first + _EPOCHS_BETWEEN:
                return
        time.sleep(_POLL_SECONDS)


def _check(started: StreamingQuery) -> None:
    if not started.isActive:
        raise RuntimeError(f"the query ended: {started.exception()}")


def _kills(root: str, kills: int) -> dict[str, list[float]]:
    commits = {
        "plain": Path(root, "plain", "commits"),
        "coordinated": Path(root, "job", "queries", "query", "lineage-000001", "spark", "commits"),
    }
    found: dict[str, list[float]] = {"kill_plain": [], "kill_coordinated": []}
    for number in range(kills + 1):
        for variant, folder in commits.items():
            seconds = _life(variant, root, folder)
            if number:  # the first life has nothing to recover
                found[f"kill_{variant}"].append(seconds)
    return found


def _life(variant: str, root: str, commits: Path) -> float:
    """Start a driver, measure, and kill it some epochs later."""
    before = _newest(commits)
    began = time.monotonic()
    with _driver(variant, root) as is_running:
        _wait_for(lambda: _newest(commits) > before, is_running)
        seconds = time.monotonic() - began
        _wait_for(lambda: _newest(commits) > before + _EPOCHS_BETWEEN, is_running)
    return seconds


@contextlib.contextmanager
def _driver(variant: str, root: str) -> Iterator[Callable[[], bool]]:
    command = [sys.executable, "-m", "benchmarks.recovery_driver", variant, root]
    # In its own session: the kill reaches its JVM and its Python workers, and no other process.
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield lambda: process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(condition: Callable[[], bool], is_running: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if not is_running() or time.monotonic() > deadline:
            raise RuntimeError("the driver ended, or committed nothing")
        time.sleep(_POLL_SECONDS)


def _newest(commits: Path) -> int:
    if not commits.is_dir():
        return -1
    return max((int(name) for name in os.listdir(commits) if name.isdigit()), default=-1)


if __name__ == "__main__":
    sys.exit(main("recovery", recovery))
