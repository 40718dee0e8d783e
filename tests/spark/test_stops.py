"""Stops with savepoint at random moments: nothing is processed after them, nothing is lost, nothing comes twice.

One stream of rows is processed by a long row of jobs. Each is stopped with a savepoint at a moment that nobody chose:
while it starts, between two epochs, in the middle of one, with and without new rows, with and without other work on the
machine. The next one goes on in place, is restored in place, or is restored below another root. Sinks say when they are
entered, so an epoch that is begun and given up would be seen, and so would one that comes again.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.checkpoints.metadata_file import decode_metadata
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.restore.checks import Verdict
from coord_control.durable.restore.preflight_sinks import SinkOptions, check_sinks
from tests.patience import SECONDS
from tests.spark.jobs import SCHEMA, Dialogue, MakeJob, apply, rows, talk
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

LOGS: Final = ("fileSource", "fileSink")
#: Of three jobs each.
STOPS: Final = 4
STOPS_LONG: Final = 67


class Trail:
    """A foreachBatch function that keeps in which epochs it was entered, and with what."""

    def __init__(self) -> None:
        self.entered: list[int] = []
        self.values: list[int] = []

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        self.entered.append(epoch)
        self.values += [row.value for row in frame.collect()]


@dataclass(slots=True)
class StopsRig:
    """The source, the sinks, and what they were given by all jobs together."""

    source: FileStream
    folder: Path
    trail: Trail = field(default_factory=Trail)
    files: int = 0

    def add(self) -> None:
        """One more epoch's rows; the first has some for the operator that hardly gets any."""
        found = rows(self.files)
        if self.files == 0:
            found = [*found[:-1], {"key": "control", "value": found[-1]["value"]}]
        self.source.add(found)
        self.files += 1

    @property
    def values(self) -> list[int]:
        return list(range(8 * self.files))


def operators(job: cc.Job, rig: StopsRig, coordinator: Dialogue) -> dict[str, DataStreamWriter]:
    """An operator that gets all rows."""
    return {"q": apply(talk(job, coordinator), rig.source.read()).writeStream.foreachBatch(rig.trail)}


def hardly_any_rows(job: cc.Job, rig: StopsRig, coordinator: Dialogue) -> dict[str, DataStreamWriter]:
    """An operator on a branch that has rows once; the epochs go on without it."""
    control = apply(talk(job, coordinator, parallelism=1), rig.source.read().filter("key = 'control'"))
    others = rig.source.read().filter("key <> 'control'")
    return {"q": control.union(others).writeStream.foreachBatch(rig.trail)}


def no_operators(job: cc.Job, rig: StopsRig, coordinator: Dialogue) -> dict[str, DataStreamWriter]:
    """Two queries, of which one writes files."""
    output = str(rig.folder / "output")
    return {
        "q": rig.source.read().writeStream.foreachBatch(rig.trail),
        "files": rig.source.read().writeStream.format("parquet").option("path", output),
    }


Shape = Callable[[cc.Job, StopsRig, Dialogue], dict[str, DataStreamWriter]]


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Something else that happens meanwhile."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def stop_at_random_moments(make_job: MakeJob, spark: SparkSession, rig: StopsRig, shape: Shape, stops: int) -> None:
    rng = random.Random(f"{shape.__name__} {stops}")
    root, reference = rig.folder / "jobs", None
    for number in range(stops):
        job = make_job(root=str(root), restore_from=reference)
        for name, writer in shape(job, rig, Dialogue()).items():
            job.start(name, writer)
        with beside(rows_arrive(rig, rng)), beside(other_work(spark, rng)):
            time.sleep(rng.choice((0.0, 0.0, 0.3, 1.0, 2.0)) * rng.random())
            taken = job.stop_with_savepoint(timeout_seconds=SECONDS)
        check_nothing_was_processed_after(taken.path, rig)
        check_sinks_may_stay(taken.path, root)
        reference = rng.choice((None, taken.path, taken.path))
        if reference is not None and rng.random() < 0.5:
            root = rig.folder / f"jobs-{number}"
    rig.add()
    job, coordinator = make_job(root=str(root), restore_from=reference), Dialogue()
    for name, writer in shape(job, rig, coordinator).items():
        job.start(name, writer.trigger(availableNow=True))
    assert job.await_termination(SECONDS * rig.files)  # at most one epoch for each
    job.stop()
    assert rig.trail.entered == sorted(set(rig.trail.entered)), "an epoch came again"
    assert sorted(rig.trail.values) == rig.values
    if shape is no_operators:
        written = spark.read.schema(SCHEMA).parquet(str(rig.folder / "output")).collect()
        assert sorted(row.value for row in written) == rig.values
    else:
        coordinator.check(rig.values if shape is operators else [7], prompt=False)


