"""The job that is killed around epochs that only events cause: `python -m tests.kill.wake_driver FOLDER`.

Its stream has no rows, ever. Two tokens go round among three subtasks: a subtask reports the tokens that it has got,
and the coordinator passes each on to the next subtask, with the next number of that subtask. So each epoch is caused by
the one before it, and a token that is lost or doubled shows. Every execution of a subtask leaves a file, which outlives
every process. It ends when FOLDER/stop is there, and leaves the coordinator's state in FOLDER/book.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import SparkSession

import coord_control as cc

__all__ = ["SUBTASKS", "TOKENS", "Book"]

SUBTASKS: Final = 3
TOKENS: Final = 2


class Token(BaseModel):
    """Coordinator -> subtask."""

    number: int


class Report(BaseModel):
    """Subtask -> coordinator."""

    sequence: int
    tokens: int  #: that came in this epoch


class Ledger(BaseModel):
    """State of a subtask."""

    numbers: list[int] = []
    reports: int = 0


class Book(BaseModel):
    """State of the coordinator, by subtask."""

    sent: list[int] = [0] * SUBTASKS
    passed_on: list[int] = [0] * SUBTASKS
    reports: list[int] = [0] * SUBTASKS
    trouble: list[str] = []


class Passer(cc.StatefulCoordinator[Book]):
    """Passes tokens on."""

    def __init__(self) -> None:
        super().__init__(Book())

    def start(self) -> None:
        if not any(self.state.sent):
            for subtask in range(TOKENS):
                self._send(subtask)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
        if event.sequence != self.state.reports[subtask]:
            self.state.trouble.append(f"report {event.sequence} of {subtask} instead of {self.state.reports[subtask]}")
        self.state.reports[subtask] += 1
        self.state.passed_on[subtask] += event.tokens
        for _ in range(event.tokens):
            self._send((subtask + 1) % SUBTASKS)

    def _send(self, subtask: int) -> None:
        self.context.send(subtask, Token(number=self.state.sent[subtask]))
        self.state.sent[subtask] += 1


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = spark.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    (folder / "in").mkdir(exist_ok=True)
    seen = folder / "seen"
    seen.mkdir(exist_ok=True)

    def take(subtask: cc.Subtask[Ledger], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [event.number for event in subtask.events if isinstance(event, Token)]
        rows = sum(batch.num_rows for batch in batches)
        found = {"epoch": subtask.epoch, "subtask": subtask.index, "numbers": numbers, "rows": rows}
        path = seen / uuid.uuid4().hex
        path.write_text(json.dumps({**found, "before": subtask.state.numbers}))
        path.rename(path.with_suffix(".json"))
        subtask.state.numbers += numbers
        subtask.send(Report(sequence=subtask.state.reports, tokens=len(numbers)))
        subtask.state.reports += 1
        yield from ()

    passer = Passer()
    with cc.Job("wake", session, root=str(folder / "jobs"), control="none", metrics="none") as job:
        operator = job.operator("op", passer, parallelism=SUBTASKS, state=Ledger, down=[Token], up=[Report], wake=True)
        silent = session.readStream.schema("key STRING").json(str(folder / "in"))
        out = operator.apply(silent, take, schema="key STRING", partition_by=["key"])
        job.start("q", out.writeStream.format("noop"))
        while not (folder / "stop").exists():
            assert not job.await_termination(0), "the query has ended"
            time.sleep(0.05)
    (folder / "book").write_text(passer.state.model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
