"""The executor's side: what runs inside ``mapInArrow`` or ``mapInPandas`` around the user's function.

An attempt says hello when it has its first row, gets its state and its inputs, runs the user's function to its end, and
acknowledges with the new state and its outbox. Only then does the task end, so Spark commits nothing that is not
acknowledged. A task without rows says nothing (docs/protocol.md, section 4).

The subtask id travels with the rows in an extra column, computed and partitioned by :meth:`Operator.apply`; it is read
from the first row, checked for all, and dropped before the user's function sees the batch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pydantic import BaseModel
from pyspark import TaskContext

from coord_control import collector
from coord_control.errors import (
    ChannelFull,
    CoordControlError,
    EndpointError,
    OutputInvalid,
    SubtaskMixed,
    UnsupportedOption,
)
from coord_control.ids import AttemptId, Epoch, Generation, OperatorUid, RunId, SubtaskIndex
from coord_control.protocol.messages import Acknowledge, AttemptEnded, Hello, Measurements
from coord_control.protocol.operator import MAX_CHANNEL_BYTES
from coord_control.protocol.records import EventBatch
from coord_control.spark.wire import connection
from coord_control.spark.worker.chunks import Chunks, items_of, wrong_item
from coord_control.spark.worker.model_codec import EventTypes, StateType

__all__ = ["RUN_PROPERTY", "SUBTASK_COLUMN", "Subtask", "TaskPlan", "UserFunction", "task_function"]

#: Last column of the rows that reach the Python worker.
SUBTASK_COLUMN: Final = "__coord_subtask"

#: Spark local property with the run that a task belongs to. A separate property, because users may replace Spark's job
#: group, which holds the run id of the stream, in foreachBatch.
RUN_PROPERTY: Final = "coord_control.run"

# A traceback can be long and ends up in logs and messages; its last part names the error.
_REASON_CHARACTERS: Final = 4_000

State = TypeVar("State", bound=BaseModel)


class Subtask(Generic[State]):
    """One slice of an operator in one epoch, as the user's function sees it.

    Attributes:
        index: ``0 .. parallelism-1``.
        parallelism: how many subtasks the operator has.
        epoch: Spark's batch id.
        state: read and written in place; what it is when the function has ended is saved.
        events: what the coordinator sent, frozen when the epoch began: every attempt sees the same, in order.
    """

    def __init__(
        self, index: int, parallelism: int, epoch: int, state: State, events: list[BaseModel], up: EventTypes
    ) -> None:
        self.index = index
        self.parallelism = parallelism
        self.epoch = epoch
        self.state = state
        self.events = events
        self._up = up
        self._outbox: list[EventBatch] = []
        self._outbox_bytes = 0

    def send(self, event: BaseModel) -> None:
        """Send an event to the coordinator, which sees it once this epoch is committed, exactly once.

        Raises:
            UndeclaredEvent, EventInvalid, EventTooLarge: the event cannot be sent.
            ChannelFull: the events of this epoch are too many.
        """
        batch = self._up.encode(event)
        self._outbox_bytes += len(batch.payload)
        if self._outbox_bytes > MAX_CHANNEL_BYTES:
            raise ChannelFull(self._up.operator, self.index, "up", self._outbox_bytes, MAX_CHANNEL_BYTES)
        self._outbox.append(batch)


#: Over chunks, which are record batches or pandas DataFrames.
UserFunction: TypeAlias = Callable[[Subtask[Any], Iterator[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Everything a task needs; travels in its closure."""

    address: connection.DriverAddress
    generation: Generation
    operator: OperatorUid
    parallelism: int
    state: StateType[Any]
    down: EventTypes
    up: EventTypes
    function: UserFunction | None = None  #: known when the operator is applied, as is the next
    chunks: Chunks | None = None
    wake: bool = False  #: rows whose subtask id is higher by the parallelism only wake the subtask

    def with_function(self, function: UserFunction, chunks: Chunks) -> TaskPlan:
        return replace(self, function=function, chunks=chunks)


