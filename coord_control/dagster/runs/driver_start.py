"""Starting the driver of a job in the background, so that no Dagster run stays open while the job runs.

A launcher starts it (:mod:`coord_control.launch.launcher`); the step waits, for a bounded time, until the control
database shows a newer running driver.

Exactly one driver is started, even if the step is repeated because its worker was killed between launch and wait:

    a driver is running                       -> use it, once its next heartbeat confirms that it is alive
    a driver is starting or stopping          -> wait until it is running or has ended
    an earlier attempt's driver ended cleanly -> done
    a supervisor launched from here is alive  -> wait for its driver, or for its end
    otherwise                                 -> launch

Threads: blocks the step's thread.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import absolute_url
from coord_control.dagster.metadata import Metadata, entries
from coord_control.dagster.spec import StartSpec
from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.errors import DatabaseNotFound, JobNotFound, LaunchFailed, PackageMissing, SchemaMismatch
from coord_control.launch.launcher import Launch, Launcher
from coord_control.launch.local_launcher import LocalLauncher
from coord_control.log_tail import log_tail
from coord_control.storage.records import JobRecord, JobState

__all__ = [
    "Started",
    "known_job",
    "program_of",
    "settled_job",
    "start_environment",
    "start_job",
    "supervisor_lives",
    "wait_for_driver",
]

_LOOK_SECONDS: Final = 0.25
_TAIL_LINES: Final = 40

#: Receives progress messages.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Started:
    """A job that is running, or that had so little to do that it has ended already.

    Attributes:
        was_launched: whether this request launched it, or it was running already.
        supervisor: what the launcher knows it by, if this request launched it: the process id of ``coordctl run``.
    """

    job: JobRecord
    was_launched: bool
    log_file: str | None
    supervisor: str | None = None

    def metadata(self) -> Metadata:
        """Return the metadata that the run shows."""
        job = self.job
        return entries(
            {
                "generation": job.generation,
                "host": job.host,
                "pid": job.pid,
                "state": job.state.value,
                "was_launched": dg.MetadataValue.bool(self.was_launched),
                "log_file": dg.MetadataValue.path(self.log_file) if self.log_file else None,
                "supervisor_pid": int(of) if (of := self.supervisor) and of.isdigit() else of,
            }
        )


def known_job(client: ControlClient, name: str) -> JobRecord | None:
    """Return the record of a job, or None if there is none yet, or no database (the first driver creates its tables).

    Raises:
        DatabaseError: the database cannot be read.
    """
    try:
        return client.job(name)
    except (JobNotFound, DatabaseNotFound):
        return None
    except SchemaMismatch as error:
        if error.found is None:
            return None
        raise


def program_of(spec: StartSpec) -> Program:
    """Return the program that a job is started with."""
    folder = spec.working_directory or os.getcwd()
    return Program(script=spec.script, args=tuple(spec.args), folder=folder)


def start_environment(client: ControlClient, spec: StartSpec) -> dict[str, str]:
    """Return the variables that the program gets in addition to those of this process."""
    return {"COORD_CONTROL": absolute_url(client.settings.url), **spec.env}


def start_job(
    client: ControlClient, name: str, spec: StartSpec, *, request: str, timeout_seconds: float, tell: Tell
) -> Started:
    """Start a job unless it is running, and wait until it is.

    Args:
        request: identifies the step; the same in all its attempts.

    Raises:
        dagster.Failure: the job is not running in time; contains the end of its log.
        DatabaseError: the database cannot be read; a launched driver keeps starting.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        place = _Place(client, name, _launcher(spec, start_environment(client, spec)))
        while True:
            record = settled_job(client, name, deadline, tell)
            found = None if record is None else _is_done(record, place.newest(), request, tell)
            if found is not None:
                return found
            before = 0 if record is None else record.generation
            launch = place.launch(spec, request=request, before=before)
            if launch is not None:
                what = "coordctl run" if spec.launcher is None else spec.script
                tell(f"{what} was started: process {launch.process}, its log: {launch.log_file}")
                return _launched(client, name, place, launch, deadline, tell)
            tell(f"job {name} was already started from here, and its supervisor is alive: waiting for its driver")
            _wait_for_other(client, name, place, deadline)
    except LaunchFailed as error:
        raise _not_launched(name, error) from error


