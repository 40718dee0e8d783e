"""Live values on real Spark: one value per query and epoch, wherever it is used, through restarts and restores."""

from __future__ import annotations

import datetime
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import coord_control as cc
from coord_control import errors
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.offline import offline_savepoint
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.restore.request import RestoreRequest
from coord_control.metrics.names import METRICS
from coord_control.spark.live.live_handle import Live
from coord_control.storage.records import to_json
from tests.metrics_kit import read
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, Trouble, query_status, rows
from tests.spark.live_kit import LIMIT, Limits, Seen, with_limit
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


@pytest.fixture
def stream(file_stream: MakeStream, own_session: SparkSession) -> FileStream:
    return file_stream(session=own_session)


@pytest.fixture
def job(make_job: MakeJob, own_session: SparkSession) -> cc.Job:
    return make_job(session=own_session)


def test_a_change_is_in_force_from_the_next_epoch_and_is_what_rows_are_judged_by(
    job: cc.Job, stream: FileStream
) -> None:
    limits = job.live("limits", Limits(minutes=2.5))
    seen = Seen()
    job.start("q", seen.writer(with_limit(stream.read(), limits).where(F.col("value") % 8 > limits.minutes)))
    stream.add(rows(0))
    assert {row["value"] for row in seen.wait(0)} == {3, 4, 5, 6, 7}
    assert limits.set(minutes=5.5) == 2
    assert limits.get() == Limits(minutes=5.5)
    stream.add(rows(1))
    assert {row["value"] for row in seen.wait(1)} == {14, 15}
    stream.add(rows(2))
    seen.wait(2)
    assert seen.values() == {0: {2.5}, 1: {5.5}, 2: {5.5}}
    facts = job._driver.live.facts("limits")
    assert (facts.version, facts.uses["q"].since, facts.uses["q"].next_epoch) == (2, 1, None)  # type: ignore[index]


def test_the_database_and_the_metrics_say_what_is_accepted_and_which_epochs_see_it(
    make_job: MakeJob, own_session: SparkSession, stream: FileStream, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'control.db'}"
    job = make_job(session=own_session, control=database, metrics="127.0.0.1:0")
    limits = job.live("limits", Limits())
    seen = Seen()
    job.start("q", seen.writer(with_limit(stream.read(), limits)))
    stream.add(rows(0))
    seen.wait(0)
    with cc.ControlClient(database, actor="ada") as client:
        eventually(lambda: [each.uses.keys() for each in client.job("job").live_values] == [{"q"}])
        client.wait(client.set("job", "limits", {"minutes": 45, "carrier": "UA"}), SECONDS)
        [accepted] = client.job("job").live_values
        assert (accepted.version, accepted.by) == (2, "ada")
        assert accepted.value == {"minutes": 45.0, "rows": 5, "is_open": True, "carrier": "UA"}
        assert accepted.schema["properties"]["rows"]["type"] == "integer"
        assert to_json(accepted.uses["q"]) == {"version": 1, "since": 0, "next_epoch": 1}
        found = read(_scraped(job))
        assert found.get("live_value", job_name="job", live="limits", field="minutes") == 45
        assert found.get("live_value_query_version", query="q", live="limits") == 1
        stream.add(rows(1))
        seen.wait(1)
        eventually(lambda: client.job("job").live_values[0].uses["q"].version == 2)
        changes = client.live_changes("job", "limits")
        assert [(each.version, each.by, each.since) for each in changes] == [
            (2, "ada", {"q": 1}),
            (1, "the default of the job", {"q": 0}),
        ]
    found = read(_scraped(job))
    assert {name for name in found.names if name.startswith("live_")} == {
        name for name in METRICS if name.startswith("live_")
    }
    assert found.get("live_value_query_version", query="q", live="limits") == 2


def _scraped(job: cc.Job) -> str:
    with urllib.request.urlopen(f"http://{job.metrics_address}/metrics", timeout=SECONDS) as answer:
        return str(answer.read().decode())


def test_an_update_of_an_idle_query_is_accepted_at_once_and_says_from_when(job: cc.Job, stream: FileStream) -> None:
    limits = job.live("limits", Limits())
    seen = Seen()
    job.start("q", seen.writer(with_limit(stream.read(), limits)))
    stream.add(rows(0))
    seen.wait(0)
    limits.set(minutes=31)
    use = job._driver.live.facts("limits").uses["q"]  # type: ignore[index]
    assert (use.version, use.since, use.next_epoch) == (1, 0, 1)


