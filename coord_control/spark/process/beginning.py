"""That a driver's job has begun: said to whoever runs it, and remembered for the bootstrap.

Between the start of a driver and its first results there are only Spark's own warnings, and nobody who looks at a
terminal can tell a job that runs from one that hangs. So under ``coordctl run`` a job says on standard error that it
is there, with its real name in the commands that look at it and stop it. Without ``coordctl run`` a script's output
is its own.

Threading: a script makes its jobs on any thread; the bootstrap asks when the script has ended.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

from coord_control.driver_process import SUPERVISED_VARIABLE

__all__ = ["has_begun", "tell"]

_begun: Final = threading.Event()


def has_begun() -> bool:
    """Say whether this process has ever had a job."""
    return _begun.is_set()


def tell(job: str, generation: int, *, is_visible: bool) -> None:
    """Say that a job has begun.

    Args:
        is_visible: whether the commands find it: it has a control plane.
    """
    _begun.set()
    if os.environ.get(SUPERVISED_VARIABLE):
        ways = f"; look: coordctl show {job}; stop: coordctl stop {job}" if is_visible else " without a control plane"
        print(f"job {job} runs, generation {generation}{ways}", file=sys.stderr, flush=True)
