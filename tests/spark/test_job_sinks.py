"""Operators in plans and sinks of every kind: numbered events and rows arrive exactly once in each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import coord_control as cc
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import (
    SCHEMA,
    Dialogue,
    MakeJob,
    apply,
    drain,
    follow,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream, batch_ids, query_id
from tests.spark.streams import drain as drain_uncoordinated

pytestmark = pytest.mark.spark


def values(frame: DataFrame) -> list[int]:
    return sorted(row.value for row in frame.collect())


def test_parquet(spark: SparkSession, make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    coordinator = Dialogue()
    with make_job() as job:
        out = apply(talk(job, coordinator), source.read())
        drain(job, out.writeStream.format("parquet").option("path", str(tmp_path / "out")))
        status = job.status()
    coordinator.check(range(24))
    assert values(spark.read.parquet(str(tmp_path / "out"))) == list(range(24))
    assert [(query.name, query.state, query.committed) for query in status.queries] == [("q", "finished", 2)]
    assert [(operator.uid, operator.query, operator.epoch) for operator in status.operators] == [("op", "q", None)]
    assert status.operators[0].totals.rows_in == status.operators[0].totals.rows_out == 24
    assert status.operators[0].totals.events_up == sum(len(r) for r in coordinator.state.heard.values())


def test_memory(spark: SparkSession, make_job: MakeJob, source: FileStream) -> None:
    coordinator = Dialogue()
    with make_job() as job:
        out = apply(talk(job, coordinator), source.read())
        drain(job, out.writeStream.format("memory"), query="in_memory")
    coordinator.check(range(24))
    assert values(spark.table("in_memory")) == list(range(24))


def test_console(make_job: MakeJob, source: FileStream) -> None:
    coordinator = Dialogue()
    with make_job() as job:
        drain(job, apply(talk(job, coordinator), source.read()).writeStream.format("console"))
    coordinator.check(range(24))


def test_a_sink_that_spark_writes_row_by_row(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    # What a Kafka sink does: a writer in each task, with a connection of its own.
    folder = str(tmp_path)

    class Writer:
        def open(self, partition: int, epoch: int) -> bool:
            self.name = f"{folder}/rows-{partition}-{epoch}"
            self.values: list[int] = []
            return True

        def process(self, row: Any) -> None:
            self.values.append(row.value)

        def close(self, error: Exception | None) -> None:
            Path(self.name).write_text(json.dumps(self.values))

    coordinator = Dialogue()
    with make_job() as job:
        drain(job, apply(talk(job, coordinator), source.read()).writeStream.foreach(Writer()))
    coordinator.check(range(24))
    assert sorted(n for path in tmp_path.glob("rows-*") for n in json.loads(path.read_text())) == list(range(24))


def test_foreach_batch_with_several_actions(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    seen: dict[int, list[int]] = {}

    def write(frame: DataFrame, epoch: int) -> None:
        assert frame.count() == 8
        frame.write.mode("overwrite").parquet(str(tmp_path / f"out-{epoch}"))
        seen[epoch] = values(frame)

    coordinator = Dialogue()
    with make_job() as job:
        drain(job, apply(talk(job, coordinator), source.read()).writeStream.foreachBatch(write))
        totals = job.status().operators[0].totals
    coordinator.check(range(24))
    assert seen == {epoch: [row["value"] for row in rows(epoch)] for epoch in range(3)}
    # Each action ran the operator once more; the last ack counts, and none of them differed.
    assert totals.acks >= 2 * 2 * 3
    assert totals.nondeterministic == 0


def test_a_query_without_an_operator(spark: SparkSession, make_job: MakeJob, source: FileStream) -> None:
    with make_job() as job:
        counts = source.read().groupBy("key").count()
        drain(job, counts.writeStream.format("memory").outputMode("complete"), query="plain")
        (query,) = job.status().queries
        assert (query.name, query.state, query.committed) == ("plain", "finished", 2)
    assert {row["count"] for row in spark.table("plain").collect()} == {3}


def test_below_a_union(make_job: MakeJob, source: FileStream, file_stream: MakeStream) -> None:
    # The other branch comes first, so the operator's partition ids are shifted.
    other = file_stream(SCHEMA)
    other.add([{"key": "other", "value": 1000}])
    coordinator = Dialogue()
    seen: list[int] = []
    with make_job() as job:
        union = other.read().union(apply(talk(job, coordinator), source.read()))
        drain(job, union.writeStream.foreachBatch(lambda frame, epoch: seen.extend(values(frame))))
    coordinator.check(range(24))
    assert sorted(seen) == [*range(24), 1000]


def test_under_coalesce(make_job: MakeJob, source: FileStream) -> None:
    coordinator = Dialogue()
    seen: list[int] = []
    with make_job() as job:
        one_task = apply(talk(job, coordinator, parallelism=3), source.read()).coalesce(1)
        drain(job, one_task.writeStream.foreachBatch(lambda frame, epoch: seen.extend(values(frame))))
    coordinator.check(range(24))
    assert sorted(seen) == list(range(24))
    assert sorted(coordinator.state.heard) == [0, 1, 2]


def test_operators_chained_and_in_the_branches_of_a_union(
    make_job: MakeJob, source: FileStream, file_stream: MakeStream
) -> None:
    other = file_stream(SCHEMA)
    other.add([{"key": f"k{n}", "value": 100 + n} for n in range(8)])
    first, second, branch = Dialogue(), Dialogue(), Dialogue()
    seen: list[int] = []
    with make_job() as job:
        chained = apply(talk(job, second, "second", 3), apply(talk(job, first, "first"), source.read()))
        union = chained.union(apply(talk(job, branch, "branch", 1), other.read()))
        drain(job, union.writeStream.foreachBatch(lambda frame, epoch: seen.extend(values(frame))))
        assert sorted(operator.uid for operator in job.status().operators) == ["branch", "first", "second"]
    first.check(range(24))
    second.check(range(24))
    branch.check(range(100, 108))
    assert sorted(seen) == [*range(24), *range(100, 108)]


def test_one_result_read_twice_in_a_query_counts_once(make_job: MakeJob, source: FileStream) -> None:
    coordinator = Dialogue()
    seen: list[int] = []
    with make_job() as job:
        out = apply(talk(job, coordinator), source.read())
        twice = out.filter("value % 2 = 0").union(out.filter("value % 2 = 1"))
        drain(job, twice.writeStream.foreachBatch(lambda frame, epoch: seen.extend(values(frame))))
    coordinator.check(range(24))
    assert sorted(seen) == list(range(24))


def test_several_queries_in_one_job(make_job: MakeJob, source: FileStream) -> None:
    coordinators = {name: Dialogue() for name in ("one", "two")}
    seen: Counter[str] = Counter()
    with make_job() as job:
        for name, coordinator in coordinators.items():
            out = apply(talk(job, coordinator, f"op-{name}"), source.read())

            def count(frame: DataFrame, epoch: int, name: str = name) -> None:
                seen[name] += frame.count()

            job.start(name, out.writeStream.foreachBatch(count).trigger(availableNow=True))
        job.start("plain", source.read().writeStream.format("noop").trigger(availableNow=True))
        assert job.await_termination(SECONDS)
        assert {query.name: query.committed for query in job.status().queries} == {"one": 2, "two": 2, "plain": 2}
    for coordinator in coordinators.values():
        coordinator.check(range(24))
    assert seen == {"one": 24, "two": 24}


def test_a_processing_time_trigger(make_job: MakeJob, source: FileStream) -> None:
    coordinator = Dialogue()
    with make_job() as job:
        out = apply(talk(job, coordinator), source.read())
        query = job.start("q", out.writeStream.format("noop").trigger(processingTime="100 milliseconds"))
        assert query.isActive
        eventually(lambda: job.status().queries[0].committed == 2)
        source.add(rows(3))
        eventually(lambda: job.status().queries[0].committed == 3)
        assert not job.await_termination(0)
    coordinator.check(range(32))
    assert not query.isActive


def test_rows_without_keys_and_columns_of_the_user(make_job: MakeJob, source: FileStream) -> None:
    # One subtask, an expression as a key, and a schema that differs from the input's.
    seen: list[tuple[int, int]] = []

    def double(subtask: cc.Subtask[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in follow(subtask, batches):
            assert batch.schema.names == ["key", "value"]
            numbers = [2 * value for value in batch.column("value").to_pylist()]
            yield pa.RecordBatch.from_pydict({"double": numbers, "subtask": [subtask.index] * len(numbers)})

    alone, by_value = Dialogue(), Dialogue()
    with make_job() as job:
        one = talk(job, alone, "alone", parallelism=1).apply(source.read(), follow, schema=SCHEMA, partition_by=[])
        operator = talk(job, by_value, "by-value", parallelism=2)
        out = operator.apply(one, double, schema="double LONG, subtask LONG", partition_by=[sf.col("value") % 4, "key"])
        drain(job, out.writeStream.foreachBatch(lambda frame, epoch: seen.extend(map(tuple, frame.collect()))))
    alone.check(range(24))
    by_value.check(range(24))
    assert sorted(number for number, _ in seen) == list(range(0, 48, 2))
    assert {subtask for _, subtask in seen} == {0, 1}


def test_an_existing_checkpoint_is_adopted(make_job: MakeJob, source: FileStream, checkpoint: Path) -> None:
    plain = source.read().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    drain_uncoordinated(plain)
    identity = query_id(checkpoint)
    source.add(rows(3))
    coordinator = Dialogue()
    with make_job() as job:
        out = apply(talk(job, coordinator), source.read())
        drain(job, out.writeStream.format("noop"), checkpoint_location=str(checkpoint))
        assert job.status().queries[0].committed == 3
    coordinator.check(range(24, 32))
    assert query_id(checkpoint) == identity
    assert batch_ids(checkpoint, "commits")[-1] == 3


def test_worker_processes_keep_their_connections(make_job: MakeJob, source: FileStream) -> None:
    coordinator = Dialogue()
    with make_job() as job:
        for epoch in range(3, 6):
            source.add(rows(epoch))
        drain(job, apply(talk(job, coordinator), source.read()).writeStream.format("noop"))
        accepted, acks = job._driver.runtime.endpoint.stats().accepted, job.status().operators[0].totals.acks
    coordinator.check(range(48))
    # Two task slots: Spark may have replaced a worker, but there were far more tasks than connections.
    assert acks >= 10
    assert accepted <= acks // 2


def test_subtasks_connect_with_tls_to_a_port_of_a_range(make_job: MakeJob, source: FileStream) -> None:
    coordinator = Dialogue()
    ports = range(40_100, 40_200)
    with make_job(tls=True, port=ports) as job:
        address = job._driver.runtime.endpoint.address
        assert address.port in ports
        assert address.certificate is not None
        drain(job, write(apply(talk(job, coordinator), source.read())))
    coordinator.check(range(24))