def every_type(frame: DataFrame, limits: Live[Limits]) -> DataFrame:
    return frame.select(
        limits.minutes.alias(LIMIT), limits.rows.alias("rows"), limits.is_open.alias("open"), limits.carrier.alias("by")
    )


def test_every_type_arrives_as_it_is(job: cc.Job, stream: FileStream) -> None:
    limits = job.live("limits", Limits())
    seen = Seen()
    frame = every_type(stream.read(), limits)
    assert [field.dataType.simpleString() for field in frame.schema] == ["double", "bigint", "boolean", "string"]
    job.start("q", seen.writer(frame))
    stream.add(rows(0))
    assert seen.wait(0)[0] == {LIMIT: 30.0, "rows": 5, "open": True, "by": None}
    limits.set(minutes=-1e300, rows=-(2**63), is_open=False, carrier="a=b&c ü%+")
    stream.add(rows(1))
    assert seen.wait(1)[0] == {LIMIT: -1e300, "rows": -(2**63), "open": False, "by": "a=b&c ü%+"}


def _union(frame: DataFrame, limits: Live[Limits], session: SparkSession) -> DataFrame:
    return with_limit(frame, limits).union(with_limit(frame, limits))


def _join(frame: DataFrame, limits: Live[Limits], session: SparkSession) -> DataFrame:
    static = session.range(100).select(F.col("id").alias("value"), limits.minutes.alias("other"))
    joined = with_limit(frame, limits).join(static, "value")
    return joined.withColumn(LIMIT, F.when(F.col("other") == F.col(LIMIT), F.col(LIMIT)))


def _join_of_constants(frame: DataFrame, limits: Live[Limits], session: SparkSession) -> DataFrame:
    # Spark computes such a relation while it plans.
    static = session.createDataFrame([(n,) for n in range(100)], "value LONG").select(
        "value", limits.minutes.alias(LIMIT)
    )
    return frame.join(F.broadcast(static), "value")


def _aggregation(frame: DataFrame, limits: Live[Limits], session: SparkSession) -> DataFrame:
    counted = with_limit(frame, limits).groupBy("value", LIMIT).count()
    return counted.where(F.col(LIMIT) == limits.minutes)


def _sql(frame: DataFrame, limits: Live[Limits], session: SparkSession) -> DataFrame:
    frame.createOrReplaceTempView("live_rows")
    return session.sql(
        f"SELECT *, live_limits_minutes() AS {LIMIT} FROM live_rows WHERE value >= live_limits_minutes() - 99"
    )


def _subquery(frame: DataFrame, limits: Live[Limits], session: SparkSession) -> DataFrame:
    frame.createOrReplaceTempView("live_rows")
    return session.sql(f"SELECT *, (SELECT max(live_limits_minutes()) FROM range(3)) AS {LIMIT} FROM live_rows")


def _deduplicated(frame: DataFrame, limits: Live[Limits], session: SparkSession) -> DataFrame:
    return with_limit(frame, limits).dropDuplicates(["value"])


@pytest.mark.parametrize(
    "shape",
    [_union, _join, _join_of_constants, _aggregation, _sql, _subquery, _deduplicated],
    ids=lambda shape: shape.__name__.strip("_"),
)
def test_an_epoch_sees_one_value_however_its_plan_is_shaped(
    job: cc.Job,
    stream: FileStream,
    own_session: SparkSession,
    shape: Callable[[DataFrame, Live[Limits], SparkSession], DataFrame],
) -> None:
    own_session.conf.set("spark.sql.shuffle.partitions", "2")
    limits = job.live("limits", Limits())
    seen = Seen()
    frame = shape(stream.read(own_session), limits, own_session)
    mode = "append" if shape is not _aggregation else "update"
    job.start("q", seen.writer(frame, mode))
    for epoch in range(3):
        stream.add(rows(epoch))
        assert seen.wait(epoch)
        limits.set(minutes=31 + epoch)
    assert seen.values() == {0: {30.0}, 1: {31.0}, 2: {32.0}}


