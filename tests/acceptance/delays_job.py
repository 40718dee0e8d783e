"""The job that a person, or Dagster, looks after: ``python delays_job.py FOLDER [SECONDS]``, an epoch every so often.

Its query has an operator of four subtasks. The coordinator sends them something all the time, so a gateway that is
closed holds events back. From outside they are sent thresholds, which are in force from the next epoch on. While the
file FOLDER/hold exists, the last subtask does not end its epoch, and a checkpoint is under way for as long as the test
wants to look at it; FOLDER/held says that it has come to that. While FOLDER/wait exists, the job does not start.

Threads: the coordinator's, and one that wakes it; the subtasks are Spark's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import coord_control as cc

JOB: Final = "flights"
QUERY: Final = "alerts"
OPERATOR: Final = "delay-threshold"
SUBTASKS: Final = 4

#: In the job's folder: asks the last subtask to wait, and says that it does.
HOLD: Final = "hold"
HELD: Final = "held"
#: In the job's folder: asks the next driver to wait before it starts the job.
WAIT: Final = "wait"

_TICK_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.05


class Threshold(BaseModel):
    """Coordinator -> subtask, and from outside: minutes of delay from which on a flight is late."""

    minutes: float


class Tick(BaseModel):
    """Coordinator -> subtask, all the time."""

    number: int


class Late(BaseModel):
    """Subtask -> coordinator, once per epoch."""

    flights: int


class Seen(BaseModel):
    """State of a subtask."""

    minutes: float = 30.0
    ticks: int = 0


class Plan(BaseModel):
    """State of the coordinator."""

    ticks: int = 0
    late: int = 0


class Dispatcher(cc.StatefulCoordinator[Plan]):
    """Talks to its subtasks all the time."""

    def __init__(self) -> None:
        super().__init__(Plan())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._wake, name="dispatcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Late) -> None:
        self.state.late += event.flights

    def _wake(self) -> None:
        while not self._closed.wait(_TICK_SECONDS):
            self.context.call_soon(self._tick)

    def _tick(self) -> None:
        self.state.ticks += 1
        self.context.broadcast(Tick(number=self.state.ticks))


@dataclass(frozen=True)
class Clerk:
    """The function of the subtasks; travels to the executors."""

    folder: Path

    def late(self, subtask: cc.Subtask[Seen], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The flights that are later than the threshold."""
        for event in subtask.events:
            if isinstance(event, Threshold):
                subtask.state.minutes = event.minutes
            else:
                subtask.state.ticks += 1
        found = 0
        for batch in batches:
            flights = batch.filter(pc.greater(batch["delay"], subtask.state.minutes))
            found += flights.num_rows
            yield flights
        if subtask.index == SUBTASKS - 1:
            self._wait()
        subtask.send(Late(flights=found))

    def _wait(self) -> None:
        while (self.folder / HOLD).exists():
            (self.folder / HELD).touch()
            time.sleep(_LOOK_SECONDS)


def main(folder: Path, seconds: float = 0.0) -> None:
    """Run until it is stopped."""
    while (folder / WAIT).exists():
        time.sleep(_LOOK_SECONDS)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    flights = rows.select((F.col("value") % 16).alias("carrier"), (F.col("value") * 7 % 120).alias("delay"))
    with cc.Job(JOB, spark, root=str(folder / "jobs")) as job:
        operator = job.operator(
            OPERATOR, Dispatcher(), parallelism=SUBTASKS, state=Seen, down=[Threshold, Tick], up=[Late]
        )
        alerts = operator.apply(
            flights, Clerk(folder).late, schema="carrier LONG, delay LONG", partition_by=["carrier"]
        )
        job.start(QUERY, alerts.writeStream.format("noop").trigger(processingTime=f"{seconds} seconds"))
        job.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
