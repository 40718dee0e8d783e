"""Dagster restores and forks a job that does not run and whose root is on S3, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from coord_control.dagster.spec import StreamingJobSpec
from coord_control.spark.hadoop_files import HadoopFiles
from tests.connectors.test_remote_jobs import Place, run
from tests.dagster.action_kit import Actions
from tests.dagster_kit import plane_in
from tests.s3_kit import S3Server
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, MakeJob, rows

# In every run: dagster/test_restore_run.py restores and forks on a local disk, test_remote_jobs.py on S3 without a JVM.
pytestmark = [pytest.mark.spark, pytest.mark.slow]

_ACTIONS: Final[dict[str, dict[str, Any]]] = {"restore_streaming_job": {}, "fork_streaming_job": {"as_name": "copy"}}


def test_a_job_that_does_not_run_is_restored_and_forked_by_dagster(
    make_job: MakeJob,
    s3_session: SparkSession,
    s3: S3Server,
    file_stream: MakeStream,
    tmp_path: Path,
) -> None:
    place = Place(f"s3a://{s3.bucket}/{tmp_path.name}", "", s3_session, HadoopFiles(s3_session))
    source = file_stream(SCHEMA, session=s3_session)
    with plane_in(tmp_path) as plane, dg.instance_for_test() as instance:
        database = {"control": plane.settings.url}
        source.add(rows(0))
        run(make_job, place, source, None, **database)
        source.add(rows(1))
        on = run(make_job, place, source, **database)

        actions = Actions(plane, instance, (StreamingJobSpec(name="job"),))
        with pytest.MonkeyPatch.context() as machine:
            for name, value in {**s3.environment, "JAVA_HOME": "/no/java", "PATH": "/no/java"}.items():
                machine.setenv(name, value)
            for action, more in _ACTIONS.items():
                earlier = len(s3.requests())
                ended = actions.run(action, ref="latest", **more)
                assert ended.is_success, ended.description
                assert ended.metadata["way"] == "storage"
                assert ended.metadata["path"].startswith(place.root)
                assert s3.counted_since(earlier)["COPY"] > 0, "within the store"

        assert run(make_job, place, source, **database) == on
        assert run(make_job, place, source, name="copy", **database) == on