def wait_for_driver(
    client: ControlClient,
    name: str,
    before: int,
    *,
    deadline: float,
    log_file: str | None,
    is_expected: Callable[[], bool],
    supervisor: str | None = None,
    tail: Callable[[], str] | None = None,
) -> JobRecord:
    """Wait for a driver of a later generation, until it is running or has ended cleanly.

    Args:
        before: the generation that the driver must exceed.
        deadline: the end of the wait, by the monotonic clock.
        log_file: the log of the driver.
        is_expected: returns False once no process is left that would start a driver.
        supervisor: the process id of the supervisor that starts the driver, if it is on this machine.
        tail: returns the end of the log; by default that of the file ``log_file``.

    Raises:
        dagster.Failure: there is no such driver in time; contains the end of the log.
        DatabaseError: the database cannot be read.
    """
    while True:
        is_late = time.monotonic() >= deadline
        is_last = is_late or not is_expected()  # before reading the record: it may have run before its supervisor ended
        record = known_job(client, name)
        if record is not None and record.generation > before and _is_there(record):
            return record
        if is_last:
            raise _not_there(name, log_file, supervisor, tail, is_late=is_late)
        time.sleep(_LOOK_SECONDS)


def settled_job(client: ControlClient, name: str, deadline: float, tell: Tell) -> JobRecord | None:
    """Return the job once its driver is certainly running or gone; None if the database does not know the job.

    A killed driver counts as alive until its lease expires; only its next heartbeat proves that it is.

    Raises:
        dagster.Failure: it is still uncertain at the deadline (of the monotonic clock).
        DatabaseError: the database cannot be read.
    """
    record = first = known_job(client, name)
    said = JobState.RUNNING
    while record is not None and first is not None and record.is_alive:
        if record.state is JobState.RUNNING and record.heartbeat_at > first.heartbeat_at:
            break
        if record.state is not said:
            tell(f"job {name} is {record.state} on {record.host}, generation {record.generation}: waiting for it")
            said = record.state
        if time.monotonic() >= deadline:
            raise dg.Failure(
                f"the driver of job {name} on {record.host} is {record.state}, and its last heartbeat was at "
                f"{record.heartbeat_at:%H:%M:%S %Z}; nothing was done. Look at its log "
                f"({record.log_file or 'no log file is available'}), and re-execute this run once it is running or has "
                "ended",
                allow_retries=True,
            )
        time.sleep(_LOOK_SECONDS)
        record = known_job(client, name)
    return record


def supervisor_lives(client: ControlClient, name: str) -> Callable[[], bool]:
    """Return a function that tells whether the job's supervisor is alive; always True unless it was launched here."""
    try:
        place = _Place(client, name, LocalLauncher({}))
    except LaunchFailed as error:
        raise _not_launched(name, error) from error
    return place.is_alive if place.is_alive() else lambda: True


def _launcher(spec: StartSpec, environment: dict[str, str]) -> Launcher:
    if spec.launcher is None:
        return LocalLauncher(environment)
    module, _, name = spec.launcher.partition(":")
    try:
        make: Callable[[dict[str, str]], Launcher] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise LaunchFailed(f"there is no launcher {spec.launcher}: {error}") from error
    try:
        return make(environment)
    except PackageMissing as error:
        raise LaunchFailed(str(error)) from error


class _Place:
    """The slot of a job in a launcher: jobs of one name in two databases have two."""

    def __init__(self, client: ControlClient, name: str, launcher: Launcher) -> None:
        database = hashlib.sha256(client.url.encode()).hexdigest()[:12]
        self._slot, self._launcher = f"{name}-{database}", launcher

    def newest(self) -> Launch | None:
        return self._launcher.newest(self._slot)

    def is_alive(self) -> bool:
        return self._launcher.is_alive(self._slot)

    def tail(self) -> str:
        return self._launcher.tail(self._slot, _TAIL_LINES)

    def pid(self, launch: Launch | None) -> str | None:
        """Return the process id of the launch's supervisor; None if it is on another machine, or unknown."""
        return launch.process if launch is not None and isinstance(self._launcher, LocalLauncher) else None

    def launch(self, spec: StartSpec, *, request: str, before: int) -> Launch | None:
        program, log_file = program_of(spec), spec.log_file
        if log_file is not None:
            log_file = os.path.join(os.path.abspath(program.folder), log_file)
        return self._launcher.launch(self._slot, program, request=request, before=before, log_file=log_file)