def check_nothing_was_processed_after(path: str, rig: StopsRig) -> None:
    metadata = decode_metadata("_metadata", (Path(path) / "_metadata").read_bytes())
    boundaries = {str(name): query.epoch for name, query in metadata.queries.items()}
    assert rig.trail.entered == list(range(boundaries["q"] + 1))
    if "files" in boundaries:
        log = rig.folder / "output" / "_spark_metadata"
        written = [int(each.name.partition(".")[0]) for each in log.glob("[0-9]*")] if log.exists() else []
        assert max(written, default=-1) == boundaries["files"]


def check_sinks_may_stay(path: str, root: Path) -> None:
    """A restore of that savepoint finds in the sinks what it has to find, although more had been planned perhaps."""
    files = LocalFiles()
    with open_checkpoint(files, path) as source:
        checks = check_sinks(files, str(root / "job"), source, lambda _: files, SinkOptions())
    assert {check.verdict for check in checks} == {Verdict.OK}, checks


def rows_arrive(rig: StopsRig, rng: random.Random) -> Callable[[threading.Event], None]:
    pauses = [rng.random() * 0.4 for _ in range(rng.choice((0, 1, 4, 8)))]

    def arrive(ended: threading.Event) -> None:
        for seconds in pauses:  # also behind the stop: they are the next job's
            ended.wait(seconds)
            rig.add()

    return arrive


def other_work(spark: SparkSession, rng: random.Random) -> Callable[[threading.Event], None]:
    jobs = 4 if rng.random() < 0.3 else 0

    def work(ended: threading.Event) -> None:
        for _ in range(jobs):
            if ended.is_set():
                return
            spark.range(3_000_000).selectExpr("sum(hash(id))").collect()

    return work


@pytest.fixture
def rig(spark: SparkSession, file_stream: Callable[[str], FileStream], tmp_path: Path) -> Iterator[StopsRig]:
    """Logs of files are compacted often, so that cuts fall everywhere between two compacted entries."""
    for log in LOGS:
        spark.conf.set(f"spark.sql.streaming.{log}.log.compactInterval", "3")
    made = StopsRig(file_stream(SCHEMA), tmp_path)
    made.add()
    yield made
    for log in LOGS:
        spark.conf.unset(f"spark.sql.streaming.{log}.log.compactInterval")


SHAPES: Final = pytest.mark.parametrize(
    "shape", [operators, hardly_any_rows, no_operators], ids=["operators", "hardly any rows", "no operators"]
)


@pytest.mark.parametrize(
    "stops", [STOPS, pytest.param(STOPS_LONG, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
@SHAPES
def test_no_sink_is_given_an_epoch_after_a_stop_with_savepoint_and_no_row_is_lost_or_doubled(
    make_job: MakeJob, spark: SparkSession, rig: StopsRig, shape: Shape, stops: int, spark_log: Callable[[], str]
) -> None:
    stop_at_random_moments(make_job, spark, rig, shape, stops)
    assert "ERROR" not in spark_log(), "something was cut off, and Spark says so in a thousand lines"