def test_a_function_of_foreach_batch_and_its_own_frames_see_the_value_of_the_epoch(
    job: cc.Job, stream: FileStream, own_session: SparkSession
) -> None:
    limits = job.live("limits", Limits())
    found: list[tuple[int, Any, Any, Any]] = []

    def look(frame: DataFrame, epoch: int) -> None:
        again = {row[0] for row in frame.select(limits.minutes).collect()}
        own = {row[0] for row in own_session.range(2).select(limits.minutes).collect()}
        grouped = frame.withColumn("mine", limits.minutes).groupBy("key")
        pandas = grouped.applyInPandas(lambda group: group[["mine"]], "mine DOUBLE").distinct().collect()
        limits.set(minutes=31 + epoch)  # in the middle of the epoch
        found.append((epoch, again, own | {row[0] for row in pandas}, frame.where(limits.minutes > 0).count()))

    seen = Seen(look)
    job.start("q", seen.writer(with_limit(stream.read(own_session), limits)))
    for epoch in range(2):
        stream.add(rows(epoch))
        seen.wait(epoch)
    assert seen.values() == {0: {30.0}, 1: {31.0}}
    assert found == [(0, {30.0}, {30.0}, 8), (1, {31.0}, {31.0}, 8)]


def test_a_frame_that_was_made_outside_of_the_epoch_is_refused_because_it_would_keep_a_value(
    job: cc.Job, stream: FileStream, own_session: SparkSession
) -> None:
    limits = job.live("limits", Limits())
    outside = [
        own_session.range(1).select(limits.minutes),
        own_session.range(40).where(F.col("id") < limits.minutes),
        own_session.sql("SELECT live_limits_minutes() AS minutes"),
        own_session.createDataFrame([(1,)], "a INT").select(limits.minutes),  # computed while it is planned
    ]
    said: list[str] = []

    def look(frame: DataFrame, epoch: int) -> None:
        for each in [*outside, *(frame.crossJoin(each) for each in outside)]:
            try:
                said.append(str(each.collect()))
            except Exception as error:
                said.append(str(error))
        said.append(str(own_session.sql("SELECT live_limits_minutes() AS minutes").collect()))

    seen = Seen(look)
    job.start("q", seen.writer(with_limit(stream.read(own_session), limits)))
    stream.add(rows(0))
    seen.wait(0)
    *refused, inside = said
    assert len(refused) == 8
    assert all("make the frame inside of the foreachBatch function" in each for each in refused), refused
    assert inside == "[Row(minutes=30.0)]"


def test_days_before_the_gregorian_calendar_are_what_was_set(
    job: cc.Job, stream: FileStream, own_session: SparkSession
) -> None:
    class Since(BaseModel):
        day: datetime.date = datetime.date(1582, 10, 10)
        time: datetime.datetime = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)

    since = job.live("since", Since())
    found: list[Any] = []

    def look(frame: DataFrame, epoch: int) -> None:
        found.append(tuple(frame.select(since.day.cast("string"), F.unix_micros(since.time)).first() or ()))

    seen = Seen(look)
    job.start("q", seen.writer(stream.read(own_session)))
    stream.add(rows(0))
    seen.wait(0)
    assert found == [("1582-10-10", -62135596800000000)]


def test_two_queries_see_a_change_each_in_its_next_epoch(
    job: cc.Job, file_stream: MakeStream, own_session: SparkSession
) -> None:
    limits = job.live("limits", Limits())
    streams = [file_stream(session=own_session) for _ in range(2)]
    sinks = [Seen(), Seen()]
    for number, (stream, seen) in enumerate(zip(streams, sinks, strict=True)):
        job.start(f"q{number}", seen.writer(with_limit(stream.read(), limits)))
    for epoch in range(3):
        streams[0].add(rows(epoch))
        sinks[0].wait(epoch)
    streams[1].add(rows(0))
    sinks[1].wait(0)
    limits.set(minutes=45)
    uses = job._driver.live.facts("limits").uses
    assert {name: use.next_epoch for name, use in uses.items()} == {"q0": 3, "q1": 1}
    streams[1].add(rows(1))
    sinks[1].wait(1)
    streams[0].add(rows(3))
    sinks[0].wait(3)
    assert sinks[0].values() == {0: {30.0}, 1: {30.0}, 2: {30.0}, 3: {45.0}}
    assert sinks[1].values() == {0: {30.0}, 1: {45.0}}


def test_an_epoch_that_is_run_again_sees_what_it_has_seen(job: cc.Job, stream: FileStream) -> None:
    limits = job.live("limits", Limits())
    failed: list[int] = []

    def fail_once(frame: DataFrame, epoch: int) -> None:
        if epoch == 1 and not failed:
            failed.append(epoch)
            assert {row[LIMIT] for row in frame.collect()} == {30.0}
            limits.set(minutes=45)
            raise Trouble

    seen = Seen(fail_once)
    job.start("q", seen.writer(with_limit(stream.read(), limits)))
    for epoch in range(3):
        stream.add(rows(epoch))
        seen.wait(epoch)
    assert seen.values() == {0: {30.0}, 1: {30.0}, 2: {45.0}}
    assert seen.runs == [0, 1, 1, 2]


