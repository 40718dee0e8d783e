"""What a Spark cannot do is refused with its own error, which names what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.errors import SparkTooOld
from coord_control.spark.process.doctor_checks import check_spark
from coord_control.spark.process.state_check import load_states
from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.jobs import FORMS, SCHEMA, Dialogue, MakeJob, apply, drain, rows, talk, write

pytestmark = pytest.mark.spark

_RELEASE: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


@pytest.mark.parametrize("form", ["arrow", *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[1:])])
def test_operators_run_from_spark_4_1_on_and_are_refused_before(
    make_job: MakeJob, file_stream: MakeStream, spark: SparkSession, form: str
) -> None:
    source, coordinator = file_stream(SCHEMA), Dialogue()
    for epoch in range(3):
        source.add(rows(epoch))
    job = make_job()
    if _RELEASE < (4, 1):
        with pytest.raises(SparkTooOld, match=rf"operator 'op' needs Spark 4\.1 .* this is Spark {spark.version}"):
            talk(job, coordinator)
        return
    drain(job, write(apply(talk(job, coordinator), source.read(), form=form)))
    job.stop()
    coordinator.check(range(24))


def test_states_are_loaded_from_spark_4_0_on(make_job: MakeJob, file_stream: MakeStream, tmp_path: Path) -> None:
    source = file_stream(SCHEMA)
    source.add(rows(0))
    job, target = make_job(), str(tmp_path / "savepoint")
    drain(job, write(source.read().groupBy("key").count()).outputMode("update"))
    job.trigger_savepoint(target=target).wait(SECONDS)
    with open_checkpoint(LocalFiles(), target) as opened:
        if _RELEASE < (4, 0):
            with pytest.raises(SparkTooOld, match=r"needs Spark 4\.0 or newer"):
                list(load_states(source.read().sparkSession, opened))
        else:
            assert [each.rows for each in load_states(source.read().sparkSession, opened)] == [8]


def test_the_doctor_warns_that_operators_need_a_newer_spark(spark: SparkSession) -> None:
    check = check_spark(spark, 0.0)
    assert check.status.value == ("warning" if _RELEASE < (4, 1) else "ok"), check
    assert ("operators" in check.next_step) == (_RELEASE < (4, 1))
