"""When a job that is stopped may say that it has ended: only when nothing of it can commit an epoch any more."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import coord_control as cc
from tests.patience import SECONDS
from tests.spark.conftest import MakeStream


def test_a_job_whose_query_has_not_ended_is_not_released(
    spark: SparkSession, tmp_path: Path, file_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coord_control.spark.checkpoints.stop_first.CLOSE_SECONDS", 0.1)
    entered, leave = threading.Event(), threading.Event()

    def hang(frame: DataFrame, epoch: int) -> None:
        entered.set()
        leave.wait()

    stream = file_stream()
    stream.add([{"key": "a", "value": 1}])
    released = tmp_path / "job" / "generations" / "1.released"
    job = cc.Job("job", spark, root=str(tmp_path))
    query = job.start("q", stream.read().writeStream.foreachBatch(hang))
    try:
        assert entered.wait(SECONDS)
        job.stop(grace_seconds=0.0)
        assert not released.exists()
    finally:
        leave.set()
        query.stop()


def test_a_job_whose_queries_have_ended_is_released(
    spark: SparkSession, tmp_path: Path, file_stream: MakeStream
) -> None:
    stream = file_stream()
    stream.add([{"key": "a", "value": 1}])
    with cc.Job("job", spark, root=str(tmp_path)) as job:
        job.start("q", stream.read().writeStream.format("noop").trigger(availableNow=True))
        assert job.await_termination(120)

    assert (tmp_path / "job" / "generations" / "1.released").exists()
