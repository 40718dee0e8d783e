"""The captured queries and measurements of a checkpoint in progress: the source of its statistics and metadata.

Threads: used by the checkpoint service's thread only.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, OperatorSnapshot, QuerySnapshot, Trigger
from coord_control.durable.job_folder.lineage import LineageOperator
from coord_control.ids import NO_CHECKPOINT, Epoch, Generation, OperatorUid, QueryName
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.records import LiveInForce, LiveValue
from coord_control.protocol.scheduler.scheduler import StartCheckpoint
from coord_control.protocol.scheduler.tickets import CheckpointOutcome
from coord_control.protocol.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    QueryStatistics,
    offsets_within_limit,
    operator_statistics,
    to_json,
)

__all__ = ["CheckpointContents", "JobDescription", "Position"]


@dataclass(frozen=True, slots=True)
class JobDescription:
    """What the metadata of a checkpoint records about its job.

    Attributes:
        live: returns the job's live values, as they are accepted.
    """

    job: str
    generation: Generation
    spark_version: str
    operator: Callable[[OperatorUid], LineageOperator]
    live: Callable[[], Mapping[str, LiveValue]] = dict


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query is cut.

    Attributes:
        boundary: the last committed epoch in the checkpoint.
        planned: Spark's last planned epoch; None if the core cuts the query.
        cuts: the cuts of its operators.
        planned_live: the live values of the planned epoch, if there is one that has asked for them.
    """

    boundary: Epoch
    planned: Epoch | None
    cuts: tuple[OperatorCut, ...] = ()
    planned_live: Mapping[str, LiveInForce] | None = None


class CheckpointContents:
    """The captured and pinned queries of one checkpoint, and its measurements.

    Args:
        start: the scheduler's order to start it.
        job: what its metadata records about the job.

    Attributes:
        barrier: the id that coordinators see; NO_CHECKPOINT before they are asked for their states.
        metadata_bytes: the size of its metadata; 0 before it is written.
    """

    def __init__(self, start: StartCheckpoint, job: JobDescription) -> None:
        self.barrier = NO_CHECKPOINT
        self.metadata_bytes = 0
        self._checkpoint = start.checkpoint
        self._request = start.ticket.request
        self._job = job
        self._began = time.monotonic()
        self._triggered_at = datetime.datetime.now(datetime.UTC)
        self._requested_at = self._triggered_at - datetime.timedelta(seconds=self._began - start.ticket.requested_at)
        self._positions: dict[QueryName, Position] = {}
        self._snapshots: dict[QueryName, QuerySnapshot] = {}  # of pinned queries
        self._statistics: dict[QueryName, QueryStatistics] = {}

    def clear(self) -> None:
        """Forget the earlier cut, because all queries are cut again."""
        self._positions = {}
        self._snapshots = {}
        self._statistics = {}

    def reached(self, query: QueryName, position: Position) -> None:
        """Record that a query has reached its cut."""
        self._positions[query] = position
        self._statistics[query] = QueryStatistics(
            query=query,
            boundary=position.boundary,
            boundary_seconds=time.monotonic() - self._began,
            operators=tuple(operator_statistics(each) for each in position.cuts),
        )

    def position(self, query: QueryName) -> tuple[Position, QueryStatistics]:
        """Return where a query is cut, and its statistics so far."""
        return self._positions[query], self._statistics[query]

    def pinned(self, snapshot: QuerySnapshot, statistics: QueryStatistics) -> None:
        """Record that the files of a query are pinned."""
        live = self._positions[statistics.query].planned_live
        self._snapshots[statistics.query] = snapshot.model_copy(update={"planned_live": live and dict(live)})
        self._statistics[statistics.query] = statistics

    def measured(self, queries: Sequence[QueryStatistics]) -> None:
        """Record the core's measurements of queries that it has not captured."""
        for query in queries:
            self._statistics.setdefault(query.query, query)

    def statistics(self, outcome: CheckpointOutcome | None = None) -> CheckpointStatistics:
        """Return its statistics so far.

        Args:
            outcome: None while it is in progress.
        """
        status = CheckpointStatus.IN_PROGRESS
        if outcome is not None:
            status = CheckpointStatus.COMPLETED if outcome.reason is None else CheckpointStatus.FAILED
        return CheckpointStatistics(
            checkpoint=self._checkpoint,
            kind=self._request.kind,
            triggered_at_seconds=self._triggered_at.timestamp(),
            periodic=self._request.periodic,
            label=self._request.label,
            key=self._request.key,
            cause=self._request.cause,
            requested_by=self._request.requested_by,
            status=status,
            duration_seconds=None if outcome is None else time.monotonic() - self._began,
            reason=outcome.reason if outcome is not None else None,
            message=outcome.message if outcome is not None else "",
            path=outcome.path if outcome is not None else None,
            metadata_bytes=self.metadata_bytes,
            queries=self._query_statistics(),
        )

    def metadata(self) -> CheckpointMetadata:
        """Return the metadata to write once every query is pinned."""
        return CheckpointMetadata(
            checkpoint=self._checkpoint,
            kind=self._request.kind.value,
            job=self._job.job,
            label=self._request.label,
            generation=self._job.generation,
            barrier=self.barrier,
            trigger=Trigger(
                cause=self._request.cause,
                key=self._request.key,
                requested_at=self._requested_at,
                details={"requested_by": self._request.requested_by} if self._request.requested_by else {},
            ),
            triggered_at=self._triggered_at,
            completed_at=datetime.datetime.now(datetime.UTC),
            queries=dict(self._snapshots),
            operators={
                cut.operator: OperatorSnapshot.of(query, self._job.operator(cut.operator), cut)
                for query in self._snapshots
                for cut in self._positions[query].cuts
            },
            # Later than every cut, so no query has seen a value that is not in it.
            live=dict(self._job.live()),
            statistics=to_json(self.statistics()),
        )

    def _query_statistics(self) -> tuple[QueryStatistics, ...]:
        parts = self._statistics.values()
        offsets = offsets_within_limit({part.query: part.offsets for part in parts})
        return tuple(replace(part, offsets=offsets[part.query]) for part in parts)
