"""What Spark refuses when a query starts is found before a restore takes place, and nothing is read or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.offline.offline_savepoint import save
from coord_control.errors import CoordControlError, QueryFailed, RestoreRefused
from coord_control.exit_codes import ExitCode, exit_code_of
from coord_control.ids import QueryName
from coord_control.spark.queries.start_check import check_start
from tests.spark.conftest import MakeStream
from tests.spark.jobs import QUICK, SCHEMA, Dialogue, MakeJob, Trouble, apply, rows, talk
from tests.spark.streams import FileStream
from tests.spark.test_restore_refusals import (
    CHANGES,
    STARTS,
    another_source,
    counts,
    first,
    impossible_output_mode,
    other,
    place,
    savepoint,
    second,
    tmp_path,
)

pytestmark = pytest.mark.spark

__all__ = ["other", "place", "savepoint", "tmp_path"]


def never(frame: DataFrame, epoch: int) -> None:
    raise AssertionError("an epoch was planned")


def counted(frame: DataFrame) -> DataStreamWriter:
    return frame.groupBy("key").count().writeStream


def sum_of(frame: DataFrame) -> DataStreamWriter:
    return counted(frame).format("memory").queryName("sums")


#: Writers of a frame, the table if there is one, and what Spark says of their start; None: it starts.
CASES: list[tuple[Callable[[DataFrame], DataStreamWriter], str | None, str | None]] = [
    (lambda frame: frame.writeStream.format("noop"), None, None),
    (lambda frame: frame.writeStream.format("console"), None, None),
    (lambda frame: frame.writeStream.foreach(never), None, None),  # type: ignore[arg-type]
    (lambda frame: frame.writeStream.foreachBatch(never), None, None),
    (lambda frame: frame.writeStream.foreachBatch(never).trigger(availableNow=True), None, None),
    (lambda frame: frame.writeStream.foreachBatch(never).trigger(processingTime="1 hour"), None, None),
    (lambda frame: counted(frame).foreachBatch(never), None, "STREAMING_OUTPUT_MODE"),
    (lambda frame: counted(frame).foreachBatch(never).outputMode("update"), None, None),
    (sum_of, None, "STREAMING_OUTPUT_MODE"),
    (lambda frame: sum_of(frame).outputMode("complete"), None, None),
    (lambda frame: frame.writeStream.format("parquet"), None, "'path' is not specified"),
    (lambda frame: frame.writeStream.format("jdbc"), None, "jdbc does not support streamed writing"),
    (lambda frame: frame.writeStream.format("no-such"), None, "DATA_SOURCE_NOT_FOUND"),
    (lambda frame: frame.writeStream, "a b", "PARSE_SYNTAX_ERROR"),
    (lambda frame: frame.writeStream, "view_of_start_check", "doesn't support streaming write"),
    (lambda frame: frame.writeStream.format("no-such"), "new_of_start_check", "DATA_SOURCE_NOT_FOUND"),
    (lambda frame: frame.writeStream, "no_such_namespace.new", "no namespace `no_such_namespace` to create it in"),
    (lambda frame: frame.writeStream, "new_of_start_check", None),
    (lambda frame: frame.writeStream, "default.new_of_start_check", None),
    (lambda frame: frame.writeStream, "spark_catalog.default.new_of_start_check", None),
]


@pytest.mark.parametrize(("writer", "table", "says"), CASES)
def test_spark_is_asked_and_nothing_runs(
    spark: SparkSession,
    source: FileStream,
    tmp_path: Path,
    writer: Callable[[DataFrame], DataStreamWriter],
    table: str | None,
    says: str | None,
) -> None:
    spark.range(1).createOrReplaceTempView("view_of_start_check")
    folder, files = tmp_path / "check", LocalFiles()
    before = {table.name for table in spark.catalog.listTables()}
    found = check_start(files, lambda path: files, str(folder), writer(source.read()), table, "q (check)")
    assert (found is None) if says is None else (found is not None and says in found)
    assert not folder.exists()
    assert {table.name for table in spark.catalog.listTables()} == before


def test_a_query_with_a_continuous_trigger_is_asked_about(spark: SparkSession, tmp_path: Path) -> None:
    """It reads the log of commits first."""
    files, rate = LocalFiles(), spark.readStream.format("rate").load()
    writer = rate.writeStream.format("noop").trigger(continuous="1 second")
    assert check_start(files, lambda path: files, str(tmp_path / "check"), writer, None, "q (check)") is None


def test_a_log_that_was_there_stays(source: FileStream, tmp_path: Path) -> None:
    log, files = tmp_path / "out" / "_spark_metadata", LocalFiles()
    log.mkdir(parents=True)
    (log / "0").write_text("v1\n")
    writer = source.read().writeStream.format("parquet").option("path", str(tmp_path / "out"))
    assert check_start(files, lambda path: files, str(tmp_path / "check"), writer, None, "q (check)") is None
    assert (log / "0").exists()


@pytest.mark.parametrize("has_planned", [False, True])
def test_a_second_query_that_has_committed_nothing_is_checked_as_well(
    make_job: MakeJob, source: FileStream, file_stream: MakeStream, tmp_path: Path, has_planned: bool
) -> None:
    """Bug: Spark was not asked about a query without a commit; the restore took place, and the other query ran."""
    other, path = file_stream(SCHEMA), str(tmp_path / "savepoint")
    if has_planned:
        other.add(rows(0))

    def fails(frame: DataFrame, epoch: int) -> None:
        raise Trouble("before the first commit")

    with make_job(restart=QUICK) as job:
        first(job, source).processAllAvailable()
        operator = talk(job, Dialogue(), "op2")
        job.start("b", counts(apply(operator, other.read())).foreachBatch(fails))
        if has_planned:
            with pytest.raises(QueryFailed, match="before the first commit"):
                job.await_termination(100)
    folder = str(tmp_path / "jobs" / "job")
    taken = save(LocalFiles(), folder, target=path).metadata.queries[QueryName("b")]
    assert (taken.epoch, taken.planned) == (-1, 0 if has_planned else -1)
    changes = dict(STARTS)
    if has_planned:
        changes[another_source] = CHANGES[another_source]
    for change, says in changes.items():
        with make_job(restore_from=path) as job:
            first(job, source)
            with pytest.raises(CoordControlError, match=says) as refused:
                change(job, other)
            assert exit_code_of(refused.value) == ExitCode.CONFIG
            assert job.status().queries == ()
    assert newest_restore(LocalFiles(), folder) is None
    with make_job(restore_from=path) as job:
        first(job, source)
        second(job, other)
    assert newest_restore(LocalFiles(), folder) is not None
    assert not list((tmp_path / "jobs").rglob("*-check"))


def test_a_query_that_the_checkpoint_lacks_is_checked_as_well(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str, tmp_path: Path
) -> None:
    with make_job(restore_from=savepoint, allow_non_restored_state=True) as job:
        first(job, source)
        with pytest.raises(RestoreRefused, match=r"start of c: Spark says: .DATA_SOURCE_NOT_FOUND"):
            job.start("c", other.read().writeStream.format("nothing-of-this-name"))
    assert newest_restore(LocalFiles(), str(tmp_path / "jobs" / "job")) is None


def test_a_refused_start_leaves_no_log_in_the_folder_of_a_file_sink(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str, tmp_path: Path
) -> None:
    """A folder with an empty log looks empty to who reads it."""
    out = tmp_path / "out"
    with make_job(restore_from=savepoint) as job:
        frame = apply(talk(job, Dialogue()), source.read())
        job.start("a", frame.writeStream.format("parquet").option("path", str(out)))
        with pytest.raises(RestoreRefused, match="STREAMING_OUTPUT_MODE"):
            impossible_output_mode(job, other)
    assert list(out.iterdir()) == []
