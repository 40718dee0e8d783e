"""Runs a program that only compares itself with a checkpoint.

Threads: the caller's.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from coord_control.driver_process import (
    CHECK_VARIABLE,
    DriverProcess,
    QueueInbox,
    driver_environment,
    launch_environment,
)
from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.supervisor import DriverEnded

__all__ = ["run_check"]


def run_check(
    program: Program, check: str, log_file: Path, seconds: float, environment: Mapping[str, str]
) -> DriverEnded:
    """Run a program that only compares itself with a checkpoint; it ends with this process at the latest.

    Args:
        check: what it is compared with, for ``spark/job/program_check.py``.
        log_file: for its output.
        seconds: how long it may take; then it is killed.
        environment: variables in addition to those of this process.

    Raises:
        OSError: no process can be started, or the log cannot be written.
    """
    command = [sys.executable, "-m", "coord_control.spark.process.bootstrap", program.script, *program.args]
    options = dict(zip(program.options[::2], program.options[1::2], strict=True))
    variables = driver_environment({**launch_environment(), **environment}, master=options.get("--master"))
    variables |= {CHECK_VARIABLE: check, "COORD_METRICS": "none"}
    log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    inbox = QueueInbox()
    with open(log_file, "ab") as output:
        driver = DriverProcess(command, variables, inbox, output.fileno(), program.folder)
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
