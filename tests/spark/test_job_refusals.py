"""What cannot work is refused with an error of its own that says what to do: when declared, when started, in a task."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pydantic import BaseModel, Field
from pyspark.errors import AnalysisException, ParseException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

import coord_control as cc
from coord_control import errors
from coord_control.spark.worker.model_codec import MAX_EVENT_BYTES, MAX_STATE_BYTES
from tests.spark.conftest import MakeStream
from tests.spark.jobs import (
    SCHEMA,
    Dialogue,
    MakeJob,
    Memory,
    Number,
    Report,
    apply,
    drain,
    follow,
    followed,
    rows,
    talk,
)
from tests.spark.streams import FileStream
from tests.spark.streams import drain as drain_uncoordinated

pytestmark = pytest.mark.spark


class Text(BaseModel):
    text: str = ""


class Count(BaseModel):
    count: int = Field(default=0, ge=0)


class Undeclared(BaseModel):
    pass


class Silent(cc.SnapshotCoordinator):
    """Does nothing."""

    def snapshot(self) -> bytes:
        return b""

    def restore(self, data: bytes | None) -> None:
        pass


class Sender(Silent):
    """Sends one event at its start."""

    def __init__(self, event: BaseModel) -> None:
        self._event = event

    def start(self) -> None:
        self.context.broadcast(self._event)


@pytest.fixture
def source(file_stream: MakeStream) -> FileStream:
    """One epoch of eight rows."""
    stream = file_stream(SCHEMA)
    stream.add(rows(0))
    return stream


def write(frame: DataFrame) -> Any:
    return frame.writeStream.format("noop").trigger(availableNow=True)


def failure(
    job: cc.Job,
    source: FileStream,
    function: Callable[[cc.Subtask[Any], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    *,
    coordinator: cc.OperatorCoordinator | None = None,
    state: type[BaseModel] = Text,
    form: str = "arrow",
) -> errors.QueryFailed:
    """How a query with this function ends; it must fail at once, without a restart."""
    operator = job.operator(
        "op", coordinator or Silent(), parallelism=1, state=state, down=[Text, Count], up=[Text, Count]
    )
    out = apply(operator, source.read(), function, form=form)
    with pytest.raises(errors.QueryFailed) as caught:
        drain(job, write(out))
    assert caught.value.__cause__ is not None
    assert str(caught.value).startswith("query 'q' failed: ")  # not "after n restarts"
    return caught.value


# In a subtask: nothing that Spark or we could try again would help, so the first attempt ends the query.


def grow(subtask: cc.Subtask[Text], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    subtask.state.text = "x" * MAX_STATE_BYTES


def shout(subtask: cc.Subtask[Text], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    subtask.send(Text(text="x" * MAX_EVENT_BYTES))
    yield from batches


def babble(subtask: cc.Subtask[Text], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    subtask.send(Undeclared())
    yield from batches


def lie(subtask: cc.Subtask[Text], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    subtask.send(Count.model_construct(count=-1))
    yield from batches


def spoil(subtask: cc.Subtask[Count], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    subtask.state.count = -1


def swap(subtask: cc.Subtask[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    subtask.state = Text()


# In every run an event and a state, the latter in two forms: what else is refused, unit/spark/test_model_codec.py
# shows. Each of these ends a Python worker, and the next one imports all that it needs again.
@pytest.mark.parametrize(
    ("function", "state", "error", "advice"),
    [
        pytest.param(
            grow,
            Text,
            "StateTooLarge",
            "the limit is 1048576; keep bulk data in Spark's own state",
            id="state-large",
        ),
        pytest.param(
            shout,
            Text,
            "EventTooLarge",
            "an event Text takes 1048587 bytes, the limit is 1048576; send a reference",
            id="event-large",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            babble,
            Text,
            "UndeclaredEvent",
            r"Undeclared is not among .*\['Text', 'Count'\]; add it to up=\[...\]",
            id="undeclared",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lie,
            Text,
            "EventInvalid",
            "not a valid Count: field count: Input should be greater than or equal to 0",
            id="event-invalid",
        ),
        pytest.param(
            spoil,
            Count,
            "StateInvalid",
            "not a valid Count: field count: Input should be greater than or equal to 0",
            id="state-invalid",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            swap,
            Count,
            "StateInvalid",
            "not a valid Count: subtask.state was replaced by a Text",
            id="state-replaced",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_subtask_is_refused_what_it_produces(
    make_job: MakeJob, source: FileStream, function: Any, state: type[BaseModel], error: str, advice: str
) -> None:
    with make_job() as job:
        failed = failure(job, source, function, state=state)
    assert isinstance(failed.__cause__, errors.SubtaskFailed)
    assert failed.__cause__.reason.startswith(error)
    assert re.search(advice, str(failed))


@pytest.mark.parametrize("form", ["pandas", pytest.param("rows", marks=pytest.mark.slow)])
def test_a_subtask_is_refused_the_same_in_every_form(make_job: MakeJob, source: FileStream, form: str) -> None:
    with make_job() as job:
        failed = failure(job, source, grow, form=form)
    assert isinstance(failed.__cause__, errors.SubtaskFailed)
    assert failed.__cause__.reason.startswith("StateTooLarge")


@pytest.mark.parametrize(
    ("event", "error", "advice"),
    ids=["large", "undeclared", "invalid", "wrong-type"],
    argvalues=[
        (Text(text="x" * MAX_EVENT_BYTES), errors.EventTooLarge, "the limit is 1048576; send a reference"),
        (Undeclared(), errors.UndeclaredEvent, r"\['Text', 'Count'\]; add it to down=\[...\] of job.operator"),
        (Count.model_construct(count=-1), errors.EventInvalid, "not a valid Count: field count: Input should be great"),
        (Count.model_construct(count="many"), errors.EventInvalid, "not a valid Count"),
    ],
)
def test_a_coordinator_is_refused_what_it_sends(
    make_job: MakeJob, source: FileStream, event: BaseModel, error: type[Exception], advice: str
) -> None:
    with make_job() as job:
        failed = failure(job, source, follow, coordinator=Sender(event))
    assert isinstance(failed.__cause__, errors.CoordinatorFailed)
    assert isinstance(failed.__cause__.__cause__, error)
    assert re.search(advice, str(failed))
    assert "self.context.broadcast" in str(failed)  # the traceback shows where


# Declarations.


@pytest.mark.parametrize("name", ["", "with space", "-first", "a/b", "x" * 101])
def test_names_that_cannot_be_folders_are_refused(make_job: MakeJob, source: FileStream, name: str) -> None:
    advice = "use 1-100 letters, digits"
    with pytest.raises(errors.InvalidName, match=f"job name .*{advice}"):
        make_job(name)
    with make_job() as job:
        with pytest.raises(errors.InvalidName, match=f"operator name .*{advice}"):
            talk(job, Dialogue(), name)
        with pytest.raises(errors.InvalidName, match=f"query name .*{advice}"):
            job.start(name, write(source.read()))


class NoDefault(BaseModel):
    count: int


class Endless(BaseModel):
    best: float = math.inf


class Broken(BaseModel):
    def model_post_init(self, context: Any) -> None:
        raise RuntimeError("not today")


def test_models_that_cannot_be_used_are_refused(make_job: MakeJob) -> None:
    def declare(state: Any = Memory, **events: Any) -> None:
        job.operator("op", Silent(), parallelism=1, state=state, **events)

    with make_job() as job:
        with pytest.raises(
            errors.InvalidModel, match=r"a new subtask begins with NoDefault\(\): field count: Field req"
        ):
            declare(NoDefault)
        with pytest.raises(
            errors.InvalidModel, match="does not come back from JSON: field best: Input should be a valid"
        ):
            declare(Endless)
        with pytest.raises(errors.InvalidModel, match=r"Broken\(\): RuntimeError: not today"):
            declare(Broken)
        with pytest.raises(errors.InvalidModel, match="operator state is a pydantic model"):
            declare(dict)
        with pytest.raises(errors.InvalidModel, match=r"down event.* events are pydantic models"):
            declare(down=[int])
        with pytest.raises(errors.InvalidModel, match=r"up event.* events are pydantic models"):
            declare(up=[Report(sequence=0, epoch=0, numbers=[], values=[])])
        declare()  # a refused declaration takes no name


def test_an_operator_is_declared_once(make_job: MakeJob) -> None:
    with make_job() as job:
        talk(job, Dialogue())
        with pytest.raises(errors.DuplicateOperator, match=r"operator 'op' already exists .* choose another name"):
            talk(job, Dialogue())
        with pytest.raises(ValueError, match="parallelism is 0, it must be at least 1"):
            talk(job, Dialogue(), "other", parallelism=0)


def test_a_coordinator_serves_one_operator(make_job: MakeJob) -> None:
    coordinator = Dialogue()
    with make_job() as job:
        talk(job, coordinator, "first")
        with pytest.raises(
            errors.DeclarationError, match="'first' and 'second' share a coordinator; make one for each"
        ):
            talk(job, coordinator, "second")


def test_an_operator_is_applied_once_to_a_stream(spark: SparkSession, make_job: MakeJob, source: FileStream) -> None:
    with make_job() as job:
        operator = talk(job, Dialogue())
        with pytest.raises(
            errors.NotStreaming, match=r"batch DataFrame; apply it to a streaming one \(spark.readStream"
        ):
            apply(operator, spark.createDataFrame([("a", 1)], SCHEMA))
        with pytest.raises(ValueError, match="partition_by is needed to spread rows over 2 subtasks"):
            operator.apply(source.read(), follow, schema=SCHEMA, partition_by=[])
        with pytest.raises(errors.PartitioningMissing, match=r"only a shuffle .* or use a live value \(job\.live\)"):
            operator.apply(source.read(), follow, schema=SCHEMA, partition_by=None)  # type: ignore[arg-type]
        with pytest.raises(ParseException):
            operator.apply(source.read(), follow, schema="not a schema,", partition_by=["key"])
        with pytest.raises(TypeError, match="names no columns; write 'name type, name type'"):
            operator.apply(source.read(), follow, schema="int", partition_by=["key"])
        apply(operator, source.read())
        with pytest.raises(
            errors.OperatorReused, match="an operator is one step of one query; declare a second operator"
        ):
            apply(operator, source.read())


def test_an_operator_belongs_to_one_query(make_job: MakeJob, source: FileStream) -> None:
    with make_job() as job:
        out = apply(talk(job, Dialogue()), source.read())
        drain(job, out.writeStream.format("noop"))
        with pytest.raises(
            errors.OperatorReused, match="belongs to query 'q' and cannot also be used in query 'second'"
        ):
            job.start("second", write(out))
        with pytest.raises(errors.DuplicateOperator, match="query 'q' already exists"):
            job.start("q", write(source.read()))
    with make_job("other") as other, pytest.raises(errors.OperatorReused, match="belongs to another job"):
        other.start("q", write(out))


def test_a_result_that_is_started_without_the_job_fails(
    make_job: MakeJob, source: FileStream, checkpoint: Path
) -> None:
    with make_job() as job:
        out = apply(talk(job, Dialogue(), parallelism=1), source.read())
        stray = out.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        with pytest.raises(StreamingQueryException, match=r"belongs to no query that was started with job\.start"):
            drain_uncoordinated(stray)
        drain(job, out.writeStream.format("noop"))
        with pytest.raises(StreamingQueryException, match=r"belongs to query 'q', but Spark runs it in another one"):
            drain_uncoordinated(stray)


def test_an_operator_that_is_not_used_is_named(make_job: MakeJob, source: FileStream) -> None:
    with make_job() as job:
        talk(job, Dialogue())
        job.start("q", write(source.read()))
        with pytest.raises(
            errors.OperatorUnused, match=r"'op' was declared but is part of no started query; call apply"
        ):
            job.await_termination()


def test_a_job_that_has_ended_says_so(make_job: MakeJob, source: FileStream) -> None:
    with make_job() as job:
        out = apply(talk(job, Dialogue()), source.read())
    job.stop()
    for use in (job.status, lambda: talk(job, Dialogue(), "other"), lambda: job.start("q", write(out))):
        with pytest.raises(errors.JobClosed, match="job 'job' has ended; create a new Job to resume it"):
            use()
    assert job.await_termination()


def test_a_job_that_cannot_listen_leaves_nothing_behind(make_job: MakeJob, source: FileStream) -> None:
    with make_job("first") as first:
        taken = first._driver.runtime.endpoint.address.port
        before = set(threading.enumerate())
        with pytest.raises(errors.EndpointNotBound, match=rf"port {taken}.*choose another port.*Job\(port="):
            make_job("second", port=taken)
        assert not {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("coord-")}
        # Its generation was released, so nobody waits for it.
        with make_job("second") as second:
            assert second.generation == 2
            assert second._driver.claim.is_previous_released()


def test_a_start_that_failed_can_be_corrected(make_job: MakeJob, source: FileStream) -> None:
    coordinator = Dialogue()
    with make_job() as job:
        out = apply(talk(job, coordinator), source.read())
        with pytest.raises(AnalysisException):
            job.start("q", out.writeStream.outputMode("complete").format("noop"))
        assert job.status().queries == ()
        drain(job, out.writeStream.format("noop"))
        assert [operator.query for operator in job.status().operators] == ["q"]
    coordinator.check(range(8))


# Declarations that do not fit what has run.


class Renamed(BaseModel):
    number: int


class Renewed(Memory):
    note: str = ""


@pytest.mark.parametrize(
    ("changes", "error", "advice"),
    ids=["parallelism", "uid", "fewer-down", "renamed-down", "new-up-first"],
    argvalues=[
        ({"parallelism": 3}, errors.ParallelismChanged, "run with parallelism 2 and now declares 3.*declare 2 again"),
        ({"uid": "other"}, errors.OperatorsChanged, r"the operators \['op'\] and now declares \['other'\].*keep the"),
        (
            {"down": []},
            errors.EventTypesChanged,
            r"'down' events \['Number'\] and now declares \[\].*keep the recorded",
        ),
        ({"down": [Renamed]}, errors.EventTypesChanged, r"'down' events \['Number'\] and now declares \['Renamed'\]"),
        ({"up": [Text, Report]}, errors.EventTypesChanged, r"'up' events \['Report'\].*add new ones after them"),
    ],
)
def test_a_changed_operator_is_refused_before_anything_starts(
    make_job: MakeJob, source: FileStream, changes: dict[str, Any], error: type[Exception], advice: str
) -> None:
    with make_job() as job:
        drain(job, apply(talk(job, Dialogue()), source.read()).writeStream.format("noop"))
    declaration = {"uid": "op", "parallelism": 2, "state": Memory, "down": [Number], "up": [Report], **changes}
    with make_job() as again:
        out = apply(again.operator(declaration.pop("uid"), Dialogue(), **declaration), source.read())
        with pytest.raises(error, match=advice):
            again.start("q", write(out))


def test_what_may_change_is_accepted(make_job: MakeJob, source: FileStream) -> None:
    with make_job() as job:
        drain(job, apply(talk(job, Dialogue()), source.read()).writeStream.format("noop"))
    source.add(rows(1))
    coordinator = Dialogue()
    with make_job() as again:
        operator = again.operator(
            "op", coordinator, parallelism=2, state=Renewed, down=[Number, Text], up=[Report, Text]
        )
        drain(again, apply(operator, source.read()).writeStream.format("noop"))
    coordinator.check(range(16))
    with make_job() as third, pytest.raises(errors.EventTypesChanged):
        third.start("q", write(apply(talk(third, Dialogue()), source.read())))


def test_a_plain_query_does_not_become_another_one(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    with make_job() as job:
        drain(job, source.read().writeStream.format("noop"))
    with make_job() as again:
        with pytest.raises(errors.OperatorsChanged, match=r"run with the operators none and now declares \['op'\]"):
            again.start("q", write(apply(talk(again, Dialogue()), source.read())))
        with pytest.raises(errors.LineageMismatch, match="leave checkpoint_location out"):
            again.start("q", write(source.read()), checkpoint_location=str(tmp_path / "elsewhere"))


# Output that is not read to its end.


def pour(subtask: cc.Subtask[Memory], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Far more output than the pipe between Python and the JVM holds, so that its writer waits for a reader."""
    yield from batches
    for _ in range(100):
        yield pa.RecordBatch.from_pydict({"key": ["x" * 100] * 1000, "value": list(range(1000))})


