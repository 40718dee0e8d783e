"""Spark is asked whether it can load each state; directories of its own are adopted and given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.offline.offline_savepoint import adopt
from coord_control.durable.restore.export import export_query
from coord_control.ids import QueryName
from coord_control.spark.process.state_check import load_states
from tests.patience import SECONDS
from tests.spark import layouts
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, drain, rows
from tests.spark.layouts import LAYOUTS
from tests.spark.streams import FileStream
from tests.spark.streams import drain as drain_plain

pytestmark = pytest.mark.spark

QUERY = QueryName("q")


def timed(frame: DataFrame, prefix: str) -> DataFrame:
    time = F.timestamp_seconds(F.col("value")).alias(f"{prefix}_time")
    return frame.select(F.col("key").alias(f"{prefix}_key"), time).withWatermark(f"{prefix}_time", "1 hour")


def test_every_state_of_a_savepoint_is_loaded(
    spark: SparkSession, make_job: MakeJob, source: FileStream, file_stream: MakeStream, tmp_path: Path
) -> None:
    job, target = make_job(), str(tmp_path / "savepoint")
    left, right = timed(source.read(), "l"), timed(source.read(), "r")
    near = F.expr("l_key = r_key and r_time between l_time and l_time + interval 10 seconds")
    job.start("joined", left.join(right, near).writeStream.format("noop").trigger(availableNow=True))
    summed = source.read().groupBy("key").agg(F.sum("value"))
    drain(job, summed.writeStream.format("noop").outputMode("update"))
    job.trigger_savepoint(target=target).wait(SECONDS)
    job.stop()
    with open_checkpoint(LocalFiles(), target) as opened:
        found = {(each.query, each.state): each for each in load_states(spark, opened)}
    assert {key: one.problem for key, one in found.items()} == {
        ("joined", "left"): None,
        ("joined", "right"): None,
        ("q", ""): None,
    }
    assert found["q", ""].rows == 8
    # What checksums cannot say: this file is what it was made, and Spark does not understand it.
    for delta in (Path(target) / "queries" / "q" / "spark" / "state" / "0").rglob("*.delta"):
        delta.unlink()
        delta.write_bytes(b"not a delta")
    with open_checkpoint(LocalFiles(), target) as opened:
        # As if it had been written like that: the manifest fits.
        sizes = {
            query: one.model_copy(
                update={
                    "files": tuple(
                        type(entry)(entry.path, 11, entry.crc32) if entry.path.endswith(".delta") else entry
                        for entry in one.files
                    )
                }
            )
            for query, one in opened.metadata.queries.items()
            if query == QUERY
        }
        damaged = type(opened)(target, opened.metadata.model_copy(update={"queries": sizes}), opened.files)
        [state] = list(load_states(spark, damaged))
    assert state.problem is not None
    assert "CANNOT_LOAD_STATE_STORE" in state.problem
    assert state.rows is None


def test_a_directory_of_spark_becomes_a_query_of_a_job_and_goes_back(
    make_job: MakeJob, source: FileStream, checkpoint: Path, tmp_path: Path
) -> None:
    results: dict[int, Any] = {}

    def writer(frame: DataFrame) -> Any:
        def collect(batch: DataFrame, epoch: int) -> None:
            results[epoch] = sorted(tuple(row) for row in batch.collect())

        return frame.groupBy("key").agg(F.sum("value")).writeStream.outputMode("update").foreachBatch(collect)

    drain_plain(writer(source.read()).option("checkpointLocation", str(checkpoint)))
    files, target = LocalFiles(), str(tmp_path / "adopted")
    adopt(files, str(checkpoint), target, files, job="job", query=QUERY)
    source.add(rows(3))
    drain_plain(writer(source.read()).option("checkpointLocation", str(checkpoint)))
    expected = results.pop(3)

    job = make_job(restore_from=target)
    drain(job, writer(source.read()))
    job.stop()
    assert results.pop(3) == expected

    with open_checkpoint(files, target) as opened:
        export_query(files, opened, QUERY, str(tmp_path / "plain"), new_id=True)
    drain_plain(writer(source.read()).option("checkpointLocation", str(tmp_path / "plain")))
    assert results.pop(3) == expected


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("rocksdb-changelog-format-2", {""}),
        ("dedup-hdfs", {""}),
        ("join-column-families", {"left", "right"}),
        ("join-format-2", {"left", "right"}),
        ("transform-with-state", {"total", "seen"}),
    ],
)
def test_states_of_every_kind_are_loaded(
    name: str,
    states: set[str],
    spark: SparkSession,
    own_session: SparkSession,
    file_stream: MakeStream,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    layout = LAYOUTS[name]
    for key, value in layout.settings.items():
        own_session.conf.set(key, value)
    streams = [file_stream(layouts.SCHEMA, session=own_session) for _ in range(layout.inputs)]
    for stream in streams:
        for epoch in range(2):
            stream.add(layouts.rows_of(epoch))
    frame, mode = layout.build([stream.read(own_session) for stream in streams])
    writer = frame.writeStream.format("noop").outputMode(mode)
    drain_plain(writer.option("checkpointLocation", str(checkpoint)))
    adopt(LocalFiles(), str(checkpoint), str(tmp_path / "s"), LocalFiles(), job="job", query=QUERY)
    checkpoint.rename(tmp_path / "away")
    with open_checkpoint(LocalFiles(), str(tmp_path / "s")) as opened:
        # In a session without the settings of the query, as that of the command.
        found = list(load_states(spark, opened))
    assert {one.state: one.problem for one in found} == dict.fromkeys(states)
    assert all(one.rows for one in found)
