"""Starting the driver of a job in the background, so that no run of Dagster is held open while the job runs.

``coordctl run SCRIPT --detach`` does it; the step waits, for a bounded time, until the control database shows a newer
driver that runs.

Exactly one driver, also when the step is repeated because its worker was killed between launch and wait: the launcher
locks a file below the user's state folder, and the supervisor inherits the open file. So the file is locked exactly as
long as somebody launches or a supervisor lives, whatever else was killed, and whoever finds it locked waits for that
one's driver. A second driver that comes from elsewhere (another machine, a terminal) does no harm: each claims the next
generation on the job's storage before anything else, and the older one is fenced off, stops itself with exit code 77
and is not restarted by its supervisor.

Threads: the step's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import dagster as dg

from coord_control.control.client import ControlClient
from coord_control.control.settings import state_folder
from coord_control.errors import DatabaseNotFound, JobNotFound, SchemaMismatch
from coord_control.storage.records import JobRecord, JobState
from dagster_defs.metadata import Metadata, entries
from dagster_defs.spec import StartSpec

__all__ = ["Started", "known_job", "start_job", "wait_for_driver"]

_LOOK_SECONDS: Final = 0.25
_LAUNCH_SECONDS: Final = 120.0
_LOCK_TRIES: Final = 10
_TAIL_BYTES: Final = 8192
_TAIL_LINES: Final = 40
_SUPERVISOR: Final = re.compile(r"process (\d+)")

#: Is told what is going on.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Started:
    """A job that runs.

    Attributes:
        was_launched: by us; otherwise somebody else had.
        supervisor: the process of ``coordctl run``, when we have launched it.
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


def start_job(client: ControlClient, name: str, spec: StartSpec, *, timeout_seconds: float, tell: Tell) -> Started:
    """Start a job that does not run, and wait until it does. One that runs is left alone.

    Raises:
        dagster.Failure: it does not run by then; with the end of its log.
        DatabaseError: the database cannot be asked; what was launched goes on.
    """
    deadline = time.monotonic() + timeout_seconds
    record = _not_stopping(client, name, deadline, tell)
    if record is not None and record.is_alive:
        return _started_elsewhere(client, record, deadline, tell)
    launch = _launch(client, name, spec, tell)
    before = 0 if record is None else record.generation
    running = wait_for_driver(
        client, name, before, deadline=deadline, log_file=launch.log_file, is_expected=launch.place.is_locked
    )
    tell(f"job {name} runs on {running.host}: process {running.pid}, generation {running.generation}")
    return Started(running, launch.supervisor is not None, launch.log_file, launch.supervisor)


