"""The job that is killed: `python driver.py FOLDER SEED [--finish] [--saving] [--restore REF]`.

Query `ledger` has an operator of four subtasks that talks with its coordinator in numbered events, both ways; query
`counts` is a plain stateful aggregation. Both read the numbered rows in FOLDER/in, a file per epoch. Tasks and whole
batches fail at random, in the user's function and behind it (after the acknowledgement). Whatever is seen that must
not be is noted in FOLDER/violations, which outlives every process.

With `--finish` the queries process what is there and end; then the output is read back as Spark shows it. With
`--saving` checkpoints and savepoints are taken one after the other. With `--restore` the job goes on from one of them,
and what it writes from then on, and is served, is another story: it has a folder of its own.

With COORD_KILL_CLUSTER (its URL, the driver's port, the port under which executors reach it) the job runs on that
standalone cluster, where some attempts are so slow that Spark starts a second one beside them, and where one of them
stops when it is asked to (`freezing.py`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import coord_control as cc
from coord_control.errors import CheckpointNotCompleted, Fenced, JobClosed
from tests.kill.books import PARTICIPANTS, RETAIN, Books, Ledger, Order, Report, Violation, story_folder, violated
from tests.kill.freezing import is_only_saving, stop_if_asked, under_way
from tests.kill.pausing import pause_if_asked

_OUTPUT: Final = "n long, subtask int, epoch long, first_order long, last_order long, first_report long"
_INPUT: Final = "n LONG, key LONG"
_ATTEMPTS: Final = 3  # of a task, see the master
_SLOW_SECONDS: Final = 5.0
_HEARTBEAT_SECONDS: Final = 8
_CLUSTER: Final = os.environ.get("COORD_KILL_CLUSTER", "").split()
#: Why a checkpoint of a job may come to nothing whose batches fail on purpose.
_EXPECTED: Final = {"query_restarting", "query_failed", "job_ending", "not_running"}


class Accountant(cc.OperatorCoordinator):
    """Answers every report with an order to another subtask, and sends orders from a thread of its own as well.

    One lock keeps the books, the sends and the snapshot point together (docs/protocol.md, section 8).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._books = Books()
        self._channel: cc.CoordinatorContext | None = None  # renewed together with the books
        self._asked: list[cc.SnapshotResult] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._talk, name="accountant", daemon=True)

    def start(self) -> None:
        with self._lock:
            self._channel = self.context
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def reset_to_checkpoint(self, checkpoint_id: int, data: bytes | None) -> None:
        with self._lock:
            self._books = Books() if data is None else Books.model_validate_json(data)
            self._channel = self.context
            self._asked = []

    def checkpoint_coordinator(self, checkpoint_id: int, result: cc.SnapshotResult) -> None:
        with self._lock:
            if checkpoint_id % 3:
                result.complete(self._books.model_dump_json().encode())
            else:
                self._asked.append(result)  # answered by the other thread

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        with self._lock:
            try:
                self._books.received[subtask].enter(event)
            except Violation as error:
                raise violated(self._folder / "violations", f"coordinator, subtask {subtask}: {error}") from error
            self._send((subtask + 1) % PARTICIPANTS)

    def _talk(self) -> None:
        while not self._closed.wait(random.uniform(0.005, 0.05)):
            with self._lock:
                self._send(random.randrange(PARTICIPANTS))
                for result in self._asked:
                    result.complete(self._books.model_dump_json().encode())
                self._asked = []
                self._send(random.randrange(PARTICIPANTS))

    def _send(self, subtask: int) -> None:
        assert self._channel is not None
        page = self._books.sent[subtask]
        order = Order(number=page.number + 1, value=random.getrandbits(40))
        page.enter(order)
        self._channel.send(subtask, order)


