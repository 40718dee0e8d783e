"""What waits in a source that reports it, on all ways from Spark to a person; and of one that does not, nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import coord_control as cc
from coord_control.dagster.asset_checks import evaluate
from coord_control.dagster.spec import CheckBounds
from tests.patience import eventually
from tests.spark.conftest import MakeStream
from tests.spark.counting import PER_BATCH, Counting
from tests.spark.jobs import SCHEMA, MakeJob, query_status, rows, write
from tests.spark.test_metrics import scrape

pytestmark = pytest.mark.spark

THERE = 1000
IDLE_AFTER = "spark.sql.streaming.noDataProgressEventInterval"  # in milliseconds


def test_the_backlog_of_a_query_is_in_the_metrics_the_database_and_the_check(
    make_job: MakeJob, spark: SparkSession, file_stream: MakeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORD_CONTROL_HEARTBEAT_SECONDS", "0.2")
    database = f"sqlite:///{tmp_path / 'control.db'}"
    counting, files = Counting(spark, tmp_path / "count"), file_stream(SCHEMA)
    counting.have(THERE)
    files.add(rows(0))
    job = make_job(metrics="127.0.0.1:0", control=database)
    trigger = {"processingTime": "1 hour"}  # one batch
    job.start("counted", write(counting.read()).trigger(**trigger))
    job.start("files", write(files.read()).trigger(**trigger))
    waiting = THERE - PER_BATCH

    eventually(lambda: all(query.progress for query in job.status().queries))
    found = scrape(job)
    assert found.get("query_backlog", query="counted", source="0") == waiting
    assert found.all("query_backlog", query="files") == []
    assert found.get("query_batch_part_seconds", query="files", part="addBatch") > 0
    assert found.get("query_processed_rows_per_second", query="counted") > 0

    with cc.ControlClient(database) as client:
        eventually(lambda: {query.backlog for query in client.job("job").queries} == {waiting, None})
        counted, by_files = sorted(client.job("job").queries, key=lambda query: query.name)
        assert counted.backlog_of_partitions == {"0/numbers": waiting}
        assert (by_files.backlog, by_files.backlog_of_partitions) == (None, {})
        eventually(lambda: [trend.last for trend in client.fleet().jobs[0].backlogs] == [waiting, None])
        fleet = client.fleet()
        [outcome] = [
            each for each in evaluate(fleet.jobs[0], CheckBounds(backlog=10), fleet.now) if each.name == "backlog"
        ]
        assert outcome.passed
        assert "996 records wait for counted" in outcome.description
        assert "large, but not growing" in outcome.description
        assert outcome.description.endswith("that cannot be seen: files")


def test_an_idle_query_reads_nothing_per_second(
    make_job: MakeJob, spark: SparkSession, file_stream: MakeStream, request: pytest.FixtureRequest
) -> None:
    spark.conf.set(IDLE_AFTER, "200")
    request.addfinalizer(lambda: spark.conf.unset(IDLE_AFTER))
    files = file_stream(SCHEMA)
    files.add(rows(0))
    job = make_job()
    job.start("files", write(files.read()))

    eventually(lambda: query_status(job).progress.get("numInputRows"))
    eventually(lambda: query_status(job).progress["inputRowsPerSecond"] == 0)
    assert query_status(job).progress["numInputRows"] == len(rows(0))
