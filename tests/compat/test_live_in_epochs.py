"""Live values on every PySpark: in columns and in SQL text, through a failed driver, a savepoint and a fork.

Queries with states on RocksDB, because Spark compares their plans and schemas from run to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import coord_control as cc
from coord_control.errors import QueryFailed
from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, Trouble, rows
from tests.spark.live_kit import LIMIT, Limits, Seen
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Bench:
    """A job with one query whose rows are judged and labelled by a live value, and the file that each epoch reads."""

    def __init__(self, session: SparkSession, source: FileStream, make_job: MakeJob) -> None:
        self.session, self.source, self._make_job = session, source, make_job

    def start(self, seen: Seen, name: str = "job", **options: Any) -> cc.Job:
        job = self._make_job(name, session=self.session, restart=cc.RestartPolicy(max_restarts=0), **options)
        self.limits = limits = job.live("limits", Limits(minutes=0.5))
        self.source.read(self.session).where(sf.col("value") % 8 > limits.minutes).createOrReplaceTempView("judged")
        text = f"SELECT value, live_limits_minutes() AS {LIMIT}, live_limits_carrier() AS carrier FROM judged"
        counted = self.session.sql(text).groupBy("value", LIMIT, "carrier").count()
        job.start("q", seen.writer(counted, "update").trigger(availableNow=True))
        return job


@pytest.fixture
def bench(make_job: MakeJob, file_stream: MakeStream, own_session: SparkSession) -> Bench:
    own_session.conf.set("spark.sql.shuffle.partitions", "2")
    own_session.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    return Bench(own_session, file_stream(session=own_session), make_job)


def test_live_values_are_seen_again_saved_and_forked(bench: Bench, tmp_path: Path) -> None:
    for epoch in range(3):
        bench.source.add(rows(epoch))
    refused: list[str] = []

    def fail(frame: DataFrame, epoch: int) -> None:
        if epoch == 1:
            with pytest.raises(Exception, match="cannot be cached or checkpointed") as caught:
                frame.where(sf.col("value") > bench.limits.minutes).persist()
            refused.append(str(caught.value))
            assert frame.where(f"{LIMIT} = live_limits_minutes()").count() == 7
            bench.limits.set(minutes=5.5, carrier="UA")
            raise Trouble

    first = Seen(fail)
    job = bench.start(first)
    with pytest.raises(QueryFailed):
        job.await_termination(SECONDS)
    job.stop()
    assert refused, "the function came as far as its change"

    second = Seen()
    job = bench.start(second)
    assert job.await_termination(SECONDS)
    saved = job.trigger_savepoint(target=str(tmp_path / "saved")).wait(SECONDS).path
    bench.limits.set(minutes=6.5)
    job.stop()
    assert first.values() == {0: {0.5}}
    assert second.values() == {1: {0.5}, 2: {5.5}}, "an epoch that is run again sees what it has seen"
    assert second.values("carrier") == {1: {None}, 2: {"UA"}}
    assert {epoch: len(found) for epoch, found in second.epochs.items()} == {1: 7, 2: 2}

    bench.source.add(rows(3))
    forked = Seen()
    fork = bench.start(forked, "fork", restore_from=saved)
    assert fork.await_termination(SECONDS)
    assert forked.values() == {3: {5.5}}, "a fork has the value of its savepoint"
    assert bench.limits.get() == Limits(minutes=5.5, carrier="UA")
