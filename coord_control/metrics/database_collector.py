"""The control database as Prometheus families, for ``coordctl exporter``: every job as last reported by its driver.

A reading takes a fixed number of statements for any number of jobs, and is cached for a few seconds for all scrapes. If
the database cannot be read, the result is ``coord_control_database_up 0`` without any jobs, because old values would be
misleading. For the same reason values that change all the time are left out if the job's driver is not alive.

Threads: one at a time.
"""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from coord_control.control.client.fleet_reader import FleetReader
from coord_control.errors import CoordControlError
from coord_control.metrics.database_jobs import add_counts, add_job
from coord_control.metrics.families import Families, Family
from coord_control.metrics.subtasks import choose
from coord_control.storage.records import Fleet, FleetCounts, JobState

__all__ = ["DatabaseCollector"]

_log = logging.getLogger("coord_control.metrics")


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float  # monotonic seconds
    seconds: float
    found: tuple[Fleet, FleetCounts] | None  # None: it failed


class DatabaseCollector:
    """Reads a control database.

    Args:
        client: should time out within a few seconds, because the scrape waits for it.
        jobs: the jobs to read, or None for all.
        cache_seconds: how long a reading is reused.
        clock: a monotonic clock in seconds, for tests.
    """

    def __init__(
        self,
        client: FleetReader,
        jobs: Collection[str] | None = None,
        *,
        cache_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._jobs = None if jobs is None else tuple(jobs)
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._reading: _Reading | None = None
        self._failures = 0
        self._version = importlib.metadata.version("coord-control")

    def page(self, subtasks: int = 0) -> Iterable[Family]:
        """Return the families of a scrape; never raises because of the database.

        Args:
            subtasks: the maximum number of individual subtasks.
        """
        reading = self._current()
        families = Families()
        families.info("exporter_info", self._version, platform.python_version())
        families.add("database_up", reading.found is not None)
        families.add("database_failures_total", self._failures)
        if reading.found is not None:
            fleet, counts = reading.found
            families.add("database_read_duration_seconds", reading.seconds)
            families.add("database_read_timestamp_seconds", fleet.now.timestamp())
            _add_fleet(families, fleet)
            add_counts(families, fleet, counts)
            if subtasks:
                _add_subtasks(families, fleet, subtasks)
        return families.collect()

    def targets(self) -> list[dict[str, Any]] | None:
        """Return where live drivers serve their metrics, in the format of Prometheus's HTTP service discovery.

        Return None if the database cannot be read; Prometheus then keeps the last targets.
        """
        reading = self._current()
        if reading.found is None:
            return None
        alive = [each.job for each in reading.found[0].jobs if each.job.is_alive]
        # A plain label would hide the label of the same name that each metric already has.
        return [
            {"targets": [job.live.metrics], "labels": {"__meta_coord_control_job_name": job.name}}
            for job in alive
            if job.live is not None and job.live.metrics
        ]

    def _current(self) -> _Reading:
        now = self._clock()
        if self._reading is None or now - self._reading.at >= self._cache_seconds:
            self._reading = self._read(now)
        return self._reading

    def _read(self, began: float) -> _Reading:
        found = None
        try:
            found = (self._client.fleet(self._jobs), self._client.fleet_counts(self._jobs))
        except CoordControlError as error:
            self._failures += 1
            if self._reading is None or self._reading.found is not None:  # once per outage
                _log.warning("x the control database cannot be read: %s", error)
        now = self._clock()
        return _Reading(now, now - began, found)


def _add_fleet(families: Families, fleet: Fleet) -> None:
    counted = Counter((each.job.state, each.job.is_alive) for each in fleet.jobs)
    for state in JobState:
        for is_alive in (True, False):
            families.add("fleet_jobs", counted[state, is_alive], state.value, str(is_alive).lower())
    for each in fleet.jobs:
        add_job(families.of(each.job.name), each)


def _add_subtasks(families: Families, fleet: Fleet, limit: int) -> None:
    # The limit is for all jobs together: the whole scrape must stay small.
    alive = [each.job for each in fleet.jobs if each.job.is_alive]
    operators = [(job.name, operator) for job in alive for operator in job.operators]
    chosen, left_out = choose(((job, operator.uid, operator.gateways) for job, operator in operators), limit)
    query_of = {(job, operator.uid): operator.query for job, operator in operators}
    for job, uid, gateway in chosen:
        subtask = families.of(job, query_of[job, uid], uid, str(gateway.subtask))
        subtask.add("fleet_subtask_gateway_open", gateway.is_open)
        subtask.add("fleet_subtask_blocked_events", gateway.blocked)
        subtask.add("fleet_subtask_events_blocked_total", gateway.blocked_total)
        subtask.add("fleet_subtask_blocked_seconds_total", gateway.blocked_seconds)
        subtask.add("fleet_subtask_mailbox_events", gateway.mailbox)
    families.add("fleet_subtasks_left_out", left_out)
