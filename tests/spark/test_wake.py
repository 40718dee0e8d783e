"""Epochs for events that wait on a silent stream, on real Spark: each event gets one, and otherwise nothing runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import coord_control as cc
from coord_control import errors
from coord_control.ids import OperatorUid
from coord_control.protocol.query_state import Wish
from coord_control.spark.compiled_java import compiled
from coord_control.spark.job.agent_port import AgentPort
from coord_control.spark.wake import wake_source
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, Once, Trouble, write
from tests.spark.streams import FileStream, batch_ids

pytestmark = pytest.mark.spark

SCHEMA: Final = "key STRING, value LONG, ratio DOUBLE, tags ARRAY<STRING>"
OUT: Final = "subtask LONG, epoch LONG, numbers STRING, rows LONG, kinds STRING"
OP: Final = OperatorUid("op")
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


def numbers(subtask: cc.Subtask[Taken]) -> list[int]:
    return [event.number for event in subtask.events if isinstance(event, Number)]


def take(subtask: cc.Subtask[Taken], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    subtask.state.numbers += numbers(subtask)
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


def settle(job: cc.Job, checkpoint: Path, triggers: int = 3) -> list[int]:
    """Wait until Spark has looked for something to do a few times, and return the epochs by then."""
    query = job._driver.queries.all()[0].spark_query
    for is_active in (False, True) * triggers:
        eventually(partial(_is_trigger, query, is_active))
    return batch_ids(checkpoint, "commits")


def _is_trigger(query: StreamingQuery, is_active: bool) -> bool:
    return bool(query.status["isTriggerActive"]) == is_active


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
    totals = job._driver.runtime.read(lambda core, now: core.totals()[OP], SECONDS)
    assert totals.rows_in == 2, "rows that wake are not the user's"


class Quiet(Teller):
    """Keeps what it is told, and sends nothing."""

    def handle_control_event(self, event: Number, subtask: int | None) -> None:
        self.state.reports.append(Report(subtask=0, taken=Taken(numbers=[event.number]), rows=0))


def test_a_control_event_that_is_sent_to_nobody_becomes_durable_on_a_silent_stream(
    make_job: MakeJob, own_session: SparkSession, stream: FileStream, tmp_path: Path
) -> None:
    """Bug: it waited for rows, and so did whoever waited for it."""
    job, checkpoint = make_job(session=own_session), lineage(tmp_path)
    job.start("q", applied(declare(job, Quiet()), stream))
    settle(job, checkpoint)
    port = job._port
    for number in (1, 2):
        assert port.feed(number, port.check_event(OP, "Number", {"number": number}, None))
        eventually(partial(_is_durable, port, number))
    found = settle(job, checkpoint)
    assert woken(checkpoint) == {epoch: [0] for epoch in found}
    assert found == [0, 1]


def _is_durable(port: AgentPort, number: int) -> bool:
    return port.feed_status(OP).durable == number


def hold(job: cc.Job, frame: Any, meanwhile: Any, **options: Any) -> None:
    """Start a query whose epoch 0 does not end before ``meanwhile()``, which runs when its output is complete."""

    def sink(batch: Any, epoch: int) -> None:
        batch.collect()
        if epoch == 0:
            meanwhile()

    job.start("q", frame.writeStream.foreachBatch(sink), **options)


def in_pandas(subtask: cc.Subtask[Taken], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    rows = list(frames)
    subtask.state.numbers += numbers(subtask)
    kinds = [" ".join(map(str, frame.dtypes)) for frame in rows]
    subtask.send(Report(subtask=subtask.index, taken=subtask.state, rows=sum(map(len, rows))))
    yield pd.DataFrame({"kinds": kinds})


def in_rows(subtask: cc.Subtask[Taken], rows: Iterator[Row]) -> Iterator[dict[str, Any]]:
    found = [f"{row.key} {row.value} {row.ratio} {row.tags}" for row in rows]
    subtask.state.numbers += numbers(subtask)
    subtask.send(Report(subtask=subtask.index, taken=subtask.state, rows=len(found)))
    for text in found:
        yield {"kinds": text}


@pytest.mark.parametrize("form", ["apply", "apply_in_pandas", "apply_rows"])
def test_rows_that_wake_leave_no_trace_in_those_of_the_same_epoch(
    make_job: MakeJob, own_session: SparkSession, stream: FileStream, teller: Teller, form: str, tmp_path: Path
) -> None:
    job, seen = make_job(session=own_session), dict[int, list[str]]()
    operator = declare(job, teller, parallelism=1)
    function, schema = {
        "apply": (take, OUT),
        "apply_in_pandas": (in_pandas, "kinds STRING"),
        "apply_rows": (in_rows, "kinds STRING"),
    }[form]
    frame = getattr(operator, form)(stream.read(own_session), function, schema=schema, partition_by=[])

    def sink(batch: Any, epoch: int) -> None:
        seen[epoch] = [row.kinds for row in batch.collect()]
        if epoch == 0:  # so epoch 1 wakes the subtask, and has a row for it
            teller.context.send(0, Number(number=1))
            stream.add([row("b")])

    stream.add([row("a")])
    job.start("q", frame.writeStream.foreachBatch(sink))
    reports = teller.wait(2)
    assert [(report.rows, report.taken.numbers) for report in reports] == [(1, []), (1, [1])]
    assert woken(lineage(tmp_path)) == {1: [0]}
    assert [text.replace("b ", "a ") for text in seen[1]] == seen[0]


def test_a_woken_epoch_that_is_run_again_wakes_the_same_subtasks_with_the_same_events(
    make_job: MakeJob, own_session: SparkSession, stream: FileStream, teller: Teller, once: Once, tmp_path: Path
) -> None:
    def fail_once(subtask: cc.Subtask[Taken], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from take(subtask, batches)
        if once():
            raise Trouble

    job = make_job(session=own_session)
    frame = declare(job, teller).apply(stream.read(), fail_once, schema=OUT, partition_by=["key"])
    job.start("q", write(frame))
    settle(job, lineage(tmp_path))
    teller.context.broadcast(Number(number=7))
    teller.wait(SUBTASKS)
    assert settle(job, lineage(tmp_path)) == [0]
    assert once.was_asked
    assert woken(lineage(tmp_path)) == {0: [0, 1, 2, 3]}
    assert [report.taken for report in teller.state.reports] == [Taken(numbers=[7], epochs=[0])] * SUBTASKS


def test_a_savepoint_holds_what_waits_and_the_restored_job_and_a_fork_wake_for_it(
    make_job: MakeJob, own_session: SparkSession, stream: FileStream, teller: Teller, tmp_path: Path
) -> None:
    job, saved = make_job(session=own_session), list[Any]()
    stopping = threading.Thread(target=lambda: saved.append(job.stop_with_savepoint(label="stopped")))

    def stop() -> None:
        teller.context.broadcast(Number(number=3))  # behind the epoch, so it waits for the next one
        stopping.start()
        query: Any = job._driver.queries.all()[0]
        eventually(lambda: query._wish is Wish.PAUSE)
        # The stop holds the lock at which the stream will find out; before that the stream may begin one epoch more.
        eventually(query._query._jsq.streamingQuery().awaitProgressLock().isLocked)

    stream.add([row("a")])
    hold(job, declare(job, teller).apply(stream.read(), take, schema=OUT, partition_by=["key"]), stop)
    teller.wait(1)
    stopping.join(SECONDS)
    (completed,) = saved
    assert batch_ids(lineage(tmp_path), "offsets") == [0], "nothing was woken behind the boundary"
    assert woken(lineage(tmp_path)) == {}

    for name in ("job", "fork"):
        other = Teller()
        again = make_job(name, session=own_session, restore_from=completed.path)
        writer = applied(declare(again, other), stream)
        again.start("q", writer.trigger(availableNow=True) if name == "fork" else writer)
        other.wait(SUBTASKS + 1)
        assert other.reported() == {subtask: [3] for subtask in range(SUBTASKS)}
        where = lineage(tmp_path, "lineage-000001" if name == "fork" else "lineage-000002", name)
        if name == "fork":
            assert again.await_termination(SECONDS), "a run over what is available ends"
        else:
            settle(again, where)
            path = again.trigger_savepoint(label="again").wait(SECONDS).path
        assert woken(where) == {1: list(range(SUBTASKS))}
        again.stop()

    # The declaration is part of what was saved.
    plain = make_job("job", session=own_session)
    with pytest.raises(errors.WakeChanged, match="declare wake=True, or"):
        plain.start("q", applied(declare(plain, Teller(), wake=False), stream))
    plain.stop()
    plain = make_job("job", session=own_session, restore_from=path)
    with pytest.raises(errors.RestoreRefused, match="wake=True"):
        plain.start("q", applied(declare(plain, Teller(), wake=False), stream))
    plain.stop()


def test_a_query_that_has_run_without_waking_says_what_a_change_takes(
    make_job: MakeJob, own_session: SparkSession, stream: FileStream
) -> None:
    stream.add([row("a")])
    job, teller = make_job(session=own_session), Teller()
    job.start("q", applied(declare(job, teller, wake=False), stream))
    teller.wait(1)
    job.stop()
    again = make_job(session=own_session)
    with pytest.raises(errors.WakeChanged, match="declare wake=False, or start the operator under another uid"):
        again.start("q", applied(declare(again, Teller()), stream))


def test_an_offset_belongs_to_an_operator_and_wakes_only_subtasks_that_exist(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    loader = compiled(spark, wake_source._SOURCE, wake_source._prepare)
    [constructor] = loader.loadClass("coordcontrol.wake.WakeSource$Stream").getDeclaredConstructors()
    constructor.setAccessible(True)
    arguments = gateway.new_array(jvm.java.lang.Object, 3)
    arguments[0], arguments[1], arguments[2] = "op", "key", 2
    source = constructor.newInstance(arguments)
    text = '{"wake":1,"operator":"op","number":3,"subtasks":[0,1,3]}'
    offset = source.deserializeOffset(text)
    assert offset.json() == text
    [partition] = source.planInputPartitions(source.initialOffset(), offset)
    assert [row.getInt(0) for row in partition.records()] == [2, 3], "a restore has left two of four subtasks"
    gone = source.deserializeOffset(text.replace("0,1,3", "3"))
    assert list(source.planInputPartitions(offset, gone)) == []
    for other in (text.replace('"op"', '"other"'), '{"logOffset":3}'):
        with pytest.raises(Py4JJavaError, match="the sources of this query have changed"):
            source.deserializeOffset(other)
