"""What a checkpoint records about the sinks of its queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, SinkSnapshot
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.export import export_query
from coord_control.ids import QueryName
from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, rows
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

Q = QueryName("q")


def _metadata(path: str) -> CheckpointMetadata:
    metadata = read_metadata(LocalFiles(), path)
    assert metadata is not None
    assert not list(verify_files(LocalFiles(), path, metadata))
    return metadata


def _sink(path: str) -> SinkSnapshot:
    sink = _metadata(path).queries[Q].sink
    assert sink is not None
    return sink


def _log(path: str) -> list[str]:
    return [entry.path for entry in _metadata(path).queries[Q].sink_files]


def _ignore(batch: DataFrame, epoch: int) -> None: ...


_WRITERS: dict[str, Any] = {
    "foreachBatch": lambda frame, out: frame.writeStream.foreachBatch(_ignore),
    "foreach": lambda frame, out: frame.writeStream.foreach(lambda row: None),
    "memory": lambda frame, out: frame.writeStream.format("memory"),
    "console": lambda frame, out: frame.writeStream.format("console"),
    "noop": lambda frame, out: frame.writeStream.format("noop"),
    "file": lambda frame, out: frame.writeStream.format("json").option("path", out),
}


@pytest.mark.parametrize("kind", _WRITERS)
def test_a_checkpoint_records_the_kind_of_each_sink(
    make_job: MakeJob, source: FileStream, tmp_path: Path, kind: str
) -> None:
    out = str(tmp_path / "out")
    with make_job() as job:
        job.start("q", _WRITERS[kind](source.read(), out)).processAllAvailable()
        sink = _sink(job.trigger_checkpoint().wait(SECONDS).path)
    expected = (
        SinkSnapshot(kind="file", place=f"file:{out}", position="2") if kind == "file" else SinkSnapshot(kind=kind)
    )
    assert sink == expected


def _files(frame: DataFrame, out: Path) -> DataStreamWriter:
    return frame.writeStream.format("json").option("path", str(out))


@pytest.fixture
def compacting(own_session: SparkSession) -> SparkSession:
    """A session whose file sinks compact their logs at every third epoch, and remove what is older at once."""
    own_session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    own_session.conf.set("spark.sql.streaming.fileSink.log.cleanupDelay", "0")
    own_session.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    return own_session


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_the_log_of_a_file_sink_is_part_of_the_checkpoint(
    make_job: MakeJob, compacting: SparkSession, file_stream: MakeStream, tmp_path: Path, kind: str
) -> None:
    source = file_stream(session=compacting)
    with make_job(session=compacting) as job:
        for epoch in range(10):
            source.add(rows(epoch, 1))
        query = job.start("q", _files(source.read(), tmp_path / "out"))
        query.processAllAvailable()
        take = job.trigger_savepoint if kind == "savepoint" else job.trigger_checkpoint
        first = take().wait(SECONDS).path
        assert _sink(first).position == "9"
        assert _log(first) == ["_sink/5.compact", "_sink/8.compact", "_sink/9"]
        with open_checkpoint(LocalFiles(), first) as opened:
            export_query(LocalFiles(), opened, Q, str(tmp_path / "exported"))
        assert not (tmp_path / "exported" / "_sink").exists()
        for epoch in range(10, 20):
            source.add(rows(epoch, 1))
        query.processAllAvailable()
        second = take().wait(SECONDS).path
        assert not (tmp_path / "out" / "_spark_metadata" / "9").exists(), "Spark has removed it"
    assert _sink(second).position == "19"
    assert _log(second) == ["_sink/17.compact", "_sink/18", "_sink/19"], "Spark has removed 14.compact"


def test_later_epochs_that_the_sink_has_already_are_not_part_of_the_boundary(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    """A savepoint of a dead job whose last epoch was written and not committed."""
    out = tmp_path / "out"
    with make_job() as job:
        job.start("q", _files(source.read(), out).trigger(availableNow=True))
        assert job.await_termination(SECONDS)
    for epoch in (3, 4):  # as if they had been written since
        (out / "_spark_metadata" / str(epoch)).write_text("v1\n")
    path = save(LocalFiles(), str(tmp_path / "jobs" / "job")).path
    assert _sink(path) == SinkSnapshot(kind="file", place=f"file:{out}", position="2")
    assert _log(path) == ["_sink/0", "_sink/1", "_sink/2"]


def test_a_sink_that_cannot_be_asked_fails_no_checkpoint(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with make_job() as job:
        job.start("q", _files(source.read(), out)).processAllAvailable()
        (out / "_spark_metadata" / "1").unlink()
        path = job.trigger_checkpoint().wait(SECONDS).path
    sink = _sink(path)
    assert (sink.kind, sink.position) == ("file", None)
    assert "_spark_metadata/1" in sink.unknown
    assert _log(path) == []


def test_a_savepoint_of_a_stopped_job_says_what_its_sinks_are(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    with make_job() as job:
        job.start("q", source.read().writeStream.foreachBatch(_ignore).trigger(availableNow=True))
        assert job.await_termination(SECONDS)
    path = save(LocalFiles(), str(tmp_path / "jobs" / "job")).path
    assert _sink(path) == SinkSnapshot(kind="foreachBatch")
