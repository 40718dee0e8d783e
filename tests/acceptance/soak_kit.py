"""A deployment that runs for a while: a job under ``coordctl run``, a ``dagster-daemon`` with schedules, their deaths.

Everything is a process of its own and can be killed with ``kill -9``; what was started again is what a service manager
would start. Nothing here mends what a kill has left behind.

Threads: the test's own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import dagster as dg
import psutil
from dagster._core.scheduler.instigation import InstigatorTick

from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.errors import DatabaseError, JobNotFound
from coord_control.storage.records import JobRecord, JobState
from tests.acceptance import delays_job
from tests.dagster_dev_kit import SETTINGS
from tests.patience import SECONDS
from tests.places import CHECKOUT

__all__ = ["CHECKS", "JOB", "KEPT", "SAVES", "Soak", "soak"]

JOB: Final = delays_job.JOB
SAVES: Final = "flights_saves"
CHECKS: Final = "flights_checks"
KEPT: Final = 1

_CODE: Final = f"""
    import dagster as dg
    from coord_control.dagster import QuerySpec, RetainSpec, ScheduleSpec, streaming_job_definitions

    minutely = {{"cron": "* * * * *", "timeout_seconds": 60, "running": True}}
    schedules = [
        ScheduleSpec(name="{SAVES}", retain=RetainSpec(count={KEPT}), **minutely),
        ScheduleSpec(name="{CHECKS}", kind="checkpoint", **minutely),
    ]
    defs = dg.Definitions.merge(
        streaming_job_definitions("{JOB}", queries=[QuerySpec(name="{delays_job.QUERY}")], schedules=schedules),
        dg.Definitions(executor=dg.in_process_executor),
    )