def test_a_planned_epoch_sees_in_the_next_driver_what_it_has_seen(
    make_job: MakeJob, stream: FileStream, own_session: SparkSession
) -> None:
    for epoch in range(3):
        stream.add(rows(epoch))
    job = make_job(session=own_session, restart=cc.RestartPolicy(max_restarts=0))
    limits = job.live("limits", Limits())

    def fail(frame: DataFrame, epoch: int) -> None:
        if epoch == 1:
            limits.set(minutes=45)
            raise Trouble

    first = Seen(fail)
    job.start("q", first.writer(with_limit(stream.read(), limits)))
    with pytest.raises(errors.QueryFailed):
        job.await_termination(SECONDS)
    job.stop()
    again = make_job(session=own_session)
    limits = again.live("limits", Limits())
    second = Seen()
    again.start("q", second.writer(with_limit(stream.read(), limits)).trigger(availableNow=True))
    assert again.await_termination(SECONDS)
    assert first.values() == {0: {30.0}}
    assert second.values() == {1: {30.0}, 2: {45.0}}


def _taken(job: cc.Job, label: str) -> str:
    return job.trigger_savepoint(label=label).wait(SECONDS).path


def test_a_restore_sets_the_value_back_and_a_fork_inherits_it(
    make_job: MakeJob, stream: FileStream, own_session: SparkSession, tmp_path: Path
) -> None:
    def run(name: str, seen: Seen, **options: Any) -> tuple[cc.Job, Live[Limits]]:
        job = make_job(name, session=own_session, **options)
        limits = job.live("limits", Limits())
        job.start("q", seen.writer(with_limit(stream.read(), limits)))
        return job, limits

    seen = Seen()
    job, limits = run("job", seen)
    stream.add(rows(0))
    seen.wait(0)
    eventually(lambda: query_status(job).committed == 0)
    limits.set(minutes=40)
    path = _taken(job, "forty")
    limits.set(minutes=50)
    stream.add(rows(1))
    seen.wait(1)
    job.stop()
    restored = Seen()
    job, limits = run("job", restored, restore_from=path)
    assert restored.wait(1)
    stream.add(rows(2))
    restored.wait(2)
    assert (seen.values(), restored.values()) == ({0: {30.0}, 1: {50.0}}, {1: {40.0}, 2: {40.0}})
    facts = job._driver.live.facts("limits")
    assert (facts.version, facts.by) == (4, f"the restore of {path}")
    assert limits.set(expect=4, minutes=60) == 5
    job.stop()
    forked = Seen()
    _, limits = run("fork", forked, restore_from=path)
    forked.wait(2)
    assert forked.values() == {1: {40.0}, 2: {40.0}}
    assert limits.get().minutes == 40


def test_a_cut_at_rest_keeps_what_the_planned_epoch_has_seen(
    make_job: MakeJob, stream: FileStream, own_session: SparkSession, tmp_path: Path
) -> None:
    for epoch in range(2):
        stream.add(rows(epoch))
    job = make_job(session=own_session, restart=cc.RestartPolicy(max_restarts=0))
    limits = job.live("limits", Limits())

    def fail(frame: DataFrame, epoch: int) -> None:
        if epoch == 1:
            limits.set(minutes=45)
            raise Trouble

    job.start("q", Seen(fail).writer(with_limit(stream.read(), limits)))
    with pytest.raises(errors.QueryFailed):
        job.await_termination(SECONDS)
    job.stop()
    files, root = LocalFiles(), str(tmp_path / "jobs")
    saved = offline_savepoint.save(files, f"{root}/job", label="dead")
    query = saved.metadata.queries["q"]  # type: ignore[index]
    assert (query.epoch, query.planned) == (0, 1)
    assert query.planned_live is not None
    assert (query.planned_live["limits"].version, saved.metadata.live["limits"].version) == (1, 2)
    restore_job(files, lambda path: files, RestoreRequest(ref=saved.path, as_name="fork"), root=root, job="job")
    fork = make_job("fork", session=own_session)
    limits = fork.live("limits", Limits())
    stream.add(rows(2))
    seen = Seen()
    fork.start("q", seen.writer(with_limit(stream.read(), limits)).trigger(availableNow=True))
    assert fork.await_termination(SECONDS)
    assert seen.values() == {1: {30.0}, 2: {45.0}}


