"""The cost of reading a long history: listings and percentiles, with a million checkpoints, on both databases."""

from __future__ import annotations

import itertools
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, text

from benchmarks.report import Goal, at_most, main, median
from coord_control.storage import tables
from coord_control.storage.database import Database
from coord_control.storage.records import CheckpointKind, CheckpointState, JobRegistration
from coord_control.storage.store import ControlStore
from tests.storage.server import Server

__all__ = ["benchmark", "fresh_database"]

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_BATCH = 10_000
_ON_STORAGE = 20  #: completed ones that are not discarded yet
_REPEATS = 7
_GOAL_SECONDS = 0.05

_STATISTICS = {
    "metadata_bytes": 4000,
    "channel_bytes": 0,
    "linked_bytes": 10**6,
    "copied_bytes": 10**6,
    "subtasks": 8,
    "passed_subtasks": 8,
}

_Read = Callable[[ControlStore, str], object]

_READS: dict[str, _Read] = {
    "newest": lambda store, job: store.checkpoints.list(job),
    "middle page": lambda store, job: store.checkpoints.list(job, before_id=_middle(store, job)),
    "failed": lambda store, job: store.checkpoints.list(job, state=CheckpointState.FAILED),
    "completed": lambda store, job: store.checkpoints.list(job, state=CheckpointState.COMPLETED),
    "savepoints": lambda store, job: store.checkpoints.list(job, kind=CheckpointKind.SAVEPOINT),
    "failed savepoints": lambda store, job: store.checkpoints.list(
        job, kind=CheckpointKind.SAVEPOINT, state=CheckpointState.FAILED
    ),
    "one": lambda store, job: store.checkpoints.get(job, _middle(store, job)),
    "latest": lambda store, job: store.checkpoints.latest(job),
    "summary": lambda store, job: store.checkpoints.summary(job),
    "summary of savepoints": lambda store, job: store.checkpoints.summary(job, kind=CheckpointKind.SAVEPOINT),
    "job": lambda store, job: store.jobs.get(job),
    "jobs": lambda store, job: store.jobs.list(limit=100),
    "commands": lambda store, job: store.commands.list(job),
}

_middles: dict[str, int] = {}


def benchmark(is_quick: bool) -> tuple[Sequence[Goal], dict[str, Any]]:
    """Read one job with very many checkpoints, and one of a thousand jobs with the same number together."""
    total, jobs = (20_000, 20) if is_quick else (1_000_000, 1_000)
    goals: list[Goal] = []
    numbers: dict[str, Any] = {"checkpoints": total}
    for kind in ("sqlite", "postgresql"):
        for shape, count in (("one job", 1), (f"{jobs} jobs", jobs)):
            with fresh_database(kind) as database:
                numbers[f"{kind}, {shape}"] = measured = _measure(database, count, total // count)
            slowest = max(measured["seconds"].values())
            goals.append(at_most(f"{kind}, {shape}: slowest read", slowest * 1000, _GOAL_SECONDS * 1000, "ms"))
    return goals, numbers


def _measure(database: Database, jobs: int, each: int) -> dict[str, Any]:
    begin = time.perf_counter()
    store = ControlStore(database)
    names = [f"job-{number:04}" for number in range(jobs)]
    _fill(store, names, each)
    filled = time.perf_counter() - begin
    seconds = {name: _time(store, names, read) for name, read in _READS.items()}
    print(f"  {database.dialect}, {jobs} jobs: filled in {filled:.0f} s", file=sys.stderr)
    return {"seconds": seconds, "fill_seconds": filled, "bytes": _size(database)}


def _time(store: ControlStore, names: Sequence[str], read: _Read) -> float:
    # A different job each time, so that the cache of the last read does not help the next one.
    chosen = list(itertools.islice(itertools.cycle(names[:: max(1, len(names) // _REPEATS)]), _REPEATS))
    taken = []
    for name in chosen:
        begin = time.perf_counter()
        read(store, name)
        taken.append(time.perf_counter() - begin)
    return median(taken)


def _middle(store: ControlStore, job: str) -> int:
    return _middles.get(job, 1)


def _fill(store: ControlStore, names: Sequence[str], each: int) -> None:
    for name in names:
        registration = JobRegistration(name=name, root="/r", folder=f"/r/{name}", generation=1, host="h", pid=1)
        store.jobs.register(registration)
        _middles[name] = max(1, each // 2)
    with store.database.reading() as transaction:
        found = transaction.execute(select(tables.jobs.c.id).order_by(tables.jobs.c.name)).scalars().all()
    rows = _rows(found, each)
    while batch := list(itertools.islice(rows, _BATCH)):
        with store.database.transaction() as transaction:
            transaction.execute(insert(tables.checkpoints), batch)
            keys = [(row["job_id"], row["checkpoint"]) for row in batch]
            details = [{"job_id": job, "checkpoint": each, "queries": [], "subtasks": []} for job, each in keys]
            transaction.execute(insert(tables.checkpoint_details), details)
    with store.database.transaction() as transaction:
        _count_all(transaction.connection)
    if store.database.dialect == "postgresql":
        with store.database.transaction() as transaction:
            transaction.execute(text("ANALYZE"))


def _count_all(connection: Any) -> None:
    counts = "SELECT job_id, kind, state, count(*) FROM checkpoints GROUP BY job_id, kind, state"
    connection.execute(text(f"INSERT INTO checkpoint_counts (job_id, kind, state, checkpoints) {counts}"))


def _rows(jobs: Sequence[int], each: int) -> Iterator[dict[str, Any]]:
    # By time, as written by jobs that run in parallel: the rows of one job are spread over the whole table.
    dice = random.Random(7)
    for number, job in itertools.product(range(1, each + 1), jobs):
        is_on_storage = number > each - _ON_STORAGE
        state = "failed" if number % 50 == 0 else "completed" if is_on_storage else "discarded"
        kind = "savepoint" if number % 100 == 1 else "checkpoint"
        begun = _BEGIN + timedelta(seconds=10 * number)
        seconds = math.exp(dice.gauss(0, 0.5))
        yield {
            "job_id": job,
            "checkpoint": number,
            "kind": kind,
            "state": "completed" if kind == "savepoint" and state != "failed" else state,
            "cause": "schedule",
            "generation": 1,
            "triggered_at": begun,
            "finished_at": begun + timedelta(seconds=seconds),
            "duration_seconds": seconds,
            "state_bytes": dice.randrange(10**9),
            "new_bytes": dice.randrange(10**7),
            "blocked_events": dice.randrange(100),
            "blocked_seconds": seconds / 10,
            "snapshot_seconds": seconds / 20,
            "path": f"/jobs/flights/checkpoints/{number}",
            "message": "",
            "statistics": _STATISTICS,
        }


@contextmanager
def fresh_database(kind: str) -> Iterator[Database]:
    """An empty database, ``sqlite`` or ``postgresql``, on the local disk; removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="coord-history-"))
    server = None
    try:
        if kind == "sqlite":
            url = f"sqlite:///{folder / 'control.db'}"
        else:
            server = Server(folder)
            server.start()
            url = server.url("postgres")
        with closing(Database(url, application="history")) as database:
            yield database
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _size(database: Database) -> int:
    if database.file is not None:
        return database.file.stat().st_size
    with database.reading() as transaction:
        return int(transaction.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


if __name__ == "__main__":
    sys.exit(main("history", benchmark))