@dataclass(frozen=True)
class Worker:
    """The user's function and what makes it fail; travels to the executors."""

    folder: Path
    seed: int

    def work(self, subtask: cc.Subtask[Ledger], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ledger = subtask.state
        self._must_be_the_same(subtask)
        first_order, first_report = ledger.received.number + 1, ledger.sent.number + 1
        for order in subtask.events:
            try:
                ledger.received.enter(order)  # type: ignore[arg-type]
            except Violation as error:
                where = f"subtask {subtask.index}, epoch {subtask.epoch}"
                raise violated(self.folder / "violations", f"{where}: {error}") from error
        self._fail("before", subtask.epoch, subtask.index, once_in=6)
        if _CLUSTER:
            self._linger(subtask.epoch, subtask.index)
        for batch in batches:
            ledger.rows += batch.num_rows
            same = [subtask.index, subtask.epoch, first_order, ledger.received.number, first_report]
            columns = [pa.array([value] * batch.num_rows, pa.int64()) for value in same]
            columns[0] = columns[0].cast(pa.int32())
            names = ["n", "subtask", "epoch", "first_order", "last_order", "first_report"]
            yield pa.RecordBatch.from_arrays([batch.column("n"), *columns], names)
        for _ in range((subtask.epoch + subtask.index) % 3):
            report = Report(number=ledger.sent.number + 1, value=ledger.received.check ^ ledger.rows)
            ledger.sent.enter(report)
            subtask.send(report)
        self._fail("after", subtask.epoch, subtask.index, once_in=8)
        if _CLUSTER:
            stop_if_asked(self.folder)

    def stumble(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Behind the operator: a failure at the end of the rows comes after the acknowledgement."""
        yield from batches
        context = TaskContext.get()
        assert context is not None
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        self._fail("behind", epoch, context.partitionId(), once_in=6)

    def _must_be_the_same(self, subtask: cc.Subtask[Ledger]) -> None:
        # Invariant I3, over all attempts, runs and drivers: the first one notes what it was served.
        served = json.dumps([subtask.state.model_dump(), [event.model_dump() for event in subtask.events]])
        folder = self.folder / "served"
        path = folder / f"{subtask.epoch}-{subtask.index}.json"
        draft = folder / f".{uuid.uuid4().hex}"
        draft.write_text(served)
        try:
            os.link(draft, path)
        except FileExistsError:
            if (before := path.read_text()) != served:
                what = f"subtask {subtask.index}, epoch {subtask.epoch} was served {before}, now {served}"
                raise violated(self.folder / "violations", what) from None
        finally:
            draft.unlink()

    def _linger(self, epoch: int, subtask: int) -> None:
        """Now and then be slow, until another attempt has begun beside this one."""
        if zlib.crc32(f"{self.seed} slow {epoch} {subtask}".encode()) % 10:
            return
        context = TaskContext.get()
        assert context is not None
        slow = self.folder / "slow" / f"{epoch}-{subtask}"
        second = slow.with_suffix(".second")
        if context.attemptNumber() > 0:
            if slow.exists():
                second.touch()
            return
        slow.touch()
        deadline = time.monotonic() + _SLOW_SECONDS
        while not second.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        slow.unlink()

    def _fail(self, where: str, epoch: int, subtask: int, once_in: int) -> None:
        context = TaskContext.get()
        assert context is not None
        draw = zlib.crc32(f"{self.seed} {where} {epoch} {subtask}".encode())
        attempt = context.attemptNumber()
        if draw % once_in == 0 and attempt == 0:
            raise RuntimeError(f"task failure on purpose, {where}")
        # Now and then all attempts of a batch, once in the life of the whole job.
        if draw % (once_in * 8) == 1:
            mark = self.folder / "failed" / f"{where}-{epoch}-{subtask}"
            if not mark.exists():
                if attempt == _ATTEMPTS - 1:
                    mark.touch()
                raise RuntimeError(f"batch failure on purpose, {where}")


def count_into(folder: Path) -> Callable[[DataFrame, int], None]:
    """The sink of `counts`: the whole result of an epoch as one file."""

    def write(frame: DataFrame, epoch: int) -> None:
        counts = {row["key"]: row["count"] for row in frame.collect()}
        draft = folder / f".{epoch}"
        draft.write_text(json.dumps(counts))
        draft.replace(folder / f"{epoch}.json")

    return write


def write_into(folder: Path) -> Callable[[DataFrame, int], None]:
    """The sink of `ledger` after a restore: a folder for each epoch.

    Spark's file sink cannot begin in the middle: its log in a new folder lacks what lies before.
    """

    def write(frame: DataFrame, epoch: int) -> None:
        frame.write.mode("overwrite").parquet(str(folder / str(epoch)))

    return write


def outputs(story: Path) -> list[str]:
    """What `ledger` has written, as Spark reads it."""
    out = story / "out"
    is_file_sink = (out / "_spark_metadata").exists()
    return [str(out)] if is_file_sink else [str(path) for path in out.iterdir()]


def session(folder: Path) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.minBatchesToRetain": str(RETAIN),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
    }
    master = f"local[2,{_ATTEMPTS}]"
    if _CLUSTER:
        master = _CLUSTER[0]
        settings |= on_a_cluster()
    builder = SparkSession.builder.master(master).appName("killed")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def on_a_cluster() -> dict[str, str]:
    return {
        "spark.executor.memory": "600m",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.task.maxFailures": str(_ATTEMPTS),
        # Any free executor takes any task, and rows that a killed one held are not asked for again and again.
        "spark.locality.wait": "0s",
        "spark.shuffle.io.retryWait": "1s",
        "spark.shuffle.io.maxRetries": "1",
        # An executor that stands still is given up within seconds, and whoever waits for its rows gives up as well. The
        # time limits of all that Spark asks (spark.network.timeout) stay as they are.
        "spark.executor.heartbeatInterval": "1s",
        "spark.network.timeoutInterval": "1s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": f"{_HEARTBEAT_SECONDS}s",
        "spark.shuffle.io.connectionTimeout": "5s",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.5",
    }


def save_again_and_again(job: cc.Job, folder: Path) -> None:
    """Take checkpoints, and now and then a savepoint, until the job ends."""
    for number in itertools.count(1):
        try:
            is_savepoint = number % 3 == 0 or is_only_saving(folder)
            handle = job.trigger_savepoint() if is_savepoint else job.trigger_checkpoint()
            while handle.id is None and not handle.done:
                time.sleep(0.02)
            if handle.id is not None:
                under_way(folder, handle.request.kind.value, handle.id)
            handle.wait()
        except (JobClosed, Fenced):
            return
        except CheckpointNotCompleted as error:
            if error.reason == "job_ending":
                return
            if error.reason not in _EXPECTED:
                raise violated(folder / "violations", f"a checkpoint failed: {error}") from error
        time.sleep(random.uniform(0.0, 0.2))


def main(folder: Path, seed: int, *, finish: bool, saving: bool, restore: str | None) -> None:
    pause_if_asked(folder)
    spark = session(folder)
    story = story_folder(folder, restore)
    trigger: dict[str, Any] = {"availableNow": True} if finish else {"processingTime": "0 seconds"}

    def rows() -> DataFrame:
        return spark.readStream.schema(_INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "in"))

    def query(frame: DataFrame) -> Any:
        return frame.writeStream.trigger(**trigger)

    checkpoints = cc.CheckpointOptions(retained=2)
    ports: dict[str, Any] = {}
    if _CLUSTER:
        ports = {"port": int(_CLUSTER[1]), "advertised_port": int(_CLUSTER[2])}
    root = str(folder / "jobs")
    # Restored, it writes elsewhere: the sink of the story before keeps what it has.
    with cc.Job(
        "killed",
        spark,
        root=root,
        checkpoints=checkpoints,
        restore_from=restore,
        accept_skipped_epochs=True,
        **ports,
    ) as job:
        worker = Worker(story, seed)
        accountant = job.operator(
            "accountant", Accountant(story), parallelism=PARTICIPANTS, state=Ledger, down=[Order], up=[Report]
        )
        worked = accountant.apply(rows(), worker.work, schema=_OUTPUT, partition_by=["key"])
        output = query(worked.mapInArrow(worker.stumble, _OUTPUT))
        if restore is None:
            output = output.format("parquet").option("path", str(folder / "out"))
        else:
            output = output.foreachBatch(write_into(story / "out"))
        job.start("ledger", output)
        counts = query(rows().groupBy("key").count()).outputMode("complete").foreachBatch(count_into(story / "counts"))
        job.start("counts", counts)
        if _CLUSTER and job._driver.runtime.endpoint.address.certificate is None:
            raise violated(folder / "violations", "TLS is off, and the master is not local")
        if saving:
            threading.Thread(target=save_again_and_again, args=(job, folder), daemon=True).start()
        job.await_termination()
        if finish:
            for place in {folder, story}:
                found = [row.asDict() for row in spark.read.parquet(*outputs(place)).collect()]
                (place / "result.json").write_text(json.dumps({"rows": found}))
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--finish", action="store_true")
    parser.add_argument("--saving", action="store_true")
    parser.add_argument("--restore")
    main(**vars(parser.parse_args()))