def test_what_depends_on_a_value_cannot_be_kept(job: cc.Job, stream: FileStream, own_session: SparkSession) -> None:
    limits = job.live("limits", Limits())
    refused: list[str] = []

    def keep(frame: DataFrame, epoch: int) -> None:
        judged = frame.where(F.col("value") > limits.minutes - 99)
        constants = own_session.createDataFrame([(1,)], "a INT").select(limits.minutes)  # computed while planned
        for how in (judged.persist, judged.cache, judged.localCheckpoint, constants.persist, constants.localCheckpoint):
            try:
                how().count()
            except Exception as error:
                refused.append(str(error))
        frame.persist()
        assert frame.where(F.col("value") > limits.minutes - 99).count() == 8
        frame.unpersist()

    seen = Seen(keep)
    job.start("q", seen.writer(with_limit(stream.read(own_session), limits)))
    stream.add(rows(0))
    seen.wait(0)
    assert len(refused) == 5
    assert all("live_limits_minutes: what depends on a live value cannot be cached" in each for each in refused)


def test_outside_a_query_of_the_job_it_has_no_value(job: cc.Job, stream: FileStream, own_session: SparkSession) -> None:
    limits = job.live("limits", Limits())
    for use in (
        lambda: own_session.range(3).where(limits.minutes > 1).count(),
        lambda: own_session.createDataFrame([(1,)], "a INT").select(limits.minutes).collect(),
        lambda: own_session.range(3).where(limits.minutes > 1).persist(),
        lambda: own_session.sql("SELECT live_limits_minutes()").collect(),
    ):
        with pytest.raises(Exception, match=r"is known only in an epoch of a query that was started with job\.start"):
            use()
    stream.add(rows(0))
    plain = (
        stream.read(own_session).select(limits.minutes).writeStream.format("noop").trigger(availableNow=True).start()
    )
    with pytest.raises(StreamingQueryException, match=r"started with job\.start"):
        plain.awaitTermination(SECONDS)


def test_continuous_processing_plans_no_epochs_and_so_has_no_value(
    make_job: MakeJob, own_session: SparkSession
) -> None:
    job = make_job(session=own_session, restart=cc.RestartPolicy(max_restarts=0))
    limits = job.live("limits", Limits())
    numbers = own_session.readStream.format("rate").load()
    job.start("q", with_limit(numbers, limits).writeStream.format("noop").trigger(continuous="1 second"))
    with pytest.raises(errors.QueryFailed, match="a live value is known only in an epoch"):
        job.await_termination(SECONDS)


def test_a_session_of_another_kind_does_not_know_it(job: cc.Job, spark: SparkSession) -> None:
    limits = job.live("limits", Limits())
    with pytest.raises(Exception, match="live_limits_minutes"):
        spark.newSession().range(3).where(limits.minutes > 1).count()


def test_a_change_that_does_not_fit_is_refused(job: cc.Job, stream: FileStream) -> None:
    limits = job.live("limits", Limits())
    seen = Seen()
    job.start("q", seen.writer(with_limit(stream.read(), limits)))
    with pytest.raises(errors.LiveValueInvalid, match="minutes"):
        limits.set(minutes="soon")
    with pytest.raises(errors.LiveVersionChanged, match="has version 1, not 2"):
        limits.set(minutes=31, expect=2)
    assert limits.set(minutes=31, expect=1) == 2
    assert (
        job._driver.live.facts("limits").value
        == json.dumps({"minutes": 31.0, "rows": 5, "is_open": True, "carrier": None}, separators=(",", ":")).encode()
    )


def test_a_declaration_comes_before_the_first_query_and_once(job: cc.Job, stream: FileStream) -> None:
    job.live("limits", Limits())
    with pytest.raises(errors.LiveModelInvalid, match="already"):
        job.live("limits", Limits())
    with pytest.raises(AttributeError, match="has no field"):
        _ = job.live("other", Limits()).hours
    job.start("q", Seen().writer(stream.read()))
    with pytest.raises(errors.LiveModelInvalid, match="before the first query"):
        job.live("late", Limits())


def test_a_request_that_comes_after_the_job_is_refused(job: cc.Job, stream: FileStream) -> None:
    limits = job.live("limits", Limits())
    job.start("q", Seen().writer(with_limit(stream.read(), limits)))
    job.stop()
    with pytest.raises(errors.JobClosed):
        limits.set(minutes=1)
