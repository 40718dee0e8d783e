"""A sink that has an epoch already skips it when Spark runs it again: its subtasks' results count all the same.

Spark commits an epoch after its sink has written it. A driver that dies in between leaves an epoch that the next
driver's Spark plans to run again, and that Spark's file sink then skips: no task runs, nobody says hello.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from tests.spark.conftest import MakeStream
from tests.spark.streams import FileStream

Sink = Callable[[DataFrame], DataStreamWriter]


class Order(BaseModel):
    number: int


class Report(BaseModel):
    rows: int


class Seen(BaseModel):
    rows: int = 0
    orders: list[int] = []


class Answering(cc.StatefulCoordinator[Report]):
    """Numbers its orders by the rows that were reported to it."""

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
        self.state.rows += event.rows
        self.context.send(subtask, Order(number=self.state.rows))


def _count(subtask: cc.Subtask[Seen], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    subtask.state.orders += [order.number for order in subtask.events if isinstance(order, Order)]
    rows = [value for batch in batches for value in batch.column("value").to_pylist()]
    subtask.state.rows += len(rows)
    subtask.send(Report(rows=len(rows)))
    seen = f"{subtask.state.rows} rows, orders {subtask.state.orders}"
    yield pa.RecordBatch.from_pydict({"value": rows, "seen": [seen] * len(rows)})


def _run(spark: SparkSession, root: Path, stream: FileStream, sink: Sink) -> None:
    with cc.Job("job", spark, root=str(root)) as job:
        operator = job.operator("op", Answering(Report(rows=0)), parallelism=1, state=Seen, down=[Order], up=[Report])
        counted = operator.apply(stream.read(), _count, schema="value long, seen string", partition_by=[])
        job.start("q", sink(counted).trigger(availableNow=True))
        assert job.await_termination(120)


def _undo_last_commit(root: Path) -> None:
    commits = root / "job" / "queries" / "q" / "lineage-000001" / "spark" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["files", "foreachBatch"])
def test_an_epoch_that_its_sink_skips_is_not_forgotten(
    spark: SparkSession, tmp_path: Path, file_stream: MakeStream, kind: str
) -> None:
    output = tmp_path / "out"

    def once(frame: DataFrame, epoch: int) -> None:
        if not (output / f"epoch={epoch}").exists():
            frame.write.parquet(str(output / f"epoch={epoch}"))

    def sink(frame: DataFrame) -> DataStreamWriter:
        if kind == "files":
            return frame.writeStream.format("parquet").option("path", str(output))
        return frame.writeStream.foreachBatch(once)

    stream = file_stream()
    stream.add([{"key": "a", "value": 0}])
    stream.add([{"key": "a", "value": 1}, {"key": "a", "value": 2}])
    _run(spark, tmp_path, stream, sink)
    _undo_last_commit(tmp_path)
    stream.add([{"key": "a", "value": 3}])
    _run(spark, tmp_path, stream, sink)

    seen = {row["value"]: row["seen"] for row in spark.read.parquet(str(output)).collect()}
    assert seen == {
        0: "1 rows, orders []",
        1: "3 rows, orders [1]",
        2: "3 rows, orders [1]",
        3: "4 rows, orders [1, 3]",
    }
