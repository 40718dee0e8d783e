"""Starting and stopping the supervisors of an upgrade, each once, wherever the caller is killed.

The log of a supervisor has its own name, so its file tells how far it is: it is made before the launch, the
supervisor is registered with it before it writes (:mod:`coord_control.control.supervisors`), and it writes before it
starts a driver. An empty log without a supervisor, some time later, was never launched. Should two be launched all the
same, one of their drivers is fenced off, and its supervisor ends.

Threads: the command's thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from coord_control.control.supervisors import SupervisorRecord, living_supervisors
from coord_control.driver_process import (
    CHECK_VARIABLE,
    DriverProcess,
    QueueInbox,
    driver_environment,
    launch_environment,
)
from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.log_tail import log_tail
from coord_control.supervisor import DriverEnded

__all__ = ["ProgramLaunch", "run_check"]

#: How long a launched process may take until it is registered: it imports a few packages before.
_REGISTERED_SECONDS: Final = 30.0
#: How long a supervisor may take to end: its grace period, and some more for the driver's JVM.
_STOP_SECONDS: Final = 90.0
_LOOK_SECONDS: Final = 0.2
_TAIL_LINES: Final = 12


class ProgramLaunch:
    """The supervisor of one program of an upgrade.

    Args:
        log_file: its log; of this supervisor alone.
        environment: in addition to that of this process.
    """

    def __init__(self, program: Program, log_file: Path, environment: Mapping[str, str]) -> None:
        self._program = program
        self.log_file = log_file
        self._environment = {**launch_environment(), **environment}

    def launch(self, options: Sequence[str] = ()) -> None:
        """Start it, unless it has been started before.

        Args:
            options: of ``coordctl run``, in addition to those of the program.

        Raises:
            OSError: no process can be started, or the log cannot be written.
            subprocess.CalledProcessError: it cannot begin; ``stderr`` says why.
        """
        while self._was_begun():
            if self._has_written() or self.supervisors():
                return
            if time.time() - self.log_file.stat().st_mtime > _REGISTERED_SECONDS:
                break
            time.sleep(_LOOK_SECONDS)
        self.log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log_file.touch(0o600)
        program = self._program
        command = [sys.executable, "-m", "coord_control.cli", "run", "--detach", "--wait-for-job", "0s"]
        command += ["--log-file", str(self.log_file), *program.options, *options, "--", program.script, *program.args]
        subprocess.run(
            command,
            cwd=program.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            check=True,
        )

    def supervisors(self) -> list[SupervisorRecord]:
        """Return the supervisors with this log that live."""
        return [each for each in living_supervisors() if each.log_file == str(self.log_file)]

    def stop(self) -> bool:
        """End them with their drivers, cleanly within their grace period; return whether they have ended."""
        deadline = time.monotonic() + _STOP_SECONDS
        asked: set[int] = set()
        while living := self.supervisors():
            if time.monotonic() >= deadline:
                return False
            for each in living:
                if each.pid not in asked:  # a second signal would kill the driver
                    asked.add(each.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGTERM)
            time.sleep(_LOOK_SECONDS)
        return True

    def tail(self) -> str:
        """Return the last lines of the log."""
        return log_tail(self.log_file, _TAIL_LINES)

    def _was_begun(self) -> bool:
        return self.log_file.exists()

    def _has_written(self) -> bool:
        return self.log_file.stat().st_size > 0


def run_check(program: Program, check: str, log_file: Path, seconds: float) -> DriverEnded:
    """Run a program that only compares itself with a checkpoint; it ends with this process at the latest.

    Args:
        check: what it is compared with, for ``spark/job/program_check.py``.
        log_file: for its output.
        seconds: how long it may take; then it is killed.

    Raises:
        OSError: no process can be started, or the log cannot be written.
    """
    command = [sys.executable, "-m", "coord_control.spark.process.bootstrap", program.script, *program.args]
    options = dict(zip(program.options[::2], program.options[1::2], strict=True))
    environment = driver_environment(launch_environment(), master=options.get("--master"))
    environment |= {CHECK_VARIABLE: check, "COORD_METRICS": "none"}
    log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    inbox = QueueInbox()
    with open(log_file, "ab") as output:
        driver = DriverProcess(command, environment, inbox, output.fileno(), program.folder)
        driver.start()
        ended = None
        try:
            ended = inbox.get(seconds)
        finally:
            if ended is None:
                driver.kill()
    if isinstance(ended, DriverEnded):
        return ended
    return DriverEnded(-signal.SIGKILL, f"it has not started its queries within {seconds:g} s")
