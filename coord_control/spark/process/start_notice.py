"""Announce on standard error that a driver's job has started, and remember it for the bootstrap.

Between the start of a driver and its first results only Spark prints warnings, so on a terminal a running job looks
like one that hangs. Under ``coordctl run`` a job therefore prints its name and the commands that show and stop it.
Without ``coordctl run`` the output of a script is left alone.

Threads: jobs may be made on any thread; the bootstrap reads the flag when the script has ended.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

from coord_control.driver_process import SUPERVISED_VARIABLE

__all__ = ["announce", "has_started"]

_started: Final = threading.Event()


def has_started() -> bool:
    """Return whether a job has ever started in this process."""
    return _started.is_set()


def announce(job: str, generation: int, *, is_visible: bool) -> None:
    """Record that a job has started, and print it under ``coordctl run``.

    Args:
        is_visible: whether coordctl can find the job, which needs a control plane.
    """
    _started.set()
    if os.environ.get(SUPERVISED_VARIABLE):
        hint = (
            f"; show it: coordctl show {job}; stop it: coordctl stop {job}"
            if is_visible
            else ", without a control plane"
        )
        print(f"job {job} is running, generation {generation}{hint}", file=sys.stderr, flush=True)
