"""What a client can see of many jobs at once, and follow: the reading that sensors and dashboards do.

Threads: any; every call is one transaction of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta

from coord_control.control.client.database_connection import Connection
from coord_control.storage.records import Change, Fleet, FleetCounts, SubtaskRecord

__all__ = ["FleetReader"]


class FleetReader:
    """The part of a client that is about all jobs."""

    _connection: Connection

    def changes(self, after: int = 0, *, limit: int = 200, jobs: Collection[str] | None = None) -> tuple[Change, ...]:
        """What has happened since: checkpoints and savepoints that ended, and recoveries, as they were committed.

        A reader that goes on with the ``sequence`` of the last one it was given misses nothing and is given nothing
        twice. A checkpoint that was thought to have failed and turns out to be complete comes once more, as that.

        Args:
            after: the last sequence that is known; 0: from the beginning of what is kept.
            limit: how many at most.
            jobs: of these only.
        """
        return self._connection.call(lambda store: store.changes.list(after, limit=limit, jobs=jobs))

    def newest_change(self) -> int:
        """The sequence of the newest change; 0: there was none. Nothing up to it can still appear."""
        return self._connection.call(lambda store: store.changes.newest())

    def subtasks_of(self, checkpoints: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[SubtaskRecord, ...]]:
        """The part of every subtask in many checkpoints, by job and number; empty for what is not there."""
        wanted = tuple(checkpoints)
        return self._connection.call(lambda store: store.checkpoints.subtasks_of(wanted))

    def fleet(self, jobs: Collection[str] | None = None, *, window: timedelta = timedelta(hours=1)) -> Fleet:
        """How these jobs are, or all: as cheap as possible, a fixed number of statements for any number of jobs.

        Args:
            jobs: by name; those that are not there are left out.
            window: for how long back recoveries are counted and lags are compared.
        """
        return self._connection.call(lambda store: store.fleets.read(jobs, window=window))

    def fleet_counts(
        self, jobs: Collection[str] | None = None, *, window: timedelta = timedelta(hours=1)
    ) -> FleetCounts:
        """What there was how often in these jobs, or in all; as :meth:`fleet`, a fixed number of statements.

        Args:
            window: for how long back failures, recoveries and finished commands are counted.
        """
        return self._connection.call(lambda store: store.fleets.counts(jobs, window=window))