def _not_launched(name: str, error: LaunchFailed) -> dg.Failure:
    where = ". Its output is in the metadata of this failure" if error.output else ""
    return dg.Failure(
        f"job {name} cannot be started: {error.problem}{where}. Check start in the job's definition",
        metadata=entries({"error": error.output or None}),
        allow_retries=not error.output,
    )


def _launched(client: ControlClient, name: str, place: _Place, launch: Launch, deadline: float, tell: Tell) -> Started:
    try:
        running = wait_for_driver(
            client,
            name,
            launch.before,
            deadline=deadline,
            log_file=launch.log_file,
            is_expected=place.is_alive,
            supervisor=place.pid(launch),
            tail=place.tail,
        )
    except dg.DagsterExecutionInterruptedError:
        pid = place.pid(launch)
        end = f". To end it: kill {pid}" if pid is not None else f" as {launch.process}"
        tell(f"The run is being cancelled; job {name} keeps starting{end}")
        raise
    what = "has run and ended" if running.state is JobState.ENDED else "runs"
    tell(f"job {name} {what} on {running.host}: process {running.pid}, generation {running.generation}")
    return Started(running, True, launch.log_file, launch.process)


def _is_done(record: JobRecord, launch: Launch | None, request: str, tell: Tell) -> Started | None:
    """Return the driver that makes a launch unnecessary, or None if there is none."""
    is_ours = launch is not None and launch.request == request and record.generation > launch.before
    where = f"on {record.host}, generation {record.generation}"
    if record.is_alive:
        tell(f"job {record.name} is already running {where}: nothing was started")
    elif is_ours and record.state is JobState.ENDED:
        tell(f"an earlier attempt started job {record.name} {where}, and it has ended since: nothing was started")
    else:
        return None
    if is_ours and launch is not None:
        return Started(record, True, launch.log_file, launch.process)
    return Started(record, False, record.log_file)


def _wait_for_other(client: ControlClient, name: str, place: _Place, deadline: float) -> None:
    """Wait until the supervisor of another launch has a driver, or has ended."""
    while place.is_alive():
        record = known_job(client, name)
        if record is not None and record.is_alive:
            return
        if time.monotonic() >= deadline:
            launch = place.newest()
            log_file = None if launch is None else launch.log_file
            raise _not_there(name, log_file, place.pid(launch), place.tail, is_late=True)
        time.sleep(_LOOK_SECONDS)


def _is_there(record: JobRecord) -> bool:
    if record.state is JobState.ENDED:
        return True  # a job without much to do may have finished before the first look
    return record.is_alive and record.state is JobState.RUNNING


def _not_there(
    name: str, log_file: str | None, supervisor: str | None, read_tail: Callable[[], str] | None, *, is_late: bool
) -> dg.Failure:
    tail = log_tail(log_file, _TAIL_LINES) if read_tail is None else read_tail()
    last = tail.rstrip().rpartition("\n")[2].strip()
    said = f"; the last line of its log: {last}" if last else ""
    metadata = entries({"log_tail": tail, "log_file": dg.MetadataValue.path(log_file) if log_file else None})
    if is_late:
        end = "" if supervisor is None else f" (to end it: kill {supervisor})"
        problem = (
            f"timed out: the control database does not show a running driver of job {name}{said}. It keeps starting"
            f"{end}; if it is running, it reports to another control database (COORD_CONTROL) or has another name"
        )
    else:
        problem = f"the supervisor of job {name} ended before the job was running{said}"
    return dg.Failure(
        f"{problem}. Read its log: {log_file or 'no log file is available'}", metadata=metadata, allow_retries=True
    )
