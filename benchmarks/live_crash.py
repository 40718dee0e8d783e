"""A driver that is killed in the middle of an epoch, just after the number that judges its rows was changed.

One job, three queries over the same file, one for each way to change a number while a query runs: a live value, a
static table that every epoch joins, and a broadcast variable that a function of ``foreachBatch`` reads again. Each has
seen 30 when the number becomes 45; then the driver is killed, and the next one runs the epoch again. What both have
written down is compared: ``python -m benchmarks.live_crash FOLDER [change]`` is the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import coord_control as cc
from benchmarks.session import session

__all__ = ["BEFORE", "CHANGED", "WAYS", "crashes"]

WAYS: Final = ("live", "table", "broadcast")
BEFORE: Final = 30.0
CHANGED: Final = 45.0

_POLL_SECONDS: Final = 0.05
_TIMEOUT_SECONDS: Final = 600.0


class Limits(BaseModel):
    minutes: float = BEFORE


def crashes(folder: Path) -> dict[str, list[float]]:
    """Return what the epoch has seen in the driver that was killed, and in the next one, by the way.

    Args:
        folder: empty.
    """
    (folder / "in").mkdir()
    (folder / "in" / "1.json").write_text('{"delay": 95.0}\n')
    _write(folder / "numbers.json", BEFORE)
    with _driver(folder, "change") as process:
        _wait_for((folder / "changed").exists, process)
    with _driver(folder) as process:
        code = process.wait(_TIMEOUT_SECONDS)
        if code != 0:
            raise RuntimeError(f"the second driver ended with {code}: {(folder / 'log').read_text()[-4000:]}")
    return {way: [json.loads(line) for line in (folder / way).read_text().splitlines()] for way in WAYS}


@contextlib.contextmanager
def _driver(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.live_crash", str(folder), *arguments]
    with (folder / "log").open("ab") as log:
        # In its own session: the kill reaches its JVM and its Python workers, and no other process.
        process = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the driver ended, or changed nothing")
        time.sleep(_POLL_SECONDS)


def _write(path: Path, minutes: float) -> None:
    """Replace the file at once, as those do who know that it may be read meanwhile."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"minutes": minutes}))
    draft.rename(path)


class _Driver:
    """One life. If it is to change the number, no epoch ends in it."""

    def __init__(self, folder: Path, spark: SparkSession, *, changes: bool) -> None:
        self._folder, self._spark, self._changes = folder, spark, changes
        self._seen = threading.Semaphore(0)
        self._numbers = folder / "numbers.json"

    def run(self) -> None:
        rows = self._spark.readStream.schema("delay double").json(str(self._folder / "in"))
        with cc.Job("crash", self._spark, root=str(self._folder / "jobs"), control="none", metrics="none") as job:
            limits = job.live("limits", Limits())
            table = self._spark.read.schema("minutes double").json(str(self._numbers))
            frames = {
                "live": rows.select(limits.minutes.alias("minutes")),
                "table": rows.crossJoin(sf.broadcast(table)).select("minutes"),
                "broadcast": rows,
            }
            for way, frame in frames.items():
                writer = frame.writeStream.trigger(availableNow=True)
                job.start(way, writer.foreachBatch(self._function(way)))
            if self._changes:
                for _ in WAYS:
                    self._seen.acquire()
                _write(self._numbers, CHANGED)
                limits.set(minutes=CHANGED)
                (self._folder / "changed").touch()
            job.await_termination()

    def _function(self, way: str) -> Callable[[DataFrame, int], None]:
        def judge(batch: DataFrame, epoch: int) -> None:
            if way == "broadcast":
                numbers = self._spark.sparkContext.broadcast(json.loads(self._numbers.read_text()))
                batch = batch.select(sf.lit(numbers.value["minutes"]).alias("minutes"))
            [row] = batch.collect()
            with (self._folder / way).open("a") as file:
                file.write(f"{row['minutes']}\n")
            self._seen.release()
            if self._changes:
                threading.Event().wait()  # for the kill

        return judge


def _main(folder: Path, *, changes: bool) -> None:
    with session() as spark:
        _Driver(folder, spark, changes=changes).run()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), changes=sys.argv[2:] == ["change"])
