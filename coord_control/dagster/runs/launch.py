"""Launching ``coordctl run --detach SCRIPT`` once, and knowing whether a supervisor launched here is still alive.

The launcher locks a file in the user's state folder, and the supervisor inherits the open file. So the file is locked
exactly while a launch is in progress or the supervisor is alive, whatever else was killed, and the next launcher sees
it. The content of the file identifies the request, so that a repeated step finds its own launch.

A second driver from elsewhere (another machine, a terminal) does no harm: each driver first claims the next generation
on the job's storage; the older one is fenced off, exits with code 77 and is not restarted by its supervisor.

Threads: blocks the step's thread.
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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import absolute_url, state_folder
from coord_control.dagster.metadata import entries
from coord_control.dagster.spec import StartSpec
from coord_control.driver_process import launch_environment

__all__ = ["Launch", "LaunchPlace"]

_LAUNCH_SECONDS: Final = 120.0
_LOCK_TRIES: Final = 10
_LOCK_PAUSE_SECONDS: Final = 0.05
_SUPERVISOR: Final = re.compile(r"process (\d+)")


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a supervisor.

    Attributes:
        request: identifies the step; the same in all its attempts.
        before: the newest generation of the job's driver before the launch.
        log_file: the log of the supervisor and its drivers.
        supervisor: its process id, or None if it is not known yet.
    """

    request: str
    before: int
    log_file: str
    supervisor: int | None = None


_LAUNCH: Final = TypeAdapter(Launch)


class LaunchPlace:
    """The file that is locked while a job is launched from here, and while its supervisor is alive.

    Raises:
        dagster.Failure: the folder of the file cannot be created.
    """

    def __init__(self, client: ControlClient, name: str) -> None:
        self._client = client
        self._name = name
        database = hashlib.sha256(client.url.encode()).hexdigest()[:12]  # jobs of one name in two databases
        folder = state_folder() / "starts"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise dg.Failure(
                f"job {name} cannot be started: {folder} cannot be created ({error.strerror}). Set XDG_STATE_HOME to a "
                "writable folder"
            ) from error
        self._file = folder / f"{name}-{database}"

    def is_occupied(self) -> bool:
        """Return whether a launch is in progress or a supervisor is alive."""
        try:
            with open(self._file, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def newest(self) -> Launch | None:
        """Return the newest launch from here, or None if there was none or it is just being written."""
        try:
            return _LAUNCH.validate_json(self._file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def launch(self, spec: StartSpec, *, request: str, before: int) -> Launch | None:
        """Launch a supervisor, or return None if there is one already.

        Raises:
            dagster.Failure: the launch failed; contains the supervisor's output.
        """
        with self._locked() as descriptor:
            if descriptor is None:
                return None
            launch = Launch(request, before, self._log_file(spec))
            _write(descriptor, launch)  # before the launch, so that a step killed right after it finds it
            launch = replace(launch, supervisor=self._run(spec, launch.log_file, descriptor))
            _write(descriptor, launch)
            return launch

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Yield the locked file, to be inherited by the supervisor, or None if another process holds the lock."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor if _lock(descriptor) else None
        finally:
            os.close(descriptor)  # the supervisor that has inherited it keeps the lock

    def _run(self, spec: StartSpec, log_file: str, descriptor: int) -> int | None:
        command = [sys.executable, "-m", "coord_control.cli", "run", "--detach", "--wait-for-job", "0s", "--log-file"]
        command += [log_file, "--", spec.script, *spec.args]
        try:
            done = subprocess.run(
                command,
                cwd=spec.working_directory,
                env={**launch_environment(), "COORD_CONTROL": absolute_url(self._client.settings.url), **spec.env},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LAUNCH_SECONDS,
                pass_fds=[descriptor],
                start_new_session=True,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise dg.Failure(f"job {self._name} cannot be started: {error}. Check start in its definition") from error
        if done.returncode != 0:
            where = spec.working_directory or os.getcwd()
            raise dg.Failure(
                f"job {self._name} cannot be started: coordctl run {spec.script} in {where} ended with exit code "
                f"{done.returncode}. Its output is in the metadata of this failure. Check start in the job's "
                "definition",
                metadata=entries({"error": (done.stderr or done.stdout).strip()}),
                allow_retries=False,
            )
        found = _SUPERVISOR.search(done.stdout)
        return None if found is None else int(found[1])

    def _log_file(self, spec: StartSpec) -> str:
        if spec.log_file is not None:
            return os.path.join(os.path.abspath(spec.working_directory or "."), spec.log_file)
        now = datetime.now(UTC)
        return str(state_folder() / "logs" / f"{self._name}-{now:%Y%m%dT%H%M%S}-{os.getpid()}.log")


def _lock(descriptor: int) -> bool:
    # Retry: the lock may be held for a moment by a process that only checks it.
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_SECONDS)
    return False


def _write(descriptor: int, launch: Launch) -> None:
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, _LAUNCH.dump_json(launch), 0)
