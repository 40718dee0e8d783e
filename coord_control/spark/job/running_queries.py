"""The queries that a job has started.

Threads: any.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coord_control.errors import CoordControlError
from coord_control.ids import Epoch, QueryName
from coord_control.protocol.records import Record
from coord_control.spark.queries.query import ManagedQuery

__all__ = ["RunningQueries"]


class RunningQueries(Mapping[QueryName, ManagedQuery]):
    """The started queries of one job, by name; also those that have ended since.

    Attributes:
        last_start: when the last one was started, in monotonic seconds.
    """

    def __init__(self) -> None:
        self._queries: dict[QueryName, ManagedQuery] = {}
        self.last_start: float | None = None

    def __getitem__(self, name: QueryName) -> ManagedQuery:
        return self._queries[name]

    def __iter__(self) -> Iterator[QueryName]:
        return iter(list(self._queries))

    def __len__(self) -> int:
        return len(self._queries)

    def all(self) -> list[ManagedQuery]:
        """Return the queries that there are at the moment."""
        return list(self._queries.values())

    @property
    def is_any_active(self) -> bool:
        """Whether a query runs, pauses, or will run again by itself."""
        return any(query.is_active for query in self.all())

    def first_error(self) -> CoordControlError | None:
        """Return what has ended a query for good."""
        return next((query.error for query in self.all() if query.error), None)

    def add(self, query: ManagedQuery) -> None:
        """Take a query that is about to start: what it writes and reports is found from now on."""
        self._queries[query.name] = query

    def started(self) -> None:
        """Note that a query has started."""
        self.last_start = time.monotonic()

    def remove(self, name: QueryName) -> None:
        """Remove a query that could not be started."""
        del self._queries[name]

    def append(self, name: QueryName, records: Sequence[Record]) -> None:
        """Make records of a query durable, in the lineage that it runs in.

        Raises:
            StoreError: they may be durable or not.
        """
        store = self._queries[name].store
        assert store is not None, "only queries with operators or live values have records"
        store.append(records)

    def fail(self, name: QueryName, error: CoordControlError) -> None:
        """Restart a query, or end it; one that is not there any more needs neither."""
        if (query := self._queries.get(name)) is not None:
            query.fail(error)

    def fail_all(self, error: CoordControlError) -> None:
        """End all queries."""
        for query in self.all():
            query.fail(error)

    def heard(self, query_id: str, epoch: int, progress: dict[str, Any]) -> None:
        """Take a progress report of Spark."""
        for query in self.all():
            if query.lineage.query_id == query_id:
                query.committed(Epoch(epoch), progress)

    def idle(self, query_id: str) -> None:
        """Spark reports that a query has nothing to do."""
        for query in self.all():
            if query.lineage.query_id == query_id:
                query.idle()
