"""What one query of a job runs, and what it needs of its job.

Threads: values, and an interface that is called by those of the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.job_folder.lineage import Lineage
from coord_control.ids import OperatorUid, QueryName
from coord_control.protocol.status import QueryTarget
from coord_control.spark.queries.restart_policy import RestartPolicy
from coord_control.spark.queries.rolled_back_sink import RolledBackSink

__all__ = ["QueryDefinition", "QueryOwner"]


@dataclass(frozen=True, slots=True)
class QueryDefinition:
    """What a query runs, and where.

    Attributes:
        writer: with the query's name and place.
        target: the table that it writes to, and its columns.
        sink: its file sink, if that was set back.
        store: of the records of its operators; None if it has none.
        policy: how it is restarted in place.
    """

    name: QueryName
    writer: DataStreamWriter
    lineage: Lineage
    operators: Sequence[OperatorUid]
    store: EpochStore | None
    policy: RestartPolicy
    target: QueryTarget = field(default_factory=QueryTarget)
    sink: RolledBackSink | None = None


class QueryOwner(Protocol):
    """The job, for one of its queries. Called by the query's thread, and by those that start and hear it."""

    def verify(self) -> None:
        """Check on the storage that the job is still this driver's: otherwise commits may be another one's.

        Raises:
            Fenced: a newer driver has claimed the job.
        """

    def verify_recent(self) -> None:
        """Check that the job was this driver's a moment ago, without reading the storage if it was just read.

        A successor waits for longer than that before it reads or runs anything, so what this driver's own run has
        committed by now is not the successor's.

        Raises:
            Fenced: a newer driver has claimed the job.
        """

    def verify_alone(self) -> None:
        """Check that no driver that this one has replaced still runs on this machine.

        Raises:
            OlderDriverAlive: one does.
        """

    def start_coordinators(self, operators: Sequence[OperatorUid]) -> None:
        """Start them: the core has recovered, and Spark starts next."""

    def drain_coordinators(self, operators: Sequence[OperatorUid]) -> None:
        """Wait until they have seen what was committed."""

    def query_changed(self) -> None:
        """Take note that the state of a query has changed."""
