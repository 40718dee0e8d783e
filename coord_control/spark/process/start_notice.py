"""Announce that a driver's job has started: on standard error, to the supervisor, and to the bootstrap.

Between the start of a driver and its first results only Spark prints warnings, so on a terminal a running job looks
like one that hangs. Under ``coordctl run`` a job therefore prints its name and the commands that show and stop it.
Without ``coordctl run`` the output of a script is left alone.

Threads: jobs may be made on any thread; the bootstrap reads the flag when the script has ended.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

from coord_control.driver_process import SUPERVISED_VARIABLE
from coord_control.driver_report import DriverReport, StartedJob
from coord_control.spark.process.lifeline import report

__all__ = ["PROCESS_STARTED", "announce", "has_started"]

#: By the monotonic clock; the bootstrap imports this before it reads the script.
PROCESS_STARTED: Final = time.monotonic()
_started: Final = threading.Event()


def has_started() -> bool:
    """Return whether a job has ever started in this process."""
    return _started.is_set()


def announce(job: str, generation: int, *, control: str | None) -> None:
    """Record that a job has started, and print it under ``coordctl run``.

    Args:
        control: the address of its control database, where coordctl finds it; None without one.
    """
    _started.set()
    if control is not None:
        report(DriverReport(jobs=(StartedJob(name=job, generation=generation, control=control),)))
    if os.environ.get(SUPERVISED_VARIABLE):
        hint = (
            ", without a control plane"
            if control is None
            else f"; show it: coordctl show {job}; stop it: coordctl stop {job}"
        )
        print(f"job {job} is running, generation {generation}{hint}", file=sys.stderr, flush=True)