def wait_for_driver(
    client: ControlClient,
    name: str,
    before: int,
    *,
    deadline: float,
    log_file: str | None,
    is_expected: Callable[[], bool] = lambda: True,
) -> JobRecord:
    """Wait for a driver of a later generation: until it runs, or has ended in good order.

    Args:
        before: the generation that does not count.
        deadline: of the monotonic clock.
        log_file: where it says what it does.
        is_expected: False: nobody would start one any more.

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
            raise _not_there(name, log_file, is_late=is_late)
        time.sleep(_LOOK_SECONDS)


def _started_elsewhere(client: ControlClient, job: JobRecord, deadline: float, tell: Tell) -> Started:
    where = f"on {job.host}, generation {job.generation}"
    if job.state is JobState.RUNNING:
        tell(f"job {job.name} runs already {where}: nothing was started")
        return Started(job, False, job.log_file)
    tell(f"job {job.name} is being started already {where}: waiting for it")
    found = wait_for_driver(client, job.name, job.generation - 1, deadline=deadline, log_file=job.log_file)
    return Started(found, False, found.log_file)


def _is_there(record: JobRecord) -> bool:
    if record.state is JobState.ENDED:
        return True  # a job without much to do is done before anybody looks
    return record.is_alive and record.state is JobState.RUNNING


def _not_stopping(client: ControlClient, name: str, deadline: float, tell: Tell) -> JobRecord | None:
    """The job, when the driver that is on its way out is gone."""
    is_told = False
    while (record := known_job(client, name)) is not None and record.is_alive and record.state is JobState.STOPPING:
        if not is_told:
            tell(f"job {name} is stopping on {record.host}: waiting for its end")
        if time.monotonic() >= deadline:
            raise dg.Failure(
                f"job {name} is still stopping, so nothing was started; look at its log ({record.log_file or 'none'}) "
                "and try again when it has ended",
                allow_retries=True,
            )
        is_told = True
        time.sleep(_LOOK_SECONDS)
    return record


def _not_there(name: str, log_file: str | None, *, is_late: bool) -> dg.Failure:
    tail = _tail(log_file)
    last = tail.rstrip().rpartition("\n")[2].strip()
    said = f"; the last line of its log: {last}" if last else ""
    metadata = entries({"log_tail": tail, "log_file": dg.MetadataValue.path(log_file) if log_file else None})
    if is_late:
        problem = (
            f"the control database does not show a driver of job {name} that runs, and the time is over{said}. It goes "
            "on starting; if it runs, it reports to another control database (COORD_CONTROL) or has another name"
        )
    else:
        problem = f"the supervisor of job {name} has ended before the job ran{said}"
    return dg.Failure(
        f"{problem}. Read its log: {log_file or 'nobody keeps it'}", metadata=metadata, allow_retries=True
    )


# --- the launch


@dataclass(frozen=True, slots=True)
class _Place:
    """A file that is locked while somebody launches the job from here, and while its supervisor lives."""

    file: Path

    @classmethod
    def of(cls, client: ControlClient, name: str) -> _Place:
        database = hashlib.sha256(client.url.encode()).hexdigest()[:12]  # jobs of one name in two databases
        folder = state_folder() / "starts"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(folder / f"{name}-{database}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[int | None]:
        """The locked file, to be inherited by the supervisor; None: somebody else has it."""
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor if _lock(descriptor) else None
        finally:
            os.close(descriptor)  # whoever has inherited it keeps the lock

    def is_locked(self) -> bool:
        """Whether somebody launches, or a supervisor lives."""
        try:
            with open(self.file, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def log_file(self) -> str | None:
        """The log of the newest launch from here."""
        return self.file.read_text().strip() or None


@dataclass(frozen=True, slots=True)
class _Launch:
    place: _Place
    log_file: str | None
    supervisor: int | None = None


def _lock(descriptor: int) -> bool:
    # More than once: somebody may only be looking whether it is locked.
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def _launch(client: ControlClient, name: str, spec: StartSpec, tell: Tell) -> _Launch:
    place = _Place.of(client, name)
    with place.locked() as descriptor:
        if descriptor is None:
            log_file = place.log_file()
            tell(f"job {name} was started from here before, and its supervisor lives: waiting for its driver")
            return _Launch(place, log_file)
        log_file = _log_file(name, spec)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, log_file.encode(), 0)
        supervisor = _run(client, name, spec, log_file, descriptor)
    tell(f"coordctl run was started: process {supervisor}, its log: {log_file}")
    return _Launch(place, log_file, supervisor)


def _run(client: ControlClient, name: str, spec: StartSpec, log_file: str, descriptor: int) -> int | None:
    command = [sys.executable, "-m", "coord_control.cli", "run", "--detach", "--log-file", log_file]
    command += ["--", spec.script, *spec.args]
    environment = {**os.environ, "COORD_CONTROL": _address(client.settings.url), **spec.env}
    try:
        done = subprocess.run(
            command,
            cwd=spec.working_directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LAUNCH_SECONDS,
            pass_fds=[descriptor],
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise dg.Failure(f"job {name} cannot be started: {error}; look at start in its definition") from error
    if done.returncode != 0:
        where = spec.working_directory or os.getcwd()
        raise dg.Failure(
            f"job {name} cannot be started in {where}: coordctl run ended with exit code {done.returncode}; look at "
            f"start in its definition",
            metadata=entries({"error": (done.stderr or done.stdout).strip()}),
            allow_retries=False,
        )
    found = _SUPERVISOR.search(done.stdout)
    return None if found is None else int(found[1])


def _address(url: str) -> str:
    """The database as the driver finds it from another working directory."""
    scheme, separator, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not separator:
        return url
    return f"{scheme}:///{Path(path).expanduser().absolute()}"


def _log_file(name: str, spec: StartSpec) -> str:
    if spec.log_file is not None:
        return os.path.join(os.path.abspath(spec.working_directory or "."), spec.log_file)
    now = datetime.now(UTC)
    return str(state_folder() / "logs" / f"{name}-{now:%Y%m%dT%H%M%S}-{os.getpid()}.log")


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
