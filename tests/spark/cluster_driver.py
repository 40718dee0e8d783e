"""The job on a cluster: `python cluster_driver.py FOLDER`; its tasks run in executors that are killed one by one.

The master is a `local-cluster`: Spark's standalone master and two workers live in the driver's JVM, and each executor
is a JVM of its own, with Python workers of its own. The job is the dialogue of numbered events of `tests.spark.jobs`.

A driver that wants to kill an executor arms a moment; the first task that meets it says who it is and waits for its
end. After each kill the input goes on, epoch by epoch, until the executor that took the lost one's place has run a
task. What was seen is left in FOLDER/result.json.
"""

from __future__ import annotations

import enum
import json
import os
import signal
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

import coord_control as cc
from coord_control.ids import QueryName
from coord_control.spark.session import is_local
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    QUICK,
    SCHEMA,
    Dialogue,
    Memory,
    apply,
    followed,
    query_status,
    rows,
)
from tests.spark.jobs import talk as declare
from tests.spark.streams import FileStream

__all__ = ["OPERATOR", "PARALLELISM", "Moment"]

OPERATOR: Final = "op"
PARALLELISM: Final = 4
_EXECUTORS: Final = 2
_MEGABYTES: Final = 600
#: After each kill, when there are as many executors as before.
_QUIET_EPOCHS: Final = 1


class Moment(enum.Enum):
    """When an executor is killed, in the life of one task."""

    RUNNING = "running"  #: in the user's function, before the acknowledgement; the Python worker ends as well
    ACKED = "acked"  #: acknowledged, and Spark does not know yet: another executor runs the subtask again
    ORPHANED = "orphaned"  #: like running, but the Python worker lives on and acknowledges when its epoch is over


@dataclass(frozen=True)
class Place:
    """Where a piece of Python ran."""

    python: int
    executor: int
    command: str  #: of the executor

    @classmethod
    def here(cls) -> Place:
        executor = psutil.Process(os.getppid()).parent()  # between them is the daemon that forks workers
        assert executor is not None
        return cls(os.getpid(), executor.pid, " ".join(executor.cmdline()))


@dataclass(frozen=True)
class Tasks:
    """The executors' side; travels to them."""

    folder: Path

    def run(self, subtask: cc.Subtask[Memory]) -> None:
        """At the end of the user's function."""
        _leave(self.folder / "calls" / f"{uuid.uuid4().hex}.json", Place.here())
        self._meet(Moment.RUNNING)
        self._meet(Moment.ORPHANED)

    def behind(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Behind the operator: the end of the rows comes after the acknowledgement."""
        yield from batches
        self._meet(Moment.ACKED)

    def _meet(self, moment: Moment) -> None:
        try:
            (self.folder / moment.name).unlink()  # of several tasks one is the victim
        except FileNotFoundError:
            return
        if moment is Moment.ORPHANED:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # how PySpark's daemon ends its workers
        _leave(self.folder / f"{moment.name}.json", Place.here())
        deadline = time.monotonic() + SECONDS
        while not (self.folder / f"{moment.name}.over").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("nobody has killed this executor")
            time.sleep(0.01)


class Trial:
    """The driver's side: feeds, arms, kills, and looks who works."""

    def __init__(self, folder: Path, spark: SparkSession, job: cc.Job) -> None:
        self.epochs = 0
        self._folder = folder
        self._job = job
        self._source = FileStream(spark, folder / "in", SCHEMA, "json")

    def start(self, coordinator: Dialogue) -> None:
        tasks = Tasks(self._folder)
        operator = declare(self._job, coordinator, OPERATOR, PARALLELISM)
        out = apply(operator, self._source.read(), followed(tasks.run)).mapInArrow(tasks.behind, SCHEMA)
        self._job.start("q", out.writeStream.format("parquet").option("path", str(self._folder / "out")))

    def run_until(self, condition: Callable[[], object]) -> None:
        """Run epochs, one after the other, until it is true; what it waits for must happen."""

        def is_true_after_another_epoch() -> bool:
            self._run_epoch()
            return bool(condition())

        eventually(is_true_after_another_epoch)

    def places(self) -> list[Place]:
        """Of all calls of the user's function so far."""
        return [_read(path) for path in sorted((self._folder / "calls").glob("*.json"))]

    def executors(self) -> set[int]:
        return {place.executor for place in self.places()}

    def kill(self, moment: Moment) -> Place:
        """Kill an executor at ``moment`` of a task, and run on until another one has taken its place."""
        before = self.executors()
        (self._folder / moment.name).touch()
        self._feed()
        note = self._folder / f"{moment.name}.json"
        eventually(note.exists)
        victim = _read(note)
        os.kill(victim.executor, signal.SIGKILL)
        self._await_commit()
        if moment is Moment.ORPHANED:
            assert _is_running(victim.python)
            (self._folder / f"{moment.name}.over").touch()  # what it acknowledges now, it acknowledges too late
        eventually(lambda: not _is_running(victim.python))
        self.run_until(lambda: self.executors() - before)
        for _ in range(_QUIET_EPOCHS):
            self._run_epoch()
        return victim

    def _run_epoch(self) -> None:
        self._feed()
        self._await_commit()

    def _feed(self) -> None:
        self._source.add(rows(self.epochs))
        self.epochs += 1

    def _await_commit(self) -> None:
        # Not waited for: it raises what a query has failed with.
        eventually(lambda: self._job.await_termination(0) or query_status(self._job).committed == self.epochs - 1)


def session(folder: Path) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
        "spark.executor.memory": f"{_MEGABYTES}m",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        # Any free executor takes any task, and rows that a killed one held are not asked for again and again.
        "spark.locality.wait": "0s",
        "spark.shuffle.io.retryWait": "1s",
        "spark.task.maxFailures": "10",
    }
    builder = SparkSession.builder.master(f"local-cluster[{_EXECUTORS},1,{_MEGABYTES}]").appName("on a cluster")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(folder: Path) -> None:
    (folder / "calls").mkdir()
    spark = session(folder)
    coordinator = Dialogue()
    with cc.Job("remote", spark, root=str(folder / "jobs"), restart=QUICK) as job:
        trial = Trial(folder, spark, job)
        trial.start(coordinator)
        trial.run_until(lambda: len(trial.executors()) == _EXECUTORS)
        victims = {moment.name: asdict(trial.kill(moment)) for moment in Moment}
        address = job._driver.runtime.endpoint.address
        (operator,) = job.status().operators
        query = query_status(job)
        result = {
            "master_is_local": is_local(str(spark.sparkContext.master)),
            "pinned": address.certificate,
            "served": ssl.get_server_certificate((address.host, address.port)),
            "driver": [os.getpid(), spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()],  # type: ignore[union-attr]
            "epochs": trial.epochs,
            "places": [asdict(place) for place in trial.places()],
            "victims": victims,
            "totals": asdict(operator.totals),
            "restarts": query.restarts,
            "failure": query.last_failure,
            "rows": [row.asDict() for row in spark.read.parquet(str(folder / "out")).collect()],
        }
        lineage = job._driver.queries[QueryName("q")].lineage
    result["book"] = coordinator.state.model_dump()
    result["checkpoint"], result["records"] = lineage.checkpoint, lineage.epochs
    (folder / "result.json").write_text(json.dumps(result))
    spark.stop()


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)  # nobody may be there to reap an orphan
    except psutil.NoSuchProcess:
        return False


def _leave(path: Path, place: Place) -> None:
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(json.dumps(asdict(place)))
    hidden.rename(path)


def _read(path: Path) -> Place:
    return Place(**json.loads(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
