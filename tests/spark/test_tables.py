"""A query that writes to a table of the catalog: `job.start(..., table=...)` does what `writer.toTable(...)` does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, Once, Trouble, rows
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """The name of a table that does not exist, in a schema of its own."""
    schema = f"s_{uuid.uuid4().hex}"
    spark.sql(f"CREATE SCHEMA {schema}")
    yield f"spark_catalog.{schema}.t"
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


def _values(frame: DataFrame) -> list[int]:
    return sorted(row["value"] for row in frame.select("value").collect())


def _options(spark: SparkSession, table: str) -> dict[str, str]:
    return {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()}


def _writer(source: FileStream) -> DataStreamWriter:
    """A writer on which everything is set that a table takes."""
    writer = source.read().writeStream.format("parquet").outputMode("append").option("compression", "gzip")
    return writer.partitionBy("key").trigger(availableNow=True)


def test_a_query_writes_to_a_table_with_all_that_was_set_on_its_writer(
    make_job: MakeJob, spark: SparkSession, source: FileStream, table: str
) -> None:
    with make_job() as job:
        job.start("q", _writer(source), table=table)
        assert job.await_termination(SECONDS)  # the trigger ends it
        [status] = job.status().queries
    assert (status.target.table, status.target.columns["key"]) == (table, "string")
    assert list(status.target.columns) == source.read().columns
    assert status.output_rows is None, "Spark's file sink does not report its rows"
    assert _values(spark.table(table)) == list(range(24))
    about = _options(spark, table)
    assert about["Provider"] == "parquet"
    location = Path(about["Location"].removeprefix("file:"))
    assert {path.name for path in location.glob("key=*")} == {f"key=k{n}" for n in range(8)}
    files = [path.name for path in location.glob("key=*/*") if not path.name.startswith(".")]
    assert len(files) >= 8
    assert all(name.endswith(".gz.parquet") for name in files)


def test_a_clustered_table_is_created_as_plain_spark_creates_it(
    make_job: MakeJob, spark: SparkSession, source: FileStream, table: str
) -> None:
    writer = source.read().writeStream.format("parquet").clusterBy("key").trigger(availableNow=True)
    with make_job() as job:
        job.start("q", writer, table=table)
        assert job.await_termination(SECONDS)
    assert _values(spark.table(table)) == list(range(24))
    names = [row["col_name"] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()]
    assert names[names.index("# Clustering Information") + 2] == "key"


def test_a_table_gets_each_row_once_when_its_query_restarts_in_place_and_in_another_driver(
    make_job: MakeJob, spark: SparkSession, source: FileStream, table: str, once: Once
) -> None:
    def fails_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if once():
                raise Trouble("once")
            yield batch

    def writer() -> DataStreamWriter:
        frame = source.read().mapInPandas(fails_once, "key STRING, value LONG")
        return frame.writeStream.format("parquet").trigger(availableNow=True)

    with make_job() as job:
        job.start("q", writer(), table=table)
        assert job.await_termination(SECONDS)
    source.add(rows(3))
    with make_job() as job:
        job.start("q", writer(), table=table)
        assert job.await_termination(SECONDS)
    assert once.was_asked
    assert _values(spark.table(table)) == list(range(32))


def test_a_restored_query_writes_to_its_table(
    make_job: MakeJob, spark: SparkSession, file_stream: MakeStream, table: str
) -> None:
    source = file_stream()
    source.add(rows(0))
    with make_job() as job:
        job.start("q", source.read().writeStream.trigger(availableNow=True), table=table)
        assert job.await_termination(SECONDS)
        path = job.trigger_savepoint().wait(SECONDS).path
    source.add(rows(1))
    with make_job(restore_from=path) as job:
        job.start("q", source.read().writeStream.trigger(availableNow=True), table=table)
        assert job.await_termination(SECONDS)
    assert _values(spark.table(table)) == list(range(16))
