"""Savepoints of running queries of every kind: taken under load, restored, forked; the results stay what they were.

Each query runs five epochs; its input makes them repeatable, so what an epoch gives is compared with what plain Spark
gives, without us. Savepoints are asked for from inside of epochs, once before and once after their rows were computed:
both times the query is at work, and goes on at once. Operators pass the rows through while they hold a dialogue with
their coordinator (`jobs.Dialogue`), which must be complete at the end, wherever the job was restored from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, decode_metadata
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.ids import QueryName
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    follow,
    talk,
)
from tests.spark.layouts import (
    CHANGELOG,
    SCHEMA,
    SETTINGS,
    Build,
    Results,
    after,
    aggregation,
    deduplication,
    join,
    rows_of,
    stateless,
    transform_with_state,
)
from tests.spark.streams import FileStream
from tests.spark.streams import drain as drain_plain

pytestmark = pytest.mark.spark

EPOCHS: Final = 5
QUERY: Final = QueryName("q")
#: What an operator behind a query takes: the names of two of its columns.
BEHIND: Final[Mapping[Build, tuple[str, str]]] = {
    aggregation: ("key", "sum"),
    transform_with_state: ("key", "total"),
    join: ("key", "right_value"),
}


@dataclass(frozen=True)
class Case:
    build: Build
    settings: Mapping[str, str] = field(default_factory=dict)
    operator: str | None = None  # "front", "behind"


CASES: Final = {
    "stateless": Case(stateless),
    "stateless-with-operator": Case(stateless, operator="front"),
    "aggregation-hdfs": Case(aggregation),
    "aggregation-hdfs-behind-operator": Case(aggregation, operator="front"),
    "aggregation-rocksdb": Case(aggregation, CHANGELOG),
    "aggregation-rocksdb-before-operator": Case(aggregation, CHANGELOG, "behind"),
    "dedup-hdfs": Case(deduplication),
    "dedup-rocksdb-behind-operator": Case(deduplication, CHANGELOG, "front"),
    "join-hdfs-before-operator": Case(join, operator="behind"),
    "join-rocksdb": Case(join, CHANGELOG),
    "transform-with-state": Case(transform_with_state, CHANGELOG),
    "transform-with-state-before-operator": Case(transform_with_state, CHANGELOG, "behind"),
}


class Bench:
    """One case and its input; starts it in jobs, as often as wanted."""

    def __init__(self, session: SparkSession, make_stream: MakeStream, make_job: MakeJob, case: Case) -> None:
        for key, value in {**SETTINGS, **case.settings}.items():
            session.conf.set(key, value)
        self.session = session
        self.case = case
        self._make_job = make_job
        self.streams = [make_stream(SCHEMA, session=session) for _ in range(2 if case.build is join else 1)]
        for stream in self.streams:
            add(stream, range(EPOCHS))

    def job(self, name: str = "job", **options: Any) -> cc.Job:
        return self._make_job(name, session=self.session, checkpoints=cc.CheckpointOptions(retained=5), **options)

    def reference(self, folder: Path) -> Results:
        """What plain Spark gives."""
        results: Results = {}
        frame, mode = self._frame(lambda frame, columns: frame.select(*columns))
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(folder))
        drain_plain(writer.foreachBatch(collected(results)))
        return results

    def writer(self, job: cc.Job, coordinator: cc.OperatorCoordinator, collect: Collect) -> DataStreamWriter:
        def through(frame: DataFrame, columns: tuple[str, ...]) -> DataFrame:
            rows = frame.select(*columns)
            schema = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in rows.schema)
            return talk(job, coordinator).apply(rows, follow, schema=schema, partition_by=["key"])

        frame, mode = self._frame(through)
        return frame.writeStream.outputMode(mode).foreachBatch(collect)

    def run(self, job: cc.Job, *, at: Callable[[str, int], None] = lambda moment, epoch: None) -> Results:
        """Run to the end of the input, and compare what was said.

        Args:
            at: called ("before" or "after", epoch) around the computation of each epoch.
        """
        results: Results = {}
        coordinator = Dialogue()
        job.start(QUERY, self.writer(job, coordinator, collected(results, at)).trigger(availableNow=True))
        assert job.await_termination(SECONDS)
        self.coordinator = coordinator
        return results

    def _frame(self, operator: Callable[[DataFrame, tuple[str, ...]], DataFrame]) -> tuple[DataFrame, str]:
        inputs = [stream.read(self.session) for stream in self.streams]
        if self.case.operator == "front":
            inputs[0] = operator(inputs[0], ("key", "value", "time"))
        frame, mode = self.case.build(inputs)
        if self.case.operator == "behind":
            key, value = BEHIND[self.case.build]
            frame = operator(frame.select(key, F.col(value).alias("value")), ("key", "value"))
        return frame, mode


Collect = Callable[[DataFrame, int], None]


def collected(results: Results, at: Callable[[str, int], None] = lambda moment, epoch: None) -> Collect:
    def collect(batch: DataFrame, epoch: int) -> None:
        at("before", epoch)
        rows = sorted(tuple(row) for row in batch.collect())
        at("after", epoch)
        results[epoch] = rows

    return collect


def add(stream: FileStream, epochs: range) -> None:
    for epoch in epochs:
        stream.add(rows_of(epoch))


def intact(path: str) -> CheckpointMetadata:
    """The metadata of one that can be restored, to the last byte."""
    file = Path(path, "_metadata")
    found = decode_metadata(str(file), file.read_bytes())
    assert [problem for problem in verify_files(LocalFiles(), path, found) if problem.is_fatal] == []
    return found


@pytest.fixture(scope="module")
def references() -> dict[tuple[Build, bool], Results]:
    """By query, and whether only two columns of its result are taken: what plain Spark gives, with either provider."""
    return {}


#: Each stands beside one with an operator, which does all that it does; the plain one that costs least always runs.
SLOW: Final = (
    "aggregation-hdfs",
    "aggregation-rocksdb",
    "aggregation-rocksdb-before-operator",
    "dedup-hdfs",
    "join-rocksdb",
    "transform-with-state",
)


#: A job may resume from an older checkpoint, and another one from a younger: with an operator on either side.
BOTH_WAYS: Final = ("stateless-with-operator", "join-hdfs-before-operator")


def is_cut(job: cc.Job, handle: cc.CheckpointHandle) -> bool:
    """Whether the boundaries of its queries are fixed, if they are committed already."""
    return any(each.queries for each in job.checkpoint_statistics().history if each.checkpoint == handle.id)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in CASES]
)
def test_what_is_saved_under_load_gives_the_same_results_when_it_is_restored(
    name: str,
    own_session: SparkSession,
    file_stream: MakeStream,
    make_job: MakeJob,
    references: dict[tuple[Build, bool], Results],
    tmp_path: Path,
) -> None:
    case = CASES[name]
    bench = Bench(own_session, file_stream, make_job, case)
    kind = (case.build, case.operator == "behind")
    if kind not in references:
        references[kind] = bench.reference(tmp_path / "reference")
    expected = references[kind]
    assert sorted(expected) == list(range(EPOCHS))

    def told() -> None:
        """Both ends of the dialogue know all rows, whatever part of the story this driver has lived through."""
        if case.operator == "front":
            bench.coordinator.check(row["value"] for epoch in range(EPOCHS) for row in rows_of(epoch))
        elif case.operator == "behind":
            bench.coordinator.check(row[1] for rows in expected.values() for row in rows)

    job = bench.job()
    handles: dict[str, cc.CheckpointHandle] = {}

    def save(moment: str, epoch: int) -> None:
        if (moment, epoch) == ("before", 2):
            handles["early"] = job.trigger_savepoint(target=str(tmp_path / "early"))
            eventually(lambda: is_cut(job, handles["early"]))  # first it claims its folder, on another thread
        elif (moment, epoch) == ("after", 2):
            handles["late"] = job.trigger_savepoint(label="late")
        elif (moment, epoch) == ("after", 3):
            handles["kept"] = job.trigger_checkpoint()
        # Answered behind the request: now the boundary is fixed, and the epoch may end.
        job.checkpoint_statistics()

    assert bench.run(job, at=save) == expected
    told()
    paths = {which: handle.wait(SECONDS).path for which, handle in handles.items()}
    epochs = {which: intact(path).queries[QUERY].epoch for which, path in paths.items()}
    # An epoch that an operator has begun belongs to what was asked for in it; without one the last commit is all.
    running = 1 if case.operator else 0
    assert epochs == {"early": 1, "late": 1 + running, "kept": 2 + running}

    with bench.job("fork", restore_from=paths["early"]) as fork:
        assert bench.run(fork) == after(expected, epochs["early"])
        told()
    job.stop()
    with bench.job(restore_from="late") as job:
        assert bench.run(job) == after(expected, epochs["late"])
        told()
    for path in paths.values():
        intact(path)
    if name in BOTH_WAYS:  # a younger one than what the job goes on from now
        with bench.job("other", restore_from=paths["kept"]) as other:
            assert bench.run(other) == after(expected, epochs["kept"])
            told()
