"""A dialogue of numbered events for tests of whole jobs: what was sent, seen, lost or doubled can be read from its end.

The coordinator sends the numbers 0, 1, 2, ... to every subtask, the next one when it hears of it; a subtask reports
each of its epochs, numbered, with everything its state has seen so far. `Dialogue.check` then compares both ends.

The functions run in Spark's Python workers, which import this module from the checkout.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from coord_control.protocol.status import QueryStatus
from tests.patience import SECONDS

__all__ = [
    "FORMS",
    "QUICK",
    "SCHEMA",
    "Book",
    "Dialogue",
    "MakeJob",
    "Memory",
    "Number",
    "Once",
    "Report",
    "Trouble",
    "apply",
    "drain",
    "follow",
    "followed",
    "query_status",
    "rows",
    "talk",
    "values_of",
    "write",
]

#: How an operator can be applied; "arrow" is Operator.apply.
FORMS: Final = ("arrow", "pandas", "rows")

SCHEMA: Final = "key STRING, value LONG"

#: Quick restarts, and few of them.
QUICK: Final = cc.RestartPolicy(initial_seconds=0.01, maximum_seconds=0.02, max_restarts=3)


class MakeJob(Protocol):
    """Makes a job below the test's own folder; what a test leaves running is stopped after it."""

    def __call__(self, name: str = ..., **options: Any) -> cc.Job: ...


class Trouble(Exception):
    """What a test raises on purpose."""


class Number(BaseModel):
    """Coordinator -> subtask."""

    number: int


class Report(BaseModel):
    """Subtask -> coordinator, once per epoch with rows: everything that its state holds."""

    sequence: int
    epoch: int
    numbers: list[int]
    values: list[int]


class Memory(BaseModel):
    """State of a subtask."""

    reports: int = 0
    numbers: list[int] = []
    values: list[int] = []


class Book(BaseModel):
    """State of the coordinator: per subtask what was sent and heard."""

    sent: dict[int, int] = {}
    heard: dict[int, list[Report]] = {}


class Dialogue(cc.StatefulCoordinator[Book]):
    """The coordinator's end of the dialogue."""

    def __init__(self) -> None:
        super().__init__(Book())
        self._begun = False

    def start(self) -> None:
        if not self._begun:
            self._begin()

    def restore(self, data: bytes | None) -> None:
        super().restore(data)
        self._begun = True
        if data is None:
            self._begin()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
        self.state.heard.setdefault(subtask, []).append(event)
        self._send(subtask)

    def _begin(self) -> None:
        self._begun = True
        for subtask in range(self.context.parallelism):
            self._send(subtask)

    def _send(self, subtask: int) -> None:
        number = self.state.sent.get(subtask, 0)
        self.context.send(subtask, Number(number=number))
        self.state.sent[subtask] = number + 1

    def check(self, values: Iterable[int], *, prompt: bool = True) -> None:
        """Compare both ends once the job has ended.

        Args:
            values: of all rows that the operator must have seen, each once.
            prompt: every number must have been seen in the first epoch that could; otherwise in that one or later.
        """
        seen: list[int] = []
        for subtask, reports in self.state.heard.items():
            assert [report.sequence for report in reports] == list(range(len(reports)))
            epochs = [report.epoch for report in reports]
            assert epochs == sorted(set(epochs))
            # The first number is seen in the first epoch; each further one answers a report, and is seen in the next.
            counts = [len(report.numbers) for report in reports]
            assert [report.numbers for report in reports] == [list(range(count)) for count in counts]
            assert counts == sorted(counts)
            assert all(count <= n + 1 for n, count in enumerate(counts))
            assert not prompt or counts == list(range(1, len(reports) + 1))
            assert self.state.sent[subtask] == len(reports) + 1
            seen += reports[-1].values
        assert sorted(seen) == sorted(values)


class Once:
    """True the first time that it is asked, in whatever process; False ever after."""

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)

    def __call__(self) -> bool:
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    @property
    def was_asked(self) -> bool:
        return Path(self._path).exists()


def follow(subtask: cc.Subtask[Memory], rows: Iterator[Any]) -> Iterator[Any]:
    """The subtask's end of the dialogue, in any form; passes the rows through."""
    state = subtask.state
    state.numbers += [event.number for event in subtask.events if isinstance(event, Number)]
    for some in rows:
        state.values += values_of(some)
        yield some
    report = Report(sequence=state.reports, epoch=subtask.epoch, numbers=state.numbers, values=state.values)
    subtask.send(report)
    state.reports += 1


def values_of(some: Any) -> list[int]:
    """The values in a record batch, a pandas DataFrame or a row."""
    if isinstance(some, pa.RecordBatch):
        return list(some.column("value").to_pylist())
    return [some.value] if isinstance(some, Row) else list(some["value"].tolist())


def followed(
    before: Callable[[cc.Subtask[Memory]], object],
) -> Callable[[cc.Subtask[Memory], Iterator[Any]], Iterator[Any]]:
    """`follow`, and after its rows, before it ends: `before(subtask)`, which may raise."""

    def run(subtask: cc.Subtask[Memory], rows: Iterator[Any]) -> Iterator[Any]:
        yield from follow(subtask, rows)
        before(subtask)

    return run


def talk(job: cc.Job, coordinator: cc.OperatorCoordinator, uid: str = "op", parallelism: int = 2) -> cc.Operator:
    """Declare an operator that holds the dialogue."""
    return job.operator(uid, coordinator, parallelism=parallelism, state=Memory, down=[Number], up=[Report])


def apply(
    operator: cc.Operator, frame: DataFrame, function: Any = follow, *, form: str = "arrow", schema: str = SCHEMA
) -> DataFrame:
    """Put an operator on rows of :data:`SCHEMA`, in one of :data:`FORMS`."""
    forms = {"arrow": operator.apply, "pandas": operator.apply_in_pandas, "rows": operator.apply_rows}
    return forms[form](frame, function, schema=schema, partition_by=["key"])


def write(frame: DataFrame) -> DataStreamWriter:
    """A writer whose sink takes everything and keeps nothing."""
    return frame.writeStream.format("noop")


def query_status(job: cc.Job) -> QueryStatus:
    """The job's first query, now."""
    return job.status().queries[0]


def rows(epoch: int, count: int = 8) -> list[Mapping[str, Any]]:
    """The rows of one epoch, numbered through over all epochs, with enough keys for every subtask."""
    return [{"key": f"k{n % 8}", "value": epoch * count + n} for n in range(count)]


def drain(job: cc.Job, writer: DataStreamWriter, query: str = "q", **options: Any) -> None:
    """Run a query over all that is there and wait for its end."""
    job.start(query, writer.trigger(availableNow=True), **options)
    assert job.await_termination(SECONDS), "the query did not end in time; see its status"
