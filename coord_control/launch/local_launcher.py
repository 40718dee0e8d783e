"""Starts ``coordctl run --detach SCRIPT`` on this machine.

Each slot has a file in the user's state folder. The launcher locks it, and the supervisor inherits the open file. So
the file is locked exactly while a launch is in progress or the supervisor is alive, whatever else was killed, and the
next launcher sees it. Its content is the newest launch.

A second driver from elsewhere (another machine, a terminal) does no harm: each driver first claims the next generation
on the job's storage; the older one is fenced off, exits with code 77 and is not restarted by its supervisor.

Threads: see :mod:`coord_control.launch.launcher`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from coord_control.control.settings import state_folder
from coord_control.driver_process import launch_environment
from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.errors import LaunchFailed
from coord_control.launch.launcher import Launch
from coord_control.launch.supervisors import living_supervisors
from coord_control.log_tail import log_tail

__all__ = ["LocalLauncher"]

_LAUNCH_SECONDS: Final = 120.0
_LOCK_TRIES: Final = 10
_LOCK_PAUSE_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.2
_SUPERVISOR: Final = re.compile(r"process (\d+)")
_LAUNCH: Final = TypeAdapter(Launch)


class LocalLauncher:
    """See :class:`~coord_control.launch.launcher.Launcher`.

    Args:
        environment: variables of the programs, in addition to those of this process.

    Raises:
        LaunchFailed: the folder of the slots cannot be created.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**launch_environment(), **environment}
        self._folder = state_folder() / "starts"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LaunchFailed(
                f"{self._folder} cannot be created ({error.strerror}). Set XDG_STATE_HOME to a writable folder"
            ) from error

    def launch(
        self, slot: str, program: Program, *, request: str, before: int = 0, log_file: str | None = None
    ) -> Launch | None:
        with self._locked(slot) as descriptor:
            if descriptor is None:
                return None
            launch = Launch(request, before, log_file or _new_log(slot))
            _write(descriptor, launch)  # before the launch, so that it is found by the caller's next attempt
            launch = replace(launch, process=self._run(program, launch.log_file, descriptor))
            _write(descriptor, launch)
            return launch

    def newest(self, slot: str) -> Launch | None:
        try:
            return _LAUNCH.validate_json(self._file(slot).read_bytes())
        except (FileNotFoundError, ValidationError):  # it may be just being written
            return None

    def has_begun(self, slot: str) -> bool:
        # A supervisor writes to its log before it starts a driver.
        launch = self.newest(slot)
        with contextlib.suppress(OSError):
            return launch is not None and os.stat(launch.log_file).st_size > 0
        return False

    def is_alive(self, slot: str) -> bool:
        try:
            with open(self._file(slot), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def stop(self, slot: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        asked: set[int] = set()
        while self.is_alive(slot):
            if time.monotonic() >= deadline:
                return False
            for pid in self._supervisors(slot):
                if pid not in asked:  # a second signal would kill the driver
                    asked.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
            time.sleep(_LOOK_SECONDS)
        return True

    def tail(self, slot: str, lines: int) -> str:
        launch = self.newest(slot)
        return "" if launch is None else log_tail(launch.log_file, lines)

    def _supervisors(self, slot: str) -> list[int]:
        # Not the process of the launch: it may be unknown, or have ended, and its id belong to another process.
        launch = self.newest(slot)
        return [each.pid for each in living_supervisors() if launch is not None and each.log_file == launch.log_file]

    @contextlib.contextmanager
    def _locked(self, slot: str) -> Iterator[int | None]:
        """Yield the locked file, to be inherited by the supervisor, or None if another process holds the lock."""
        descriptor = os.open(self._file(slot), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor if _lock(descriptor) else None
        finally:
            os.close(descriptor)  # the supervisor that has inherited it keeps the lock

    def _run(self, program: Program, log_file: str, descriptor: int) -> str | None:
        command = [sys.executable, "-m", "coord_control.cli", "run", "--detach", "--wait-for-job", "0s"]
        command += ["--log-file", log_file, *program.options, "--", program.script, *program.args]
        try:
            done = subprocess.run(
                command,
                cwd=program.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LAUNCH_SECONDS,
                pass_fds=[descriptor],
                start_new_session=True,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchFailed(str(error)) from error
        if done.returncode != 0:
            problem = f"coordctl run {program.script} in {program.folder} ended with exit code {done.returncode}"
            raise LaunchFailed(problem, (done.stderr or done.stdout).strip())
        found = _SUPERVISOR.search(done.stdout)
        return None if found is None else found[1]

    def _file(self, slot: str) -> Path:
        return self._folder / slot


def _new_log(slot: str) -> str:
    now = datetime.now(UTC)
    return str(state_folder() / "logs" / f"{slot}-{now:%Y%m%dT%H%M%S}-{os.getpid()}.log")


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
