"""How soon an operator answers: a real driver with its real agent, and a client in another process.

The stream runs an epoch each second meanwhile. *In a row* are questions with random pauses of less than a second;
*after silence* each comes six to seven seconds after the one before, when the driver looks least often for commands on
SQLite, and at no fixed moment of an epoch;
*states* is a page of 20 committed states.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import SparkSession

import coord_control as cc
from benchmarks.report import Goal, at_most, main, median
from benchmarks.session import session
from tests.storage.server import Server

_JOB: Final = "ask"
_OPERATOR: Final = "limits"
_SUBTASKS: Final = 4
_IN_A_ROW: Final = 60
_AFTER_SILENCE: Final = 20
_SILENCE_SECONDS: Final = (6.0, 7.0)
_POSTGRESQL_MS: Final = 20.0
_SQLITE_MS: Final = 100.0


class Limits(BaseModel):
    minutes: float = 30.0


class Current(cc.Request[Limits]):
    pass


class Coordinator(cc.StatefulCoordinator[Limits]):
    def handle_request(self, request: Current) -> Limits:
        return self.state


def ask(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """The time from ``client.ask`` to its answer, on SQLite and on PostgreSQL."""
    numbers: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="coord-bench-") as name,
        _server(Path(name)) as postgresql,
        session() as spark,
    ):
        for dialect, url in {"sqlite": f"sqlite:///{name}/control.db", "postgresql": postgresql}.items():
            with _job(spark, Path(name) / dialect, url):
                numbers |= {f"{dialect}_{part}_ms": found for part, found in _measured(url, quick=quick).items()}
    goals = [
        at_most(f"{title}, {part.replace('_', ' ')}, median", median(numbers[f"{dialect}_{part}_ms"]), promised, "ms")
        for dialect, title, promised in (("postgresql", "PostgreSQL", _POSTGRESQL_MS), ("sqlite", "SQLite", _SQLITE_MS))
        for part in ("in_a_row", "after_silence", "states")
    ]
    return goals, numbers


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    server = Server(folder)
    server.start()
    try:
        yield server.url("postgres")
    finally:
        server.stop()


@contextlib.contextmanager
def _job(spark: SparkSession, folder: Path, url: str) -> Iterator[None]:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()

    def passed_on(subtask: cc.Subtask[Limits], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    with cc.Job(_JOB, spark, root=str(folder / "jobs"), control=url, metrics="none") as job:
        coordinator = Coordinator(Limits())
        operator = job.operator(
            _OPERATOR, coordinator, parallelism=_SUBTASKS, state=Limits, down=[Limits], requests=[Current]
        )
        out = operator.apply(rows, passed_on, schema="timestamp timestamp, value long", partition_by=["value"])
        writer = out.writeStream.format("noop").trigger(processingTime="1 second")
        job.start("rows", writer)
        job.await_termination(2.0)  # all is declared: the agent takes commands
        yield


def _measured(url: str, *, quick: bool) -> dict[str, list[float]]:
    """Let a client ask, in a separate process."""
    command = [sys.executable, "-m", "benchmarks.ask", "--client", url, *(["--quick"] if quick else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def _client(url: str, *, quick: bool) -> None:
    in_a_row, after_silence = (3, 1) if quick else (_IN_A_ROW, _AFTER_SILENCE)
    with cc.ControlClient(url) as client:
        wanted = cc.CommittedStates()
        client.ask(_JOB, _OPERATOR, Current(), timeout=60.0)  # connects, and waits for the first epoch
        found = {
            "in_a_row": [_one(client, Current(), random.uniform(0.05, 0.9)) for _ in range(in_a_row)],
            "after_silence": [_one(client, Current(), random.uniform(*_SILENCE_SECONDS)) for _ in range(after_silence)],
            "states": [_one(client, wanted, random.uniform(0.05, 0.9)) for _ in range(in_a_row)],
        }
    print(json.dumps(found))


def _one(client: cc.ControlClient, request: cc.Request[Any], pause: float) -> float:
    time.sleep(pause)
    began = time.perf_counter()
    client.ask(_JOB, _OPERATOR, request, timeout=60.0)
    return round((time.perf_counter() - began) * 1000, 1)


def _main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--client"]:
        _client(arguments[1], quick="--quick" in arguments)
        return 0
    return main("ask", ask)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
