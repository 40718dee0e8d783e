"""Starting the driver of a job in the background, so that no run of Dagster is held open while the job runs.

``coordctl run --detach SCRIPT`` does it (:mod:`.launch`); the step waits, for a bounded time, until the control
database shows a newer driver that runs.

Exactly one driver, also when the step is repeated because its worker was killed between launch and wait:

    a driver runs                               -> that one; its next heartbeat shows that it does
    a driver begins or stops                    -> wait what becomes of it
    an earlier attempt's has ended in good order -> that was it
    a supervisor launched from here lives       -> wait for its driver, or for its end
    none of these                               -> launch

Threads: the step's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.dagster.metadata import Metadata, entries
from coord_control.dagster.runs.launch import Launch, LaunchPlace
from coord_control.dagster.spec import StartSpec
from coord_control.errors import DatabaseNotFound, JobNotFound, SchemaMismatch
from coord_control.storage.records import JobRecord, JobState

__all__ = ["Started", "known_job", "settled_job", "start_job", "supervisor_lives", "wait_for_driver"]

_LOOK_SECONDS: Final = 0.25
_TAIL_BYTES: Final = 8192
_TAIL_LINES: Final = 40

#: Is told what is going on.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Started:
    """A job that runs, or that had so little to do that it has ended already.

    Attributes:
        was_launched: by this request; otherwise somebody else had.
        supervisor: the process of ``coordctl run``, when this request has launched it.
    """

    job: JobRecord
    was_launched: bool
    log_file: str | None
    supervisor: int | None = None

    def metadata(self) -> Metadata:
        """What a run shows of it."""
        job = self.job
        return entries(
            {
                "generation": job.generation,
                "host": job.host,
                "pid": job.pid,
                "state": job.state.value,
                "was_launched": dg.MetadataValue.bool(self.was_launched),
                "log_file": dg.MetadataValue.path(self.log_file) if self.log_file else None,
                "supervisor_pid": self.supervisor,
            }
        )


def known_job(client: ControlClient, name: str) -> JobRecord | None:
    """What the control database knows of a job; None: nothing yet, also when the first driver is to make its tables.

    Raises:
        DatabaseError: it cannot be asked.
    """
    try:
        return client.job(name)
    except (JobNotFound, DatabaseNotFound):
        return None
    except SchemaMismatch as error:
        if error.found is None:
            return None
        raise


def start_job(
    client: ControlClient, name: str, spec: StartSpec, *, request: str, timeout_seconds: float, tell: Tell
) -> Started:
    """Start a job that does not run, and wait until it does. One that runs is left alone.

    Args:
        request: the same one in all attempts at a step.

    Raises:
        dagster.Failure: it does not run by then; with the end of its log.
        DatabaseError: the database cannot be asked; what was launched goes on.
    """
    deadline = time.monotonic() + timeout_seconds
    place = LaunchPlace(client, name)
    while True:
        record = settled_job(client, name, deadline, tell)
        found = None if record is None else _is_done(record, place.newest(), request, tell)
        if found is not None:
            return found
        before = 0 if record is None else record.generation
        launch = place.launch(spec, request=request, before=before)
        if launch is not None:
            return _launched(client, name, place, launch, deadline, tell)
        tell(f"job {name} was started from here before, and its supervisor lives: waiting for its driver")
        _wait_for_other(client, name, place, deadline)


def wait_for_driver(
    client: ControlClient,
    name: str,
    before: int,
    *,
    deadline: float,
    log_file: str | None,
    is_expected: Callable[[], bool],
    supervisor: int | None = None,
) -> JobRecord:
    """Wait for a driver of a later generation: until it runs, or has ended in good order.

    Args:
        before: the generation that does not count.
        deadline: of the monotonic clock.
        log_file: where it says what it does.
        is_expected: False: nobody would start one any more.
        supervisor: the process that would.

    Raises:
        dagster.Failure: there is none by then; with the end of the log.
        DatabaseError: the database cannot be asked.
    """
    while True:
        is_late = time.monotonic() >= deadline
        is_last = is_late or not is_expected()  # asked first: it may have come before it went
        record = known_job(client, name)
        if record is not None and record.generation > before and _is_there(record):
            return record
        if is_last:
            raise _not_there(name, log_file, supervisor, is_late=is_late)
        time.sleep(_LOOK_SECONDS)


def settled_job(client: ControlClient, name: str, deadline: float, tell: Tell) -> JobRecord | None:
    """The job, when its driver runs for sure, or is gone; None: nobody knows it.

    One that was killed counts as alive until its lease is over; only its next heartbeat shows that it is.

    Raises:
        dagster.Failure: it is still neither when the deadline, of the monotonic clock, has come.
        DatabaseError: the database cannot be asked.
    """
    record = first = known_job(client, name)
    told = JobState.RUNNING
    while record is not None and first is not None and record.is_alive:
        if record.state is JobState.RUNNING and record.heartbeat_at > first.heartbeat_at:
            break
        if record.state is not told:
            tell(f"job {name} is {record.state} on {record.host}, generation {record.generation}: waiting for it")
            told = record.state
        if time.monotonic() >= deadline:
            raise dg.Failure(
                f"the driver of job {name} on {record.host} is {record.state}, and was last heard of at "
                f"{record.heartbeat_at:%H:%M:%S %Z}; nothing was done. Look at its log "
                f"({record.log_file or 'nobody keeps it'}), and execute this run again when it runs or has ended",
                allow_retries=True,
            )
        time.sleep(_LOOK_SECONDS)
        record = known_job(client, name)
    return record


def supervisor_lives(client: ControlClient, name: str) -> Callable[[], bool]:
    """What tells whether a job has a supervisor; always True for one that was not launched from here."""
    place = LaunchPlace(client, name)
    return place.is_occupied if place.is_occupied() else lambda: True


def _launched(
    client: ControlClient, name: str, place: LaunchPlace, launch: Launch, deadline: float, tell: Tell
) -> Started:
    tell(f"coordctl run was started: process {launch.supervisor}, its log: {launch.log_file}")
    try:
        running = wait_for_driver(
            client,
            name,
            launch.before,
            deadline=deadline,
            log_file=launch.log_file,
            is_expected=place.is_occupied,
            supervisor=launch.supervisor,
        )
    except dg.DagsterExecutionInterruptedError:
        tell(f"The run is being cancelled; job {name} goes on starting. To end it: kill {launch.supervisor}")
        raise
    what = "has run and ended" if running.state is JobState.ENDED else "runs"
    tell(f"job {name} {what} on {running.host}: process {running.pid}, generation {running.generation}")
    return Started(running, True, launch.log_file, launch.supervisor)


def _is_done(record: JobRecord, launch: Launch | None, request: str, tell: Tell) -> Started | None:
    """Whether there is nothing to do; None: there is."""
    is_ours = launch is not None and launch.request == request and record.generation > launch.before
    where = f"on {record.host}, generation {record.generation}"
    if record.is_alive:
        tell(f"job {record.name} runs already {where}: nothing was started")
    elif is_ours and record.state is JobState.ENDED:
        tell(f"an earlier attempt has started job {record.name} {where}, and it has ended since: nothing was started")
    else:
        return None
    if is_ours and launch is not None:
        return Started(record, True, launch.log_file, launch.supervisor)
    return Started(record, False, record.log_file)


def _wait_for_other(client: ControlClient, name: str, place: LaunchPlace, deadline: float) -> None:
    """Wait until a supervisor of another launch has a driver, or is gone."""
    while place.is_occupied():
        record = known_job(client, name)
        if record is not None and record.is_alive:
            return
        if time.monotonic() >= deadline:
            launch = place.newest()
            log_file, supervisor = (None, None) if launch is None else (launch.log_file, launch.supervisor)
            raise _not_there(name, log_file, supervisor, is_late=True)
        time.sleep(_LOOK_SECONDS)


def _is_there(record: JobRecord) -> bool:
    if record.state is JobState.ENDED:
        return True  # a job without much to do is done before anybody looks
    return record.is_alive and record.state is JobState.RUNNING


def _not_there(name: str, log_file: str | None, supervisor: int | None, *, is_late: bool) -> dg.Failure:
    tail = _tail(log_file)
    last = tail.rstrip().rpartition("\n")[2].strip()
    said = f"; the last line of its log: {last}" if last else ""
    metadata = entries({"log_tail": tail, "log_file": dg.MetadataValue.path(log_file) if log_file else None})
    if is_late:
        end = "" if supervisor is None else f" (to end that: kill {supervisor})"
        problem = (
            f"the control database does not show a driver of job {name} that runs, and the time is over{said}. It goes "
            f"on starting{end}; if it runs, it reports to another control database (COORD_CONTROL) or has another name"
        )
    else:
        problem = f"the supervisor of job {name} has ended before the job ran{said}"
    return dg.Failure(
        f"{problem}. Read its log: {log_file or 'nobody keeps it'}", metadata=metadata, allow_retries=True
    )


def _tail(log_file: str | None) -> str:
    if log_file is None:
        return ""
    try:
        with open(log_file, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
