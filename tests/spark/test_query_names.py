"""What Spark calls the queries of jobs, so that several jobs can run in one session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.patience import eventually
from tests.spark.jobs import MakeJob, write
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


def test_two_jobs_of_one_session_have_queries_of_one_name(make_job: MakeJob, source: FileStream) -> None:
    queries = [make_job(name).start("q", write(source.read())) for name in ("one", "two")]
    for query in queries:
        query.processAllAvailable()
    assert [query.name for query in queries] == ["one:q", "two:q"]


def test_a_memory_sink_makes_the_table_that_the_query_is_named_after(
    make_job: MakeJob, spark: SparkSession, source: FileStream
) -> None:
    job = make_job()
    query = job.start("seen", source.read().writeStream.format("memory"))
    query.processAllAvailable()
    assert spark.table("seen").count() == 24
    eventually(lambda: [each.output_rows for each in job.status().queries] == [24])
