"""Starting the queries of a job: at once, or together after a restore.

While a restore is pending, starting a query only checks it: its declaration against the checkpoint, its states against
the models, its start and its plan by Spark itself, in lineages that are not in use yet. When all queries of the
checkpoint have been checked the restore is committed, the sinks are set back if that was asked for, and the queries
start. So whatever is refused before has changed nothing. A restore that took place without the program is pending until
a query has run in one of its lineages, so it can be undone after a refusal.
Where queries of the checkpoint may be left out (``allow_non_restored_state``), the program has to say that there are no
others: by waiting for the job's end, or by asking for a checkpoint. In the same way a program that is only checked
(:mod:`.program_check`) says that it has started all of its queries; or by using the handle of one.

Threads: those of the job's methods, which take turns.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.lineage import (
    Lineage,
    LineageOperator,
    has_location,
    is_same_place,
    open_lineage,
    read_query_id,
    recorded_lineage,
)
from coord_control.durable.job_folder.lineage_record import query_folder
from coord_control.errors import (
    AdoptedQueryRunning,
    CheckpointLocationConflict,
    DuplicateOperator,
    InvalidName,
    PlanRefused,
    QueryNotRestored,
    QueryNotStarted,
)
from coord_control.errors.restores import UNDO
from coord_control.ids import OperatorUid, QueryName, is_valid_name
from coord_control.spark.hadoop_files import absolute
from coord_control.spark.job.job_life import JobLife
from coord_control.spark.job.pending_restore import AppliedRestore, PendingRestore, declared_query
from coord_control.spark.job.program_check import program_check
from coord_control.spark.job.query_launch import QueryLaunch
from coord_control.spark.job.sink_rollback import SinkRollback
from coord_control.spark.queries.plan_check import check_plan
from coord_control.spark.queries.start_check import check_start
from coord_control.spark.queries.writers import own_checkpoint, spark_name

__all__ = ["QueryStart", "QueryStarts"]

_log = logging.getLogger("coord_control.job")

_START_CHECK: Final = "start-check"


@dataclass(frozen=True, slots=True)
class QueryStart:
    """A query as the program has declared it.

    Attributes:
        checkpoint_location: an existing Spark checkpoint directory to adopt.
        table: the table that it writes to; None if the writer says where.
    """

    name: QueryName
    writer: DataStreamWriter
    operators: Sequence[OperatorUid]
    checkpoint_location: str | None
    table: str | None


class QueryStarts:
    """Starts the queries of one job.

    Args:
        launch: starts a query that was checked.
        restore: what the program has asked for.
    """

    def __init__(self, launch: QueryLaunch, life: JobLife, restore: PendingRestore | None) -> None:
        self._launch = launch
        self._life = life
        self._wanted = restore
        self._check_only = program_check()
        self._place, self._declared, self._queries = launch.place, launch.declared, launch.queries
        self._sinks = SinkRollback(launch.place, launch.spark, launch.owner.verify, launch.owner.verify_alone)
        self._waiting: dict[QueryName, tuple[QueryStart, Lineage | None, _WaitingQuery]] = {}

    @functools.cached_property
    def _restore(self) -> PendingRestore | None:
        """Return what the queries wait for, as it was before the first one was started."""
        return self._wanted or AppliedRestore.find(self._place.files, self._launch.job, self._place.folder)

    def check_name(self, name: QueryName) -> None:
        """Check that a query of this name can be started.

        Raises:
            InvalidName, DuplicateOperator: it cannot, or was started already, or waits for the restore.
        """
        if not is_valid_name(name):
            raise InvalidName("query", name)
        if name in self._queries or name in self._waiting:
            raise DuplicateOperator("query", name)

    def start(self, start: QueryStart) -> StreamingQuery:
        """Start a query, or check it and let it wait for the restore; see :meth:`coord_control.Job.start`."""
        self._check_own_location(start)
        restore = self._restore
        if restore is None or (restore.is_committed and start.name in restore.metadata.queries):
            return self._begin(start, self._open(start))
        if restore.is_committed:
            if not restore.allow_non_restored_state:
                raise QueryNotRestored(start.name, restore.path, sorted(restore.metadata.queries))
            return self._begin(start, self._open(start))
        lineage = self._check(start, restore)
        handle = _WaitingQuery(start.name, lambda: self._not_started(start.name))
        self._waiting[start.name] = start, lineage, handle
        self._declared.own(start.operators, start.name)
        if missing := restore.missing(self._waiting):
            _log.info("= query %s fits %s, and starts when %s do as well", start.name, restore.path, missing)
        if missing or self._check_only is not None:
            return handle
        self._take_place(restore)
        return handle.started()

    def all_declared(self) -> None:
        """Note that the program has started all of its queries.

        Raises:
            RestoredQueryUnused: one of the checkpoint is not among them, and may not be left out; nothing was changed.
            SystemExit: this was a check of the program, and they fit.
        """
        if self._check_only is not None:
            assert self._restore is not None, "it is what the program is compared with"
            self._restore.check_none_missing(self._waiting)
            self._check_only.passed()
        if self._waiting:
            assert self._restore is not None, "only a restore lets a query wait"
            self._restore.check_none_missing(self._waiting)
            self._take_place(self._restore)

    # Parts.

    def _check(self, start: QueryStart, restore: PendingRestore) -> Lineage | None:
        records, rescalable = self._records(start), self._rescalable(start)
        models = {uid: self._declared.models(uid) for uid in start.operators}
        declared = declared_query(start.name, start.writer._df, records, rescalable)
        restore.check(declared, models, self._launch.live.models())
        lineage = restore.open(self._place.files, start.name, records, start.checkpoint_location, rescalable)
        restore.check_start(start.name, self._start_refusal(start))
        if lineage is not None:
            restore.check_kafka(start.name, start.writer._df)
            restore.check_plan(start.name, self._plan_refusal(start, lineage))
            self._launch.seed(lineage, start.operators)
        return lineage

    def _start_refusal(self, start: QueryStart) -> str | None:
        folder = join(self._place.folder, _START_CHECK)
        return check_start(
            self._place.files, self._place.storage, folder, start.writer, start.table, self._check_name(start)
        )

    def _plan_refusal(self, start: QueryStart, lineage: Lineage) -> str | None:
        return check_plan(self._place.files, start.writer, lineage, self._check_name(start))

    def _check_name(self, start: QueryStart) -> str:
        return f"{spark_name(self._launch.job, start.name, start.writer)} (check)"

    def _take_place(self, restore: PendingRestore) -> None:
        self._sinks.check(restore)
        restore.commit()
        waiting, self._waiting = self._waiting, {}
        try:
            for start, lineage, handle in waiting.values():
                handle.become(self._begin(start, lineage or self._open(start)))
        except Exception as error:
            failed = [start for start, _, _ in waiting.values() if start.name not in self._queries]
            for start in failed:  # it may be corrected, and started again
                self._declared.disown(start.operators)
            back = f", or {UNDO}" if restore.can_undo and len(failed) == len(waiting) else ""
            error.add_note(
                f"the job was restored from {restore.path} before; correct what failed and start it again{back}"
            )
            raise

    def _open(self, start: QueryStart) -> Lineage:
        folder = query_folder(self._place.folder, start.name)
        if start.checkpoint_location is not None and recorded_lineage(self._place.files, folder, start.name) is None:
            self._check_stopped(start.name, start.checkpoint_location)
        lineage = open_lineage(
            self._place.files,
            folder,
            start.name,
            self._records(start),
            start.checkpoint_location,
            rescalable=self._rescalable(start),
        )
        # Other queries have run since the restore. Before Spark plans anything here the program may still be corrected.
        if lineage.restored is not None:
            why = self._start_refusal(start) or self._plan_refusal(start, lineage)
            if why is not None:
                raise PlanRefused(start.name, why)
        self._launch.seed(lineage, start.operators)
        return lineage

    def _begin(self, start: QueryStart, lineage: Lineage) -> StreamingQuery:
        if self._restore is not None:
            self._sinks.carry_out(self._restore)
        return self._launch.start(start.name, start.writer, start.table, start.operators, lineage)

    def _records(self, start: QueryStart) -> dict[OperatorUid, LineageOperator]:
        return {uid: self._declared.record(uid) for uid in start.operators}

    def _rescalable(self, start: QueryStart) -> list[OperatorUid]:
        return [uid for uid in start.operators if uid in self._declared.rescales]

    def _not_started(self, name: QueryName) -> QueryNotStarted:
        self._life.check_open()
        assert self._restore is not None, "only a restore lets a query wait"
        if self._check_only is not None and not self._restore.missing(self._waiting):
            self.all_declared()
        return QueryNotStarted(name, self._restore.path, self._restore.missing({*self._waiting, *self._queries}))

    # A plain query becomes one of the job.

    def _check_own_location(self, start: QueryStart) -> None:
        """Refuse to leave behind a state that the program means to resume from, or to begin a second one."""
        own, by_session = own_checkpoint(start.writer, start.name)
        said_by, location = "its writer", own
        if own is None and by_session is not None and self._has_run(by_session):
            said_by, location = "the session's spark.sql.streaming.checkpointLocation", by_session
        if location is None:
            return
        location = absolute(location)
        if (used := start.checkpoint_location) is None:
            found = recorded_lineage(self._place.files, query_folder(self._place.folder, start.name), start.name)
            if found is not None and (own is None or has_location(found[1], location)):
                return  # what the session says was decided when the query was started first
        elif own is None or is_same_place(location, used):
            return
        raise CheckpointLocationConflict(start.name, said_by, location, used)

    def _has_run(self, location: str) -> bool:
        location = absolute(location)
        return self._place.storage(location).exists(join(location, "metadata"))

    def _check_stopped(self, name: QueryName, location: str) -> None:
        try:
            query_id = read_query_id(self._place.files, location)
        except FileNotFoundError:
            return  # opening the lineage refuses it
        session: Any = self._launch.spark._jsparkSession
        active = session.sharedState().activeStreamingQueries()
        if active.containsKey(self._launch.spark.sparkContext._jvm.java.util.UUID.fromString(query_id)):  # type: ignore[union-attr]
            raise AdoptedQueryRunning(name, location, query_id)
        _log.warning(
            "= query %s takes over the checkpoint %s; make sure that the plain query has ended, which cannot be seen "
            "if it ran in another process",
            name,
            location,
        )


class _WaitingQuery(StreamingQuery):
    """The handle of a query that starts with the restore, and Spark's own from then on."""

    def __init__(self, name: QueryName, not_started: Callable[[], QueryNotStarted]) -> None:
        self._waiting_name = name
        self._not_started = not_started
        self._query: StreamingQuery | None = None

    @property
    def _jsq(self) -> Any:
        return self.started()._jsq

    def become(self, query: StreamingQuery) -> None:
        self._query = query

    def started(self) -> StreamingQuery:
        if self._query is None:
            raise self._not_started()
        return self._query
