"""Queries over many jobs at once, for sensors and dashboards.

Threads: any; every call is a separate transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta

from coord_control.control.client.database_connection import DatabaseConnection
from coord_control.storage.records import Change, Fleet, FleetCounts, SubtaskRecord

__all__ = ["FleetReader"]


class FleetReader:
    """The part of a client that reads many jobs at once."""

    _connection: DatabaseConnection

    def changes(self, after: int = 0, *, limit: int = 200, jobs: Collection[str] | None = None) -> tuple[Change, ...]:
        """Return later changes: finished checkpoints and savepoints, and recoveries, in the order of their commits.

        A reader that continues from the ``sequence`` of the last change misses nothing and sees nothing twice. If a
        "failed" checkpoint turns out to be complete, it is reported again as completed.

        Args:
            after: the last known sequence, or 0 for everything that is kept.
            limit: how many changes to return at most.
            jobs: only the changes of these jobs.
        """
        return self._connection.call(lambda store: store.changes.list(after, limit=limit, jobs=jobs))

    def newest_change(self) -> int:
        """Return the sequence of the newest change, or 0 if there is none. No change up to it can still appear."""
        return self._connection.call(lambda store: store.changes.newest())

    def subtasks_of(self, checkpoints: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[SubtaskRecord, ...]]:
        """Return the subtasks of many checkpoints, by job and id; empty for a checkpoint that does not exist."""
        wanted = tuple(checkpoints)
        return self._connection.call(lambda store: store.checkpoints.subtasks_of(wanted))

    def fleet(self, jobs: Collection[str] | None = None, *, window: timedelta = timedelta(hours=1)) -> Fleet:
        """Return the state of these jobs, or of all, with a fixed number of statements for any number of jobs.

        Args:
            jobs: the names of the jobs; unknown ones are left out.
            window: the period over which recoveries are counted and lags are compared.
        """
        return self._connection.call(lambda store: store.fleets.read(jobs, window=window))

    def fleet_counts(
        self, jobs: Collection[str] | None = None, *, window: timedelta = timedelta(hours=1)
    ) -> FleetCounts:
        """Count events per job, in these jobs or in all; as :meth:`fleet`, with a fixed number of statements.

        Args:
            window: the period over which failures, recoveries and finished commands are counted.
        """
        return self._connection.call(lambda store: store.fleets.counts(jobs, window=window))
