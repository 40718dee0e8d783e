"""A plain query of Spark becomes one of a job without losing or doubling anything, or is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.errors import AdoptedQueryRunning, CheckpointLocationConflict, NotACheckpoint
from tests.spark.jobs import MakeJob, drain, rows, write
from tests.spark.streams import FileStream, batch_ids
from tests.spark.streams import drain as drain_plain

pytestmark = pytest.mark.spark


def plain(source: FileStream, checkpoint: Path, session: SparkSession | None = None) -> DataStreamWriter:
    return write(source.read(session)).option("checkpointLocation", str(checkpoint))


def test_a_writer_with_a_checkpoint_of_its_own_is_refused_or_goes_on_from_it(
    make_job: MakeJob, source: FileStream, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def writer() -> DataStreamWriter:
        keep = source.read().writeStream.format("parquet").option("path", str(out))
        return keep.option("checkpointLocation", str(checkpoint))

    drain_plain(writer())
    source.add(rows(3))
    with make_job() as job:
        with pytest.raises(
            CheckpointLocationConflict, match=rf"checkpoint_location='{checkpoint}'\).*remove the"
        ) as no:
            job.start("agg", writer())
        assert no.value.own == str(checkpoint)
        with pytest.raises(CheckpointLocationConflict, match=f"would keep the checkpoint at {tmp_path}/elsewhere"):
            job.start("agg", writer(), checkpoint_location=str(tmp_path / "elsewhere"))
        assert not (tmp_path / "jobs" / "job" / "queries").exists()
        drain(job, writer(), "agg", checkpoint_location=f"file://{checkpoint}")
    source.add(rows(4))
    # The program may go on saying so, in either way.
    for options in ({}, {"checkpoint_location": str(checkpoint)}):
        with make_job() as job:
            drain(job, writer(), "agg", **options)
    values = source.read().sparkSession.read.parquet(str(out)).select("value").collect()
    assert sorted(row.value for row in values) == list(range(40))


def test_a_session_whose_checkpoints_lie_elsewhere_is_refused_where_the_query_has_run(
    make_job: MakeJob, source: FileStream, own_session: SparkSession, tmp_path: Path
) -> None:
    own_session.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    drain_plain(write(source.read(own_session)).queryName("agg"))
    with make_job(session=own_session) as job:
        with pytest.raises(CheckpointLocationConflict, match=r"the session's spark.sql.streaming.checkpointLocation"):
            job.start("agg", write(source.read(own_session)))
        drain(job, write(source.read(own_session)), "another")  # which has never run
        source.add(rows(3))
        drain(job, write(source.read(own_session)), "agg", checkpoint_location=str(tmp_path / "all" / "agg"))
    assert batch_ids(tmp_path / "all" / "agg", "commits") == [0, 1, 2, 3]


def test_what_is_no_checkpoint_is_not_adopted(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "todo.txt").write_text("")
    with make_job() as job:
        with pytest.raises(NotACheckpoint, match="typo is not a Spark checkpoint: it does not exist, or is empty"):
            job.start("q", write(source.read()), checkpoint_location=str(tmp_path / "typo"))
        with pytest.raises(NotACheckpoint, match=r"it holds \['todo.txt'\], and no file 'metadata'"):
            job.start("q", write(source.read()), checkpoint_location=str(folder))
        assert not (tmp_path / "typo").exists()
        assert [path.name for path in folder.iterdir()] == ["todo.txt"]
        drain(job, write(source.read()))


def test_a_plain_query_that_still_runs_is_not_adopted(
    make_job: MakeJob,
    source: FileStream,
    own_session: SparkSession,
    checkpoint: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = plain(source, checkpoint, own_session).start()
    running.processAllAvailable()
    with make_job() as job:
        with pytest.raises(AdoptedQueryRunning, match=f"the Spark query {running.id} is still running on {checkpoint}"):
            job.start("q", write(source.read()), checkpoint_location=str(checkpoint))
        running.stop()
        source.add(rows(3))
        with caplog.at_level(logging.WARNING, "coord_control.job"):
            drain(job, write(source.read()), checkpoint_location=str(checkpoint))
    assert "make sure that the plain query has ended" in caplog.text
    assert batch_ids(checkpoint, "commits") == [0, 1, 2, 3]


def test_a_writer_that_was_started_before_is_started_again(make_job: MakeJob, source: FileStream) -> None:
    counts = write(source.read().groupBy("key").agg(F.count("*"))).outputMode("update")
    for name in ("one", "two"):
        with make_job(name) as job:
            drain(job, counts)
