"""The cost of a tick of Dagster's sensor when each of 10, 100 and 1,000 jobs has changed.

Since the previous tick, each job has completed a checkpoint and has a new epoch, which leads to a materialization and
the results of eight checks. *Tick* is the work of the code server: it evaluates the sensor and encodes the events for
the daemon. *Statements* are those sent to the control database. The control database is written as by drivers; Dagster
uses its default storage on disk.

The daemon stores the events one by one, which takes far longer and is up to Dagster; it is measured for some events,
without a goal.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import dagster as dg
from dagster_shared.serdes import serialize_value
from sqlalchemy.engine import make_url

from benchmarks.report import Goal, at_most, main, median
from coord_control.storage.database import Database
from coord_control.storage.store import ControlStore
from tests.dagster.sensor_kit import Jobs, SensorRig, spec
from tests.storage.kit import statements
from tests.storage.server import Server

__all__ = ["dagster_sensor"]

_GOAL_SECONDS: Final = 2.0
_SIZES: Final = (10, 100, 1_000)
_TICKS: Final = 7
_STORED: Final = 100  #: events of the last tick that are stored, to see what one takes


def dagster_sensor(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Ticks of the sensor with many jobs, on SQLite and on PostgreSQL."""
    sizes, ticks = ((2, 5), 2) if quick else (_SIZES, _TICKS)
    goals: list[Goal] = []
    numbers: dict[str, Any] = {}
    for kind in ("sqlite", "postgresql"):
        with _address(kind) as address:
            found = {size: _measure(address(size), size, ticks) for size in sizes}
        numbers[kind] = {f"{size} jobs": each for size, each in found.items()}
        most = max(sizes)
        goals.append(at_most(f"{kind}, {most} jobs", found[most]["median_seconds"], _GOAL_SECONDS, "s"))
        counts = {each["statements"] for each in found.values()}
        goals.append(at_most(f"{kind}, statements more with more jobs", max(counts) - min(counts), 0, "statements"))
    return goals, numbers


@contextmanager
def _address(kind: str) -> Iterator[Any]:
    """Addresses of empty databases, one for each number of jobs."""
    folder = Path(tempfile.mkdtemp(prefix="coord-bench-"))
    try:
        if kind == "sqlite":
            yield lambda size: f"sqlite:///{folder}/control-{size}.db"
            return
        server = Server(folder)
        server.start()
        try:
            yield lambda size: _created(server, f"jobs_{size}")
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _created(server: Server, name: str) -> str:
    import psycopg

    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    with closing(Database(server.url(name), application="benchmark")) as database:
        database.upgrade()
    return server.url(name)


def _measure(address: str, size: int, ticks: int) -> dict[str, Any]:
    names = [f"job-{number:04}" for number in range(size)]
    with contextlib.ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="coord-bench-")))
        (folder / "dagster").mkdir()
        instance = cleanup.enter_context(dg.DagsterInstance.local_temp(str(folder / "dagster")))
        database = cleanup.enter_context(closing(Database(address, application="benchmark")))
        jobs = Jobs(database, ControlStore(database))
        for name in names:
            jobs.put(name)
        rig = SensorRig(folder, instance, [spec(name) for name in names], address=address)
        _news(jobs, names, 0)
        _tick(rig)  # the first one asks Dagster about everything
        found = []
        for epoch in range(1, ticks + 1):
            _news(jobs, names, epoch)
            found.append(_tick(rig))
        _news(jobs, names, ticks + 1)
        store_seconds = _store(instance, rig)
    return {
        "median_seconds": median([each["seconds"] for each in found]),
        "seconds": [each["seconds"] for each in found],
        "cpu_seconds": [each["cpu_seconds"] for each in found],
        "statements": max(each["statements"] for each in found),
        "events": found[-1]["events"],
        "encoded_bytes": found[-1]["encoded_bytes"],
        "milliseconds_to_store_an_event": round(1000 * store_seconds, 2),
    }


def _news(jobs: Jobs, names: list[str], epoch: int) -> None:
    for name in names:
        jobs.checkpoint(name)
        jobs.live(name, epoch=epoch)


def _tick(rig: SensorRig) -> dict[str, Any]:
    database = make_url(rig.address or "").database
    with statements(database) as asked:
        began, cpu = time.perf_counter(), time.process_time()
        found = rig.look()
        encoded = serialize_value(found)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    rig.cursor = found.cursor
    kinds = [isinstance(event, dg.AssetMaterialization) for event in found.asset_events]
    assert sum(kinds) == len(rig.specs), "every job has a new checkpoint"
    return {
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "statements": len(asked),
        "events": len(found.asset_events),
        "encoded_bytes": len(encoded),
    }


def _store(instance: dg.DagsterInstance, rig: SensorRig) -> float:
    """Store some events as the daemon does, and return the seconds per event."""
    events = rig.look().asset_events[:_STORED]
    began = time.perf_counter()
    for event in events:
        instance.report_runless_asset_event(event)
    return (time.perf_counter() - began) / len(events)


if __name__ == "__main__":
    sys.exit(main("dagster_sensor", dagster_sensor))
