"""What live values rest on in Spark: when a plan is optimized, in which session, and what becomes of it afterwards.

These are facts about classes behind Spark's public API; they are the first to look at when a new release breaks
something.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import coord_control as cc
from coord_control.spark.live import jvm_side
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, query_status, rows
from tests.spark.live_kit import LIMIT, Limits, Seen, with_limit
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

RULE = "coordcontrol.live.LiveRule"


@pytest.fixture
def stream(file_stream: MakeStream, own_session: SparkSession) -> FileStream:
    return file_stream(session=own_session)


@pytest.fixture
def job(make_job: MakeJob, own_session: SparkSession) -> cc.Job:
    return make_job(session=own_session)


def rules_of(session: Any) -> list[str]:
    rules = session.experimental().extraOptimizations()
    return [str(rules.apply(index).getClass().getName()) for index in range(rules.size())]


def plan_of(job: cc.Job, query: str = "q") -> str:
    """The physical plan of a query's newest epoch."""
    running = job._driver.queries[query].spark_query  # type: ignore[index]
    execution: Any = running._jsq
    return str(execution.streamingQuery().lastExecution().executedPlan().toString())


def test_a_copied_session_replaces_live_values_and_a_new_one_does_not(own_session: SparkSession, job: cc.Job) -> None:
    job.live("limits", Limits())
    session: Any = own_session._jsparkSession
    assert rules_of(session) == [RULE]
    assert rules_of(session.cloneSession()) == [RULE]
    assert rules_of(session.newSession()) == []
    jvm_side.install(own_session)
    assert rules_of(session) == [RULE], "it is there once"


def test_an_epoch_asks_once_however_often_its_plans_are_optimized(
    own_session: SparkSession, job: cc.Job, stream: FileStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answer = jvm_side._Answering.apply

    def count(self: jvm_side._Answering, question: str) -> str:
        asked.append(question)
        return answer(self, question)

    monkeypatch.setattr(jvm_side._Answering, "apply", count)
    limits = job.live("limits", Limits())
    more = job.live("more", Limits())

    def act(frame: DataFrame, epoch: int) -> None:
        frame.where(limits.minutes > 0).count()
        own_session.range(3).where(more.minutes > 0).count()

    seen = Seen(act)
    job.start("q", seen.writer(stream.read(own_session).withColumn(LIMIT, limits.minutes + more.minutes)))
    for epoch in range(3):
        stream.add(rows(epoch))
        seen.wait(epoch)
    query = job._driver.queries["q"].lineage.query_id  # type: ignore[index]
    assert asked == [f"{query} 1.0 {epoch}" for epoch in range(3)]


def test_nothing_is_left_for_executors_and_scans_get_the_literal(job: cc.Job, file_stream: MakeStream) -> None:
    source = file_stream(file_format="parquet", session=job._driver._spark)
    limits = job.live("limits", Limits(minutes=2.5, rows=3))
    frame = source.read().where((F.col("value") > limits.rows) & (F.col("value") * 1.0 > limits.minutes))
    seen = Seen()
    job.start("q", seen.writer(frame))
    source.add(rows(0))
    assert {row["value"] for row in seen.wait(0)} == {4, 5, 6, 7}
    plan = plan_of(job)
    assert "live_limits" not in plan
    assert "GreaterThan(value,3)" in plan, "the scan skips what the filter would drop"


def test_a_filter_that_lets_nothing_through_does_not_remove_what_is_below_it(
    own_session: SparkSession, job: cc.Job, stream: FileStream
) -> None:
    """A plan of which a state's operator is pruned in one epoch would lack that state in the next."""
    own_session.conf.set("spark.sql.shuffle.partitions", "2")
    limits = job.live("limits", Limits(is_open=True))
    seen = Seen()
    once = stream.read(own_session).dropDuplicates(["value"])
    job.start("q", seen.writer(once.where(limits.is_open)))
    for epoch, is_open in enumerate((True, False, True)):
        limits.set(is_open=is_open)
        stream.add([*rows(epoch), *rows(0)])
        seen.wait(epoch)
    assert {epoch: len(found) for epoch, found in seen.epochs.items()} == {0: 8, 1: 0, 2: 8}


class Label(BaseModel):
    carrier: str | None = None


def test_a_key_may_be_null_in_one_run_and_not_in_the_next(
    own_session: SparkSession, make_job: MakeJob, stream: FileStream
) -> None:
    """Spark compares the schemas of states with those of the run before, and a restore does so with nulls."""
    own_session.conf.set("spark.sql.shuffle.partitions", "2")

    def run(epoch: int, restore_from: str | None = None, **changes: Any) -> tuple[Seen, str]:
        job = make_job("labels", session=own_session, restore_from=restore_from)
        label = job.live("label", Label())
        frame = stream.read(own_session).groupBy(label.carrier.alias("carrier")).count()
        seen = Seen()
        job.start("q", seen.writer(frame, "update"))
        if changes:
            label.set(**changes)
        stream.add(rows(epoch))
        seen.wait(epoch)
        eventually(lambda: query_status(job).committed == epoch)
        path = job.trigger_savepoint().wait(SECONDS).path
        job.stop()
        return seen, path

    _, path = run(0)
    assert run(1, carrier="UA")[0].epochs[1] == [{"carrier": "UA", "count": 8}]
    assert run(2, carrier=None)[0].epochs[2] == [{"carrier": None, "count": 16}]
    again, _ = run(3, restore_from=path)
    assert again.epochs[1] == [{"carrier": None, "count": 16}]


def test_a_cached_frame_is_planned_when_that_is_asked_for(own_session: SparkSession, job: cc.Job) -> None:
    """So what depends on a live value is refused there, and not when it is stale."""
    limits = job.live("limits", Limits())
    with pytest.raises(Exception, match="live_limits_minutes"):
        own_session.range(3).where(limits.minutes > 1).persist()
    assert own_session.range(3).where("id > 1").persist().unpersist().count() == 1


def test_a_frame_is_planned_with_its_first_action_only(
    own_session: SparkSession, job: cc.Job, stream: FileStream
) -> None:
    """So a frame of an earlier epoch that has run an action keeps its value, and nothing of ours sees that it does."""
    limits = job.live("limits", Limits())
    kept: list[DataFrame] = []
    found: list[float] = []

    def look(frame: DataFrame, epoch: int) -> None:
        if not kept:
            kept.append(own_session.range(1).select(limits.minutes))
        found.append(kept[0].collect()[0][0])
        found.append(kept[0].localCheckpoint().collect()[0][0])
        found.append(own_session.range(1).select(limits.minutes).collect()[0][0])
        limits.set(minutes=31)

    seen = Seen(look)
    job.start("q", seen.writer(with_limit(stream.read(own_session), limits)))
    for epoch in range(2):
        stream.add(rows(epoch))
        seen.wait(epoch)
    assert found == [30.0, 30.0, 30.0, 30.0, 30.0, 31.0]
