"""Jobs of plain queries: checkpoint, savepoints, restore in place, fork; the results are those of plain Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.ids import QueryName
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, MakeJob, drain, rows
from tests.spark.streams import FileStream
from tests.spark.streams import drain as drain_plain

pytestmark = pytest.mark.spark

Results = dict[int, list[tuple[Any, ...]]]  # of each epoch
Build = Callable[[DataFrame], DataFrame]

_QUERY: Final = QueryName("q")
_ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def _rows(frame: DataFrame) -> DataFrame:
    return frame.where("value % 3 = 0")


def _sums(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(sf.sum("value").alias("sum"), sf.count("*").alias("count"))


def _distinct(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("value % 30 AS value").dropDuplicates(["value"])


_CASES: Final[Mapping[str, tuple[Build, Mapping[str, str]]]] = {
    "stateless": (_rows, {}),
    "aggregation-hdfs": (_sums, {}),
    "aggregation-rocksdb": (_sums, _ROCKSDB),
    "dedup-rocksdb": (_distinct, _ROCKSDB),
}


class Bench:
    """One query and its input, a file per epoch."""

    def __init__(self, session: SparkSession, source: FileStream, build: Build) -> None:
        self.session, self.source, self.build = session, source, build

    def writer(self, results: Results) -> DataStreamWriter:
        def collect(batch: DataFrame, epoch: int) -> None:
            results[epoch] = sorted(tuple(row) for row in batch.collect())

        frame = self.build(self.source.read(self.session))
        return frame.writeStream.outputMode("update").foreachBatch(collect)

    def add(self, *epochs: int) -> None:
        for epoch in epochs:
            self.source.add(rows(epoch))


#: The one that `make test` runs: there tests/spark/test_savepoint_matrix.py shows the others on the same PySpark.
_QUICK: Final = "aggregation-rocksdb"


@pytest.fixture(params=[name if name == _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in _CASES])
def bench(request: pytest.FixtureRequest, own_session: SparkSession, file_stream: MakeStream) -> Bench:
    build, settings = _CASES[request.param]
    for name, value in settings.items():
        own_session.conf.set(name, value)
    return Bench(own_session, file_stream(SCHEMA, session=own_session), build)


def test_checkpoints_savepoints_restore_and_fork(bench: Bench, make_job: MakeJob, tmp_path: Path) -> None:
    bench.add(0, 1, 2)
    first: Results = {}
    job = make_job(session=bench.session)
    job.start("q", bench.writer(first))
    eventually(lambda: job.status().queries[0].committed == 2)
    assert _epoch(job.trigger_checkpoint(label="early").wait(SECONDS)) == 2
    bench.add(3)
    eventually(lambda: job.status().queries[0].committed == 3)
    early = job.trigger_savepoint(target=str(tmp_path / "early")).wait(SECONDS)
    bench.add(4, 5)
    eventually(lambda: job.status().queries[0].committed == 5)
    late = job.stop_with_savepoint(target=str(tmp_path / "late"))
    assert (_epoch(early), _epoch(late)) == (3, 5)

    # A new driver resumes where the last one ended.
    bench.add(6)
    drain(make_job(session=bench.session), bench.writer(first))

    # The savepoints, in place and as forks, here and in another root; then a checkpoint.
    for number, (options, since) in enumerate(
        [
            ({"restore_from": early.path}, 4),
            ({"restore_from": late.path}, 6),
            ({"restore_from": early.path, "name": "fork"}, 4),
            ({"restore_from": late.path, "root": str(tmp_path / "elsewhere")}, 6),
            ({"restore_from": "early"}, 3),
        ]
    ):
        again: Results = {}
        job = make_job(session=bench.session, **options)
        drain(job, bench.writer(again))
        job.stop()
        assert again == {epoch: first[epoch] for epoch in range(since, 7)}, number

    plain: Results = {}
    drain_plain(bench.writer(plain).option("checkpointLocation", str(tmp_path / "plain")))
    assert plain == first
    assert (_epoch(early), _epoch(late)) == (3, 5)


@pytest.mark.slow  # in every run: spark/test_adoption.py
def test_a_plain_query_with_a_history_is_adopted(bench: Bench, make_job: MakeJob, tmp_path: Path) -> None:
    bench.add(0, 1)
    results: Results = {}
    location = str(tmp_path / "plain")
    drain_plain(bench.writer(results).option("checkpointLocation", location))
    bench.add(2)
    job = make_job(session=bench.session)
    drain(job, bench.writer(results), checkpoint_location=location)
    savepoint = job.stop_with_savepoint(target=str(tmp_path / "savepoint"))
    assert sorted(results) == [0, 1, 2]
    assert _epoch(savepoint) == 2


def _epoch(checkpoint: cc.CompletedCheckpoint) -> int:
    """Check the files of a checkpoint, and return the epoch at which it has cut the query."""
    metadata = read_metadata(LocalFiles(), checkpoint.path)
    assert metadata is not None
    assert not list(verify_files(LocalFiles(), checkpoint.path, metadata))
    return metadata.queries[_QUERY].epoch
