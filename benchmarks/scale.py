"""Additional measurements for docs/scaling.md: very wide checkpoints, and the load that one control database can take.

*Cut*: from the trigger until every subtask's part of a checkpoint is there, in a real driver without Spark
(:mod:`benchmarks.rig`) while no epoch runs. *History*: writing one completed checkpoint of so many subtasks into the
control database. *Changes*: checkpoints of many jobs that end at the same time, each of which takes the next number of
the one counter, from 8 connections. *Heartbeats*: likewise, what drivers say most often.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from benchmarks.history import fresh_database
from benchmarks.load import Epoch, Load
from benchmarks.report import Goal, at_least, at_most, main, median
from benchmarks.rig import RUN, Rig
from coord_control.coordinators import StatefulCoordinator
from coord_control.ids import CheckpointId, QueryName
from coord_control.ids import Epoch as EpochNumber
from coord_control.protocol.messages import QueryCaptured
from coord_control.storage.database import Database
from coord_control.storage.records import (
    CheckpointRecord,
    JobRegistration,
    LiveOperator,
    LiveQuery,
    LiveStatus,
)
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import operator_part, query_part, subtask_part, with_subtasks

__all__ = ["benchmark"]

_QUERY: Final = QueryName("query")
_CONNECTIONS: Final = 256
_WRITERS: Final = 8
_REPEATS: Final = 7
_LIVE: Final = LiveStatus(
    queries=(LiveQuery(name="q", state="running", epoch=1, rows_per_second=1000.0),),
    operators=(LiveOperator(uid="op"),),
)


class _Note(BaseModel):
    value: int = 0


class _Notes(BaseModel):
    notes: int = 0


class _Coordinator(StatefulCoordinator[_Notes]):
    def handle_event_from_operator(self, subtask: int, attempt: int, event: _Note) -> None:
        self.state.notes += 1


def benchmark(is_quick: bool) -> tuple[Sequence[Goal], dict[str, Any]]:
    """Cut and keep a checkpoint of 10,000 subtasks; many jobs on one database."""
    subtasks, jobs, writes = (200, 20, 100) if is_quick else (10_000, 1_000, 2_000)
    cuts = _cuts(subtasks)
    numbers: dict[str, Any] = {"subtasks": subtasks, "jobs": jobs, "writers": _WRITERS, "cut_seconds": cuts}
    goals = [at_most(f"checkpoint of {subtasks:,} subtasks cut", median(cuts) * 1000, 500.0, "ms")]
    for kind in ("sqlite", "postgresql"):
        with fresh_database(kind) as database:
            numbers[kind] = measured = _database(database, subtasks, jobs, writes)
        kept = median(measured["keep_seconds"])
        goals.append(at_most(f"{kind}: {subtasks:,} subtasks kept", kept, 2.0, "s"))
        # What 1,000 jobs need: a heartbeat every 2 s, and a checkpoint every minute.
        if kind == "postgresql":
            goals.append(at_least(f"{kind}: heartbeats", measured["heartbeats_per_second"], 500.0, "1/s"))
            goals.append(at_least(f"{kind}: ended checkpoints", measured["changes_per_second"], 17.0, "1/s"))
    return goals, numbers


def _cuts(subtasks: int) -> list[float]:
    """Seconds from trigger to the cut of all subtasks, each of which has a state and a waiting event."""
    arrived: queue.SimpleQueue[QueryCaptured] = queue.SimpleQueue()
    rig_of = Rig.running(_Coordinator(_Notes()), subtasks, down=[_Note], up=[_Note], captured=arrived.put)
    with rig_of as rig, Load(rig.address) as load:
        load.connect(_CONNECTIONS)
        rig.coordinator.context.broadcast(_Note())
        load.run(Epoch(0, subtasks, _CONNECTIONS, is_changing=True))
        rig.runtime.call(lambda core, now: core.committed(_QUERY, EpochNumber(0), now, RUN))
        rig.coordinator.context.broadcast(_Note(value=1))
        return [_cut(rig, arrived, CheckpointId(number), subtasks) for number in range(1, _REPEATS + 1)]


def _cut(rig: Rig, arrived: queue.SimpleQueue[QueryCaptured], checkpoint: CheckpointId, subtasks: int) -> float:
    began = time.perf_counter()
    rig.runtime.call(lambda core, now: core.trigger_checkpoint(checkpoint, [_QUERY], now))
    captured = arrived.get(timeout=60.0)
    seconds = time.perf_counter() - began
    (cut,) = captured.cuts
    assert captured.checkpoint == checkpoint
    assert len(cut.states) == len(cut.down) == subtasks, "every subtask has a state and a waiting event"
    rig.runtime.call(lambda core, now: core.checkpoint_stored(checkpoint))
    return seconds


def _database(database: Database, subtasks: int, jobs: int, writes: int) -> dict[str, Any]:
    store = ControlStore(database)
    names = [f"job-{number:04}" for number in range(jobs)]
    for name in names:
        store.jobs.register(
            JobRegistration(
                name=name, root="/r", folder=f"/r/{name}", generation=1, host="h", pid=1, lease_seconds=3600
            )
        )
    stores = [ControlStore(Database(_url(database), application=f"writer {number}")) for number in range(_WRITERS)]
    try:
        heartbeats = _rate(stores, writes, lambda mine, number: mine.jobs.heartbeat(names[number % jobs], 1, _LIVE))
        changes = _rate(
            stores, writes, lambda mine, number: mine.checkpoints.save(names[number % jobs], _ended(names, number))
        )
    finally:
        for each in stores:
            each.close()
    return {
        "heartbeats_per_second": heartbeats,
        "changes_per_second": changes,
        "keep_seconds": [_keep(store, names[0], 1_000_000 + number, subtasks) for number in range(_REPEATS)],
    }


def _url(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


def _rate(stores: Sequence[ControlStore], writes: int, write: Callable[[ControlStore, int], object]) -> float:
    """How many writes per second all connections make together."""

    def some(first: int) -> None:
        for number in range(first, writes, len(stores)):
            write(stores[first], number)

    began = time.perf_counter()
    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(some, range(len(stores))))
    return writes / (time.perf_counter() - began)


def _ended(names: Sequence[str], number: int) -> CheckpointRecord:
    return _checkpoint(names[number % len(names)], 1 + number // len(names), subtasks=8)


def _checkpoint(job: str, number: int, subtasks: int) -> CheckpointRecord:
    operator = operator_part(operator="op", coordinator_bytes=64, subtasks=subtasks, passed_subtasks=subtasks)
    return records.checkpoint(
        number,
        job=job,
        finished_at=records.NOON + timedelta(seconds=number + 1),
        duration_seconds=1.0,
        generation=1,
        subtasks=subtasks,
        passed_subtasks=subtasks,
        queries=(query_part(query="q", boundary=number, operators=(operator,)),),
    )


def _keep(store: ControlStore, job: str, number: int, subtasks: int) -> float:
    parts = [subtask_part(operator="op", subtask=each, passed_seconds=0.1, state_bytes=64) for each in range(subtasks)]
    record = with_subtasks(_checkpoint(job, number, subtasks), parts)
    began = time.perf_counter()
    store.checkpoints.save(job, record)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main("scale", benchmark))
