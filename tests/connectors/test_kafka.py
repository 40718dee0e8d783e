"""Kafka as source and sink of a job: what a savepoint contains, and what a restore and a fork read again."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.control.backlog import backlog, backlog_of_partitions
from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.restore.checks import Verdict
from coord_control.errors import QueryFailed, RestoreRefused
from coord_control.ids import QueryName
from coord_control.spark.queries.kafka_offsets import check_kafka
from tests import cli_kit
from tests.connectors.kafka_tables import rows_of, table_into
from tests.kafka_kit import Broker, KafkaClient, read_topic
from tests.patience import SECONDS, eventually
from tests.spark.jobs import SCHEMA, Dialogue, MakeJob, Trouble, apply, query_status, rows, talk

pytestmark = pytest.mark.spark

_numbers: Final = itertools.count(1)


class Run:
    """A job that reads a topic of three partitions: an operator between topics, and a plain query with a table."""

    def __init__(
        self, make_job: MakeJob, spark: SparkSession, broker: Broker, kafka: KafkaClient, folder: Path
    ) -> None:
        self._make_job = make_job
        self._spark = spark
        self._bootstrap = broker.bootstrap
        self._kafka = kafka
        self._folder = folder
        self._sent = 0
        number = next(_numbers)
        self.source, self.sink = f"in-{number}", f"out-{number}"
        kafka.create(self.source, 3)
        kafka.create(self.sink, 1)

    def send(self, count: int = 8, *, partition: int | None = None) -> None:
        """Send the next rows, which are numbered through."""
        self._kafka.send(self.source, rows(self._sent // 8)[:count], partition=partition)
        self._sent += 8

    @property
    def sent(self) -> int:
        """How many rows were sent."""
        return self._sent

    def grow(self, partitions: int) -> None:
        self._kafka.grow(self.source, partitions)

    def read(self, **options: Any) -> DataFrame:
        return read_topic(self._spark, self._bootstrap, self.source, SCHEMA, **options)

    def to_kafka(self, frame: DataFrame) -> DataStreamWriter:
        writer = frame.selectExpr("key", "to_json(struct(*)) value").writeStream.format("kafka")
        return writer.option("kafka.bootstrap.servers", self._bootstrap).option("topic", self.sink)

    def drain(self, name: str = "job", *, table: str = "table", savepoint: str = "", **options: Any) -> Dialogue:
        """Process all that is there, and take a savepoint."""
        coordinator = Dialogue()
        job = self._make_job(name, **options)
        worked = apply(talk(job, coordinator), self.read())
        job.start("worked", self.to_kafka(worked).trigger(availableNow=True))
        plain = self.read().writeStream.foreachBatch(table_into(self._folder / table))
        job.start("plain", plain.trigger(availableNow=True))
        assert job.await_termination(SECONDS)
        if savepoint:
            job.trigger_savepoint(target=str(self._folder / savepoint)).wait(SECONDS)
        job.stop()
        return coordinator

    def written(self) -> list[int]:
        """The values in the topic of the sink, in order."""
        return sorted(row["value"] for row in values_in(self._spark, self._bootstrap, self.sink))

    def table(self, name: str = "table") -> list[int]:
        """The values in the table of the plain query, in order."""
        return sorted(row["value"] for row in rows_of(self._folder / name))


def values_in(spark: SparkSession, bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """The records of a topic, which are JSON."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return [json.loads(row.value) for row in reader.load().selectExpr("cast(value as string)").collect()]


@pytest.fixture
def run(make_job: MakeJob, spark: SparkSession, broker: Broker, kafka: KafkaClient, tmp_path: Path) -> Run:
    return Run(make_job, spark, broker, kafka, tmp_path)


def test_an_operator_between_two_topics_sees_and_writes_each_record_once(run: Run) -> None:
    for _ in range(3):
        run.send()
    run.drain().check(range(24))
    assert run.written() == run.table() == list(range(24))


def test_a_restore_and_a_fork_read_on_from_the_offsets_of_the_cut(run: Run, tmp_path: Path) -> None:
    run.send()
    run.drain(savepoint="first")
    run.send()
    run.drain(savepoint="second")
    run.send()
    run.drain().check(range(24))
    assert run.written() == list(range(24))

    # To the older of the two: what it had not read is read again, by both queries, and the events go on from there.
    run.drain(restore_from=str(tmp_path / "first"), table="restored").check(range(24))
    assert run.table("restored") == list(range(8, 24))
    assert run.written() == sorted([*range(24), *range(8, 24)])

    run.drain("fork", restore_from=str(tmp_path / "second"), table="forked").check(range(24))
    assert run.table("forked") == list(range(16, 24))
    # The job that it was made from goes on by itself.
    run.send()
    run.drain(table="restored").check(range(32))
    assert run.table("restored") == list(range(8, 32))


def test_partitions_that_were_added_after_a_savepoint_are_read_from_their_beginning(run: Run, tmp_path: Path) -> None:
    run.send()
    run.drain(savepoint="before")
    run.grow(5)
    run.send(partition=3)
    run.send(partition=4)
    run.drain(restore_from=str(tmp_path / "before"), table="restored").check(range(24))
    assert run.table("restored") == list(range(8, 24))


