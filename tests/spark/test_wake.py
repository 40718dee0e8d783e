"""Epochs for events that wait on a silent stream, on real Spark: they come, they end, and a silent stream runs nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pydantic import BaseModel
from pyspark.sql import SparkSession

import coord_control as cc
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, write
from tests.spark.streams import FileStream, batch_ids

pytestmark = pytest.mark.spark

SCHEMA: Final = "key STRING, value LONG, ratio DOUBLE, tags ARRAY<STRING>"
OUT: Final = "subtask LONG, epoch LONG, numbers STRING, rows LONG, kinds STRING"
SUBTASKS: Final = 4


class Number(BaseModel):
    number: int


class Taken(BaseModel):
    numbers: list[int] = []
    epochs: list[int] = []


class Report(BaseModel):
    subtask: int
    taken: Taken
    rows: int


class Book(BaseModel):
    reports: list[Report] = []


class Teller(cc.StatefulCoordinator[Book]):
    """Sends what it is told to; keeps what subtasks report."""

    def __init__(self) -> None:
        super().__init__(Book())
        self.changed = threading.Condition()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
        with self.changed:
            self.state.reports.append(event)
            self.changed.notify_all()

    def wait(self, count: int) -> list[Report]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.state.reports) >= count, SECONDS), self.state
            return list(self.state.reports)

    def reported(self) -> dict[int, list[int]]:
        """What each subtask had taken when it reported last."""
        return {report.subtask: report.taken.numbers for report in self.state.reports}


def take(subtask: cc.Subtask[Taken], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    subtask.state.numbers += [event.number for event in subtask.events]
    subtask.state.epochs.append(subtask.epoch)
    rows, kinds = 0, set()
    for batch in batches:
        assert batch.num_rows
        assert None not in batch["key"].to_pylist()
        rows += batch.num_rows
        kinds.add(",".join(map(str, batch.schema.types)))
    subtask.send(Report(subtask=subtask.index, taken=subtask.state, rows=rows))
    row = [subtask.index], [subtask.epoch], [json.dumps(subtask.state.numbers)], [rows], [";".join(sorted(kinds))]
    yield pa.RecordBatch.from_arrays(list(row), ["subtask", "epoch", "numbers", "rows", "kinds"])


def declare(job: cc.Job, teller: Teller, *, parallelism: int = SUBTASKS, wake: bool = True, **more: Any) -> cc.Operator:
    return job.operator(
        "op", teller, parallelism=parallelism, state=Taken, down=[Number], up=[Report], wake=wake, **more
    )


def applied(operator: cc.Operator, stream: FileStream) -> Any:
    return write(operator.apply(stream.read(), take, schema=OUT, partition_by=["key"]))


def lineage(tmp_path: Path, name: str = "lineage-000001", job: str = "job") -> Path:
    return tmp_path / "jobs" / job / "queries" / "q" / name / "spark"


def woken(checkpoint: Path) -> dict[int, list[int]]:
    """Which subtasks each epoch has woken for the first time, from Spark's offsets."""
    found: dict[int, list[int]] = {}
    before = 0
    for epoch in batch_ids(checkpoint, "offsets"):
        for line in (checkpoint / "offsets" / str(epoch)).read_text().splitlines():
            if line.startswith('{"wake":') and (offset := json.loads(line))["number"] > before:
                before, found[epoch] = offset["number"], offset["subtasks"]
    return found


@pytest.fixture
def stream(file_stream: MakeStream, own_session: SparkSession) -> FileStream:
    return file_stream(SCHEMA, session=own_session)


@pytest.fixture
def teller() -> Teller:
    return Teller()


def row(key: str, value: int = 1) -> dict[str, Any]:
    return {"key": key, "value": value, "ratio": 0.5, "tags": ["a"]}


def settle(job: cc.Job, checkpoint: Path, triggers: int = 5) -> list[int]:
    """Wait until Spark has looked for something to do a few times, and return the epochs by then."""
    query = job._driver.queries.all()[0].spark_query
    for _ in range(triggers):
        seen = query.status["isTriggerActive"]
        eventually(lambda seen=seen: query.status["isTriggerActive"] != seen or not query.isActive)
    return batch_ids(checkpoint, "commits")


def test_an_event_gets_an_epoch_on_a_silent_stream_and_then_it_is_silent_again(
    make_job: MakeJob, own_session: SparkSession, stream: FileStream, teller: Teller, tmp_path: Path
) -> None:
    job, checkpoint = make_job(session=own_session), lineage(tmp_path)
    job.start("q", applied(declare(job, teller), stream))
    assert settle(job, checkpoint) == []
    teller.context.send(2, Number(number=1))
    (report,) = teller.wait(1)
    assert (report.subtask, report.rows, report.taken) == (2, 0, Taken(numbers=[1], epochs=[0]))
    teller.context.broadcast(Number(number=2))
    assert {report.subtask for report in teller.wait(5)[1:]} == {0, 1, 2, 3}
    assert settle(job, checkpoint) == [0, 1]
    assert woken(checkpoint) == {0: [2], 1: [0, 1, 2, 3]}
    stream.add([row("a", 5), row("b", 6)])
    reports = teller.wait(6)
    eventually(lambda: sum(report.rows for report in teller.state.reports) == 2)
    assert settle(job, checkpoint) == [0, 1, 2]
    assert all(numbers == ([1, 2] if subtask == 2 else [2]) for subtask, numbers in teller.reported().items())
    assert reports[-1].taken.epochs[-1] == 2
    assert woken(checkpoint) == {0: [2], 1: [0, 1, 2, 3]}
    totals = job.status().operators[0]
    assert totals.rows_in == 2, "rows that wake are not the user's"