"""
_EPOCH_SECONDS: Final = 4
_MOST: Final = 1000


class Soak:
    """The processes, and what the control database and Dagster know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._home = folder / "dagster_home"
        self._home.mkdir(parents=True)
        (self._home / "dagster.yaml").write_text(SETTINGS.replace("max_retries: 0", "max_retries: 2"))
        (folder / "definitions.py").write_text(textwrap.dedent(_CODE))
        url = f"sqlite:///{folder / 'control.db'}"
        self._environment = {
            **os.environ,
            "COORD_CONTROL": url,
            "COORD_CONTROL_HEARTBEAT_SECONDS": "0.5",
            "COORD_CONTROL_LEASE_SECONDS": "3",
            "DAGSTER_HOME": str(self._home),
            "DAGSTER_EVENT_LOG_CONSUMER_DAEMON_INTERVAL_SECONDS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.client = ControlClient(actor="ada", settings=ControlSettings.load(url))
        self.dagster = dg.DagsterInstance.from_config(str(self._home))
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    # Processes.

    def start_supervisor(self) -> None:
        script = str(CHECKOUT / "tests" / "acceptance" / "delays_job.py")
        command = [sys.executable, "-m", "coord_control.cli", "run", script, str(self.folder), str(_EPOCH_SECONDS)]
        self._supervisor = self._started("job.log", command, start_new_session=True)

    def start_daemon(self) -> None:
        keeper = [sys.executable, "-m", "examples.flights.keeper", "10"]
        daemon = [sys.executable, "-m", "dagster._daemon", "run", "-f", "definitions.py"]
        self._daemon = self._started("dagster.log", [*keeper, *daemon], stdin=subprocess.PIPE)

    def kill_driver(self) -> None:
        """The Python process; its supervisor ends what is left of it, and starts the next one."""
        os.kill(self.job().pid, signal.SIGKILL)

    def hold_next_driver(self) -> None:
        """A driver that starts from now on waits, before it registers, until it is released."""
        (self.folder / delays_job.WAIT).touch()

    def release_driver(self) -> None:
        (self.folder / delays_job.WAIT).unlink()

    def kill_supervisor(self) -> None:
        """Its driver notices and stops; what manages services starts the next supervisor."""
        assert self._supervisor is not None, "it was started"
        driver = psutil.Process(self.job().pid)
        self._supervisor.kill()
        self._supervisor.wait()
        driver.wait(SECONDS)
        self.start_supervisor()

    def kill_daemon(self) -> None:
        """In the middle of a run, and with it: a service manager that starts the next one kills what is left."""
        started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
        self.wait(lambda: self.dagster.get_runs(filters=started), pause=0.2)
        assert self._daemon is not None, "it was started"
        [daemon] = psutil.Process(self._daemon.pid).children()
        daemon.kill()
        self._end_daemon()
        self.start_daemon()

    def close(self) -> None:
        """End everything."""
        self._end_daemon()
        if self._supervisor is not None:
            self._supervisor.terminate()
            try:
                self._supervisor.wait(SECONDS)
            finally:
                self._supervisor.kill()
        self.client.close()
        self.dagster.dispose()

    # What is known.

    def job(self) -> JobRecord:
        return self.client.job(JOB)

    def runs(self) -> bool:
        """Whether the job's driver lives and works."""
        try:
            job = self.job()
        except (DatabaseError, JobNotFound):  # the first driver is about to make it
            return False
        return job.is_alive and job.state is JobState.RUNNING

    def stop_schedules(self, names: Iterable[str]) -> None:
        """Let no more ticks come."""
        for state in self.dagster.all_instigator_state():
            if state.name in names:
                self.dagster.stop_schedule(state.instigator_origin_id, state.selector_id, None)

    def ticks(self, schedule: str) -> list[InstigatorTick]:
        """Of a schedule, the oldest first; none before the daemon has seen it."""
        for state in self.dagster.all_instigator_state():
            if state.name == schedule:
                ticks = self.dagster.get_ticks(state.instigator_origin_id, state.selector_id)
                return sorted(ticks, key=lambda tick: tick.timestamp)
        return []

    def runs_of(self, tick: InstigatorTick) -> list[dg.DagsterRun]:
        """The run that a tick has asked for, and Dagster's retries of it, the newest first."""
        [run] = tick.run_ids
        retries = self.dagster.get_runs(filters=dg.RunsFilter(tags={"dagster/root_run_id": run}))
        first = self.dagster.get_run_by_id(run)
        assert first is not None
        return [*(each for each in retries if each.run_id != run), first]

    def materializations(self, purpose: str) -> list[Mapping[str, Any]]:
        """Their metadata, without the namespace."""
        found = self.dagster.fetch_materializations(dg.AssetKey([JOB, purpose]), limit=_MOST).records
        made = (record.event_log_entry.asset_materialization for record in found)
        return [_plain(each.metadata) for each in made if each is not None]

    def failures(self, purpose: str) -> list[Mapping[str, Any]]:
        """The metadata of failed checkpoints, without the namespace."""
        found = self.dagster.fetch_observations(dg.AssetKey([JOB, purpose]), limit=_MOST).records
        made = (record.event_log_entry.asset_observation for record in found)
        told = [_plain(each.metadata) for each in made if each is not None]
        return [metadata for metadata in told if "failed_checkpoint_id" in metadata]

    def wait(
        self,
        condition: Callable[[], object],
        seconds: float = SECONDS,
        *,
        pause: float = 1.0,
        trouble: Callable[[], str] = str,
    ) -> None:
        """Wait until it is true, with a pause between two looks; if it does not become so, say what is left."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"this did not happen in time\n{trouble()}\n{self.tail()}"
            time.sleep(pause)

    def tail(self) -> str:
        """The ends of the logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def _end_daemon(self) -> None:
        if self._daemon is not None:
            assert self._daemon.stdin is not None
            self._daemon.stdin.close()
            self._daemon.wait()

    def _started(self, log: str, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        options = {"stdin": subprocess.DEVNULL, **options}
        with (self.folder / log).open("ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, cwd=self.folder, env=self._environment, **options)


@contextmanager
def soak(folder: Path) -> Iterator[Soak]:
    """A job that runs, and a daemon that will see its schedules; all ended afterwards."""
    world = Soak(folder)
    try:
        world.start_supervisor()
        world.wait(world.runs)
        world.start_daemon()
        yield world
    finally:
        world.close()


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("coord_control/"): value.value for name, value in metadata.items()}