def pour_frames(subtask: cc.Subtask[Memory], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames
    for _ in range(100):
        yield pd.DataFrame({"key": ["x" * 100] * 1000, "value": range(1000)})


def pour_rows(subtask: cc.Subtask[Memory], rows: Iterator[Row]) -> Iterator[Row | tuple[str, int]]:
    yield from rows
    for number in range(100_000):
        yield "x" * 100, number


@pytest.mark.parametrize(
    ("look", "function", "form"),
    [
        pytest.param(lambda frame, epoch: frame.take(1), pour, "arrow", id="take"),
        pytest.param(lambda frame, epoch: frame.isEmpty(), pour, "arrow", id="isEmpty"),
        pytest.param(lambda frame, epoch: frame.limit(3).collect(), pour, "arrow", id="limit"),
        pytest.param(lambda frame, epoch: frame.take(1), pour_frames, "pandas", id="take-pandas"),
        pytest.param(lambda frame, epoch: frame.take(1), pour_rows, "rows", id="take-rows", marks=pytest.mark.slow),
    ],
)
def test_output_that_is_not_consumed_fails_the_job(
    make_job: MakeJob, source: FileStream, look: Callable[[DataFrame, int], object], function: Any, form: str
) -> None:
    def look_only(frame: DataFrame, epoch: int) -> None:
        look(frame, epoch)

    source.add(rows(1))
    with make_job() as job:
        operator = talk(job, Dialogue(), parallelism=1)
        out = apply(operator, source.read(), function, form=form)
        with pytest.raises(errors.QueryFailed) as caught:
            drain(job, out.writeStream.foreachBatch(look_only))
    assert isinstance(caught.value.__cause__, errors.OutputNotConsumed)
    assert (caught.value.__cause__.subtasks, caught.value.__cause__.epoch) == ([0], 0)
    assert caught.match(
        "stops early .take, limit, first, isEmpty, show.: consume the whole output, for example cache it"
    )


def test_looking_is_fine_when_the_whole_output_is_read_too(make_job: MakeJob, source: FileStream) -> None:
    def look_and_write(frame: DataFrame, epoch: int) -> None:
        frame.take(1)
        frame.write.format("noop").mode("overwrite").save()

    coordinator = Dialogue()
    with make_job() as job:
        operator = talk(job, coordinator)
        out = operator.apply(source.read(), followed(lambda subtask: None), schema=SCHEMA, partition_by=["key"])
        drain(job, out.writeStream.foreachBatch(look_and_write))
    coordinator.check(range(8))


def test_async_progress_tracking_is_refused(make_job: MakeJob, source: FileStream) -> None:
    with make_job() as job:
        frame = apply(talk(job, Dialogue()), source.read())
        writer = write(frame).option("asyncProgressTrackingEnabled", "true").trigger(processingTime="1 second")
        with pytest.raises(errors.UnsupportedOption, match="it commits epochs after the next one has begun"):
            job.start("q", writer)


def test_a_subtask_that_sends_too_much_in_one_epoch_ends_the_job(make_job: MakeJob, source: FileStream) -> None:
    def flood(subtask: cc.Subtask[Memory], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        report = Report(sequence=0, epoch=0, numbers=list(range(100_000)), values=[])
        for _ in range(100):
            subtask.send(report)

    with make_job() as job, pytest.raises(errors.QueryFailed, match=r"ChannelFull: .* send summaries") as caught:
        drain(job, write(apply(talk(job, Dialogue()), source.read(), flood)))
    assert isinstance(caught.value.__cause__, errors.SubtaskFailed)
