"""Tells the control databases of the jobs of a supervisor why they have no driver.

A driver that cannot start says nothing to the database, because its job does not get that far. Without the supervisor's
word those that wait for the next driver would wait for nothing, and a job that cannot start would look like one that is
about to.

Threads: the supervisor's; each report has a thread, because a connection may hang.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Final

from coord_control.control.settings import ControlSettings
from coord_control.driver_report import StartedJob
from coord_control.errors import CoordControlError
from coord_control.storage.store import ControlStore

__all__ = ["JobReports"]

#: How long the end of a supervisor waits for the databases.
_LAST_SECONDS: Final = 10.0


class JobReports:
    """Reports the jobs of one supervisor."""

    def __init__(self) -> None:
        self._jobs: dict[str, StartedJob] = {}

    def ended(self, jobs: Sequence[StartedJob]) -> None:
        """Note the jobs of a driver that has ended."""
        self._jobs |= {each.name: each for each in jobs}

    def not_started(self, reason: str, *, is_final: bool) -> None:
        """Report that no driver runs, and that none will be started if it ``is_final``."""
        threads = [
            threading.Thread(target=_report, args=(job, reason, is_final), name="coord-job-report", daemon=True)
            for job in self._jobs.values()
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _LAST_SECONDS
        for thread in threads if is_final else ():
            thread.join(max(0.0, deadline - time.monotonic()))


def _report(job: StartedJob, reason: str, is_final: bool) -> None:
    # Without it the job counts as dead some minutes later.
    with contextlib.suppress(CoordControlError):
        store = ControlStore(ControlSettings.load(job.control).open_database("coordctl run"))
        with contextlib.closing(store):
            store.jobs.driver_not_started(job.name, job.generation, reason, is_final=is_final)
