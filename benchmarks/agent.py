"""The cost of the agent in a driver, and how soon it claims a command, on SQLite and on PostgreSQL.

The agent runs with a scripted driver without Spark, so only the control plane is measured. *Pick-up* is the time from
when a client begins to submit a command until the command is claimed, by the client's clock; the pauses between
commands are random, so that commands arrive at every phase of polling. *Idle* is the CPU time of a process with one
agent whose job has nothing to do. *Fleet* is the CPU time of the database's processes while 1,000 jobs send a heartbeat
every 2 s.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.report import Goal, at_most, main, median
from coord_control.control.agent.agent import Agent
from coord_control.control.settings import ControlSettings
from coord_control.storage.commands import CommandRequest
from coord_control.storage.database import Database
from coord_control.storage.records import CommandKind, JobRegistration, LiveOperator, LiveQuery, LiveStatus
from coord_control.storage.store import ControlStore
from tests.agent_kit import JOB, ScriptedDriver
from tests.storage.server import Server

_COMMANDS: Final = 60
_IDLE_SECONDS: Final = 20.0
_JOBS: Final = 1_000
_FLEET_SECONDS: Final = 20.0
_HEARTBEAT_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.001


def agent(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Pick-up of commands, an idle agent, and many jobs on one PostgreSQL."""
    commands, seconds, jobs = (3, 1.0, 20) if quick else (_COMMANDS, _IDLE_SECONDS, _JOBS)
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="coord-bench-") as name, _server(Path(name)) as (server, postgresql):
        urls = {"sqlite": f"sqlite:///{name}/control.db", "postgresql": postgresql}
        for dialect, url in urls.items():
            folder = Path(name) / f"jobs-{dialect}"
            numbers[f"{dialect}_pick_up_ms"] = [round(each * 1000, 1) for each in _pick_up(folder, url, commands)]
            numbers[f"{dialect}_idle_share"] = _idle(folder, url, seconds)
        numbers["fleet_share"] = _fleet(postgresql, server, jobs, min(seconds, _FLEET_SECONDS))
        numbers["fleet_jobs"] = jobs
    goals = [
        at_most("PostgreSQL, median pick-up", median(numbers["postgresql_pick_up_ms"]), 30.0, "ms"),
        at_most("SQLite, median pick-up", median(numbers["sqlite_pick_up_ms"]), 150.0, "ms"),
        at_most("PostgreSQL, idle agent", 100 * numbers["postgresql_idle_share"], 1.0, "% of a core"),
        at_most("SQLite, idle agent", 100 * numbers["sqlite_idle_share"], 1.0, "% of a core"),
        at_most("PostgreSQL with 1,000 jobs", 100 * numbers["fleet_share"], 25.0, "% of a core"),
    ]
    return goals, numbers


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    server = Server(folder)
    server.start()
    try:
        postmaster = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        url = server.url("postgres")
        with contextlib.closing(Database(url, application="benchmark")) as database:
            database.upgrade()
        yield psutil.Process(postmaster), url
    finally:
        server.stop()


def _pick_up(folder: Path, url: str, commands: int) -> list[float]:
    """Measure the seconds until commands are claimed, after pauses long enough to end fast polling and shorter ones."""
    settings = ControlSettings.load(url)
    driver = ScriptedDriver(folder)
    running = Agent(driver, ControlStore(Database(url, application="benchmark")), settings)
    running.start()
    driver.open_feed()
    store = ControlStore(Database(url, application="benchmark client"))
    found = []
    try:
        for _ in range(commands):
            time.sleep(random.uniform(0.3, 1.3))
            found.append(_one(store))
    finally:
        running.close()
        store.close()
    return found


def _one(store: ControlStore) -> float:
    began = time.monotonic()
    command = store.commands.submit(CommandRequest(job=JOB, kind=CommandKind.VERIFY, payload={"ref": "latest"}))
    while store.commands.get(command.id).claimed_at is None:
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - began


def _idle(folder: Path, url: str, seconds: float) -> float:
    """Measure the CPU time per second of a process with one agent, without its start."""
    command = [sys.executable, "-m", "benchmarks.agent_idle", str(folder), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(min(7.0, seconds))  # after a start it looks more often
        watched = psutil.Process(process.pid)
        before, began = _cpu(watched), time.monotonic()
        time.sleep(seconds)
        share = (_cpu(watched) - before) / (time.monotonic() - began)
        process.stdin.close()
        process.wait(30.0)
    return share


def _fleet(url: str, server: psutil.Process, jobs: int, seconds: float) -> float:
    """Measure the CPU time per second of all server processes; one process of ours sends all heartbeats."""
    store = ControlStore(Database(url, application="benchmark fleet"))
    live = LiveStatus(
        queries=(LiveQuery(name="q", state="running", epoch=1, rows_per_second=1000.0),),
        operators=(LiveOperator(uid="op"),),
    )
    for number in range(jobs):
        store.jobs.register(
            JobRegistration(name=f"job-{number}", root="/r", folder=f"/r/{number}", generation=1, host="h", pid=1)
        )
    before, began = _cpu_of_all(server), time.monotonic()
    stop = threading.Event()
    sent = 0
    while time.monotonic() - began < seconds:
        store.jobs.heartbeat(f"job-{sent % jobs}", 1, live)
        sent += 1
        stop.wait(max(0.0, began + sent * _HEARTBEAT_SECONDS / jobs - time.monotonic()))
    elapsed = time.monotonic() - began
    share = (_cpu_of_all(server) - before) / elapsed
    store.close()
    # If this machine could not send them in time, the database would look better than it is.
    return share * (elapsed * jobs / _HEARTBEAT_SECONDS) / sent


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _cpu_of_all(server: psutil.Process) -> float:
    total = 0.0
    for process in [server, *server.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += _cpu(process)
    return total


if __name__ == "__main__":
    sys.exit(main("agent", agent))