def test_a_savepoint_before_the_first_epoch_has_the_offsets_that_latest_meant_then(
    run: Run, make_job: MakeJob, tmp_path: Path
) -> None:
    run.send()
    is_broken = True
    write = table_into(tmp_path / "table")

    def sink(batch: DataFrame, epoch: int) -> None:
        if is_broken:
            raise Trouble
        write(batch, epoch)

    def writer() -> DataStreamWriter:
        return run.read(startingOffsets="latest").writeStream.foreachBatch(sink).trigger(availableNow=True)

    # Spark has looked up what `latest` is, and never gets to the end of its first epoch.
    job = make_job()
    job.start("plain", writer())
    with pytest.raises(QueryFailed):
        job.await_termination(SECONDS)
    job.stop()
    savepoint = save_offline(tmp_path)
    metadata = read_metadata(LocalFiles(), savepoint)
    assert metadata is not None
    assert [snapshot.epoch for snapshot in metadata.queries.values()] == [-1]

    run.send()
    is_broken = False
    for _ in range(2):  # the epoch that was planned, and what came since
        restored = make_job("fork", restore_from=savepoint)
        restored.start("plain", writer())
        assert restored.await_termination(SECONDS)
        restored.stop()
    assert run.table() == list(range(8, 16))


def save_offline(folder: Path) -> str:
    """Take a savepoint of the job without its driver; returns where it is."""
    path = folder / "savepoint"
    cli_kit.run(folder, "savepoint", "create", "job", "--root", str(folder / "jobs"), "--target", str(path))
    return str(path)


def test_a_restore_that_needs_records_that_retention_removed_is_refused_and_names_the_partitions(
    run: Run, kafka: KafkaClient, tmp_path: Path
) -> None:
    for partition in range(3):
        run.send(partition=partition)
    run.drain(savepoint="before")
    for partition in range(3):
        run.send(partition=partition)
    run.drain().check(range(48))
    kafka.forget(run.source, {1: 12, 2: 8})  # 2: all that the savepoint has read, and no more

    with pytest.raises(RestoreRefused) as refused:
        run.drain(restore_from=str(tmp_path / "before"))
    reason = f"partition 1 of {run.source} begins at offset 12, and the checkpoint has read up to 8"
    assert reason in str(refused.value)
    assert "partition 0" not in str(refused.value)
    assert "partition 2" not in str(refused.value)

    # Nothing has changed: the job goes on where it stood.
    run.send()
    run.drain().check(range(56))


def test_a_restore_does_not_wait_for_brokers_that_are_away(
    run: Run, spark: SparkSession, broker: Broker, kafka: KafkaClient
) -> None:
    def checks(frame: DataFrame, offset: int) -> list[tuple[Verdict, str]]:
        offsets = [{run.source: {"0": offset}}]
        return [
            (check.verdict, check.found)
            for check in check_kafka(QueryName("q"), frame, offsets, allow_missing_input=False)
        ]

    run.send(partition=0)
    assert checks(run.read(), 8) == [(Verdict.OK, "the brokers have all records after the checkpoint")]
    [(verdict, found)] = checks(run.read(), 9)
    assert verdict is Verdict.REFUSED
    assert f"partition 0 of {run.source} ends at offset 8, before 9" in found
    assert [each for each, _ in checks(run.read(failOnDataLoss="false"), 9)] == [Verdict.WARNING]
    away = read_topic(spark, "127.0.0.1:1", run.source, SCHEMA)
    [(verdict, found)] = checks(away, 8)
    assert verdict is Verdict.WARNING
    assert "the brokers could not be asked for their offsets" in found


def test_the_backlog_of_a_topic_is_known_by_partition(run: Run, make_job: MakeJob, tmp_path: Path) -> None:
    for partition in (0, 2, 2):
        run.send(partition=partition)
    job = make_job()
    one_batch = run.read(maxOffsetsPerTrigger="6").writeStream.trigger(processingTime="1 hour")
    job.start("plain", one_batch.foreachBatch(table_into(tmp_path / "table")))
    eventually(lambda: query_status(job).progress)
    progress = query_status(job).progress
    parts = backlog_of_partitions(progress)
    assert {name: parts[f"0/{run.source}/{name}"] for name in ("0", "1", "2")} == {"0": 6, "1": 0, "2": 12}
    assert backlog(progress) == 18
    # The connector's own metrics agree, which count where offsets cannot be compared.
    [source] = progress["sources"]
    assert int(source["metrics"]["maxOffsetsBehindLatest"]) == 12
    assert backlog({"sources": [{**source, "latestOffset": None}]}) == 18


def test_a_job_reads_what_a_topic_has_and_stops_although_more_comes_with_every_batch(
    run: Run, make_job: MakeJob, tmp_path: Path
) -> None:
    """It is never idle: what the topic had at the request is known by its offsets alone."""
    for partition in (0, 2, 2):
        run.send(partition=partition)
    job, write = make_job(), table_into(tmp_path / "table")

    def into(frame: DataFrame, epoch: int) -> None:
        write(frame, epoch)
        run.send()

    job.start("plain", run.read(maxOffsetsPerTrigger="6").writeStream.foreachBatch(into))
    eventually(lambda: query_status(job).committed >= 0)
    job.stop_with_savepoint(drain=True, timeout_seconds=SECONDS)
    assert set(range(24)) <= set(run.table())
    assert len(run.table()) < run.sent