def task_function(plan: TaskPlan) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function that is given to ``mapInArrow`` or ``mapInPandas``; its name finds the operator in a plan."""
    function, kind = plan.function, plan.chunks
    assert function is not None, "Operator.apply sets it"
    assert kind is not None, "Operator.apply sets it"

    def run(chunks: Iterator[Any]) -> Iterator[Any]:
        # A Python worker may run several partitions of one task after the other (coalesce): each call is one subtask.
        first = next((chunk for chunk in chunks if kind.rows(chunk)), None)
        if first is not None:
            yield from _run_attempt(plan, function, kind, first, chunks)
            # The second task of this worker finds all of it again. Not the driver's business: workers only.
            collector.forget_imports()

    run.__name__ = operator_function_name(plan.operator)
    return run


def operator_function_name(operator: str) -> str:
    """Return the name under which an operator's function stands in Spark's plan."""
    return f"coord_control:{operator}"


def _run_attempt(
    plan: TaskPlan, function: UserFunction, chunks: Chunks, first: Any, rest: Iterator[Any]
) -> Iterator[Any]:
    rows = _Rows(plan, chunks, first)
    index = rows.subtask
    attempt = _attempt(plan, index)
    driver = connection.shared(plan.address)
    welcome = driver.hello(Hello(attempt))
    try:
        began = time.monotonic()
        state = plan.state.load(index, welcome.state)
        before = plan.state.dump(index, state, before=welcome.state)
        events = plan.down.decode(welcome.inputs)
        subtask = Subtask(index, plan.parallelism, attempt.epoch, state, events, plan.up)
        yield from rows.write(function(subtask, rows.read(first, rest)))
        data = plan.state.dump(index, subtask.state, before=before)
        new_state = None if data == before else data
        measured = Measurements(rows.seen, rows.written, time.monotonic() - began)
        driver.acknowledge(Acknowledge(attempt, new_state, tuple(subtask._outbox), measured))
    except GeneratorExit:
        _tell(driver, AttemptEnded(attempt, "its output was not read to its end"))
        raise
    except EndpointError:
        raise  # the driver knows, or cannot be reached
    except Exception as error:
        fatal = isinstance(error, CoordControlError) and not error.retry
        reason = f"{type(error).__name__}: {error}"[-_REASON_CHARACTERS:]
        _tell(driver, AttemptEnded(attempt, reason, fatal=fatal))
        raise


class _Rows:
    """The rows of one attempt: checked and counted, those that come in without the subtask column."""

    def __init__(self, plan: TaskPlan, chunks: Chunks, first: Any) -> None:
        self._operator = plan.operator
        self._chunks = chunks
        self.subtask = chunks.subtask(first)
        self._waking: int | None = None
        if plan.wake:
            self.subtask %= plan.parallelism
            self._waking = self.subtask + plan.parallelism
        self.seen = 0
        self.written = 0

    def read(self, first: Any, rest: Iterator[Any]) -> Iterator[Any]:
        """Yield what the user's function reads."""
        for chunk in itertools.chain([first], rest):
            if self._chunks.rows(chunk):
                own_rows = self._chunks.own_rows(chunk, self.subtask, self._waking)
                if own_rows is None:
                    raise SubtaskMixed(self._operator, self.subtask)
                if count := self._chunks.rows(own_rows):
                    self.seen += count
                    yield own_rows

    def write(self, result: Any) -> Iterator[Any]:
        """Yield what Spark gets of the function's result.

        Raises:
            OutputInvalid: it is something else than chunks of the schema.
        """
        kind = self._chunks
        for chunk in items_of(self._operator, result, kind.item):
            if not kind.is_chunk(chunk):
                raise wrong_item(self._operator, chunk, kind.item)
            if (misfit := kind.misfit(chunk)) is not None:
                problem = f"the function yielded a {kind.item} with {misfit}"
                raise OutputInvalid(
                    self._operator, problem, "yield the columns and types of the schema, or correct schema="
                )
            self.written += kind.rows(chunk)
            yield chunk


def _attempt(plan: TaskPlan, index: int) -> AttemptId:
    # Measured, spark-facts 1: the stream's thread passes its local properties to every task of a batch.
    context = TaskContext.get()
    assert context is not None, "runs in Spark tasks only"
    epoch = context.getLocalProperty("streaming.sql.batchId")
    if epoch is None:
        raise UnsupportedOption(
            "an action on another thread in foreachBatch",
            "Spark does not tell its tasks which batch they belong to; use pyspark.InheritableThread",
        )
    return AttemptId(
        generation=plan.generation,
        run=RunId(context.getLocalProperty(RUN_PROPERTY) or ""),
        query_id=context.getLocalProperty("sql.streaming.queryId") or "",
        operator=plan.operator,
        subtask=SubtaskIndex(index),
        epoch=Epoch(int(epoch)),
        task_attempt=context.taskAttemptId(),
        stage=context.stageId(),
        attempt_number=context.attemptNumber(),
    )


def _tell(driver: connection.Connection, message: AttemptEnded) -> None:
    # Best effort: when it does not arrive, the lost connection says the same.
    try:
        driver.ended(message)
    except EndpointError:
        driver.close()
