"""Launches a query in its lineage: the last step of a start, when everything about it was checked.

Threads: one at a time, that which has the turn (:meth:`.job_life.JobLife.turn_to_start`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.job_folder.lineage import Lineage, is_sink_back, seeded
from coord_control.durable.job_folder.sink_record import read_sink, write_sink
from coord_control.durable.restore.seeds import seed_lineage
from coord_control.durable.spark_layout.file_sink_log import FILE_SINK
from coord_control.ids import Generation, OperatorUid, QueryName
from coord_control.spark.job.declarations import Declarations
from coord_control.spark.job.job_place import JobPlace
from coord_control.spark.job.running_queries import RunningQueries
from coord_control.spark.live.live_values import LiveValues
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.queries.query_spec import QueryDefinition, QueryOwner
from coord_control.spark.queries.recovery_log import RecoveryLog
from coord_control.spark.queries.restart_policy import RestartPolicy
from coord_control.spark.queries.rolled_back_sink import RolledBackSink
from coord_control.spark.queries.writers import place, spark_name, target
from coord_control.spark.session import retained_epochs
from coord_control.spark.sinks.sink_of import sink_of

__all__ = ["QueryLaunch"]

_log = logging.getLogger("coord_control.job")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLaunch:
    """Launches the queries of one job.

    Attributes:
        policy: how failed queries are restarted in place.
        owner: the job, for its queries.
    """

    job: str
    spark: SparkSession
    place: JobPlace
    generation: Generation
    declared: Declarations
    queries: RunningQueries
    runtime: JobRuntime
    recoveries: RecoveryLog
    policy: RestartPolicy
    owner: QueryOwner
    live: LiveValues

    def start(
        self,
        name: QueryName,
        writer: DataStreamWriter,
        table: str | None,
        operators: Sequence[OperatorUid],
        lineage: Lineage,
    ) -> StreamingQuery:
        """Start a query in its lineage; one that cannot be started may be corrected and started again."""
        self.live.open()  # a restore, if there is one, has taken place
        writer = place(writer, spark_name(self.job, name, writer), lineage.checkpoint)
        query = self._managed(name, writer, table, lineage, operators)
        specs = [self.declared.spec(uid) for uid in operators]
        self.runtime.call(lambda core, now: core.add_query(name, lineage.query_id, specs))
        self.queries.add(query)
        self.declared.own(operators, name)
        if self.live.is_used:
            self.live.begin(name, lineage.query_id, query.session)
        try:
            seeded(self.place.files, lineage)  # not before: until here a restore can be undone
            query.start()
        except BaseException:
            self.queries.remove(name)
            self.declared.disown(operators)
            raise
        try:
            write_sink(self.place.files, lineage.folder, sink_of(query.session, query.spark_query))
        except Exception as error:  # checkpoints ask again
            _log.warning("= query %s: what it writes to is not recorded: %s", name, error)
        self.queries.started()
        self.owner.query_changed()
        return query.spark_query

    def seed(self, lineage: Lineage, operators: Sequence[OperatorUid]) -> None:
        """Put the states of a restored lineage's operators into place, before anything runs in it.

        Raises:
            RescaleFailed: a user's function did not redistribute them.
        """
        seeds = {uid: (self.declared.spec(uid).parallelism, self.declared.rescales.get(uid)) for uid in operators}
        seed_lineage(self.place.files, lineage, self.generation, seeds)

    def _rolled_back_sink(self, lineage: Lineage) -> RolledBackSink | None:
        if not is_sink_back(self.place.files, lineage.folder):
            return None
        sink = read_sink(self.place.files, lineage.folder)
        if sink is None or sink.kind != FILE_SINK or sink.place is None:
            return None
        return RolledBackSink(self.place.storage(sink.place), sink.place, self.place.files, lineage.checkpoint)

    def _managed(
        self,
        name: QueryName,
        writer: DataStreamWriter,
        table: str | None,
        lineage: Lineage,
        operators: Sequence[OperatorUid],
    ) -> ManagedQuery:
        store = None
        if operators or self.live.is_used:
            store = EpochStore(self.place.files, lineage.epochs, self.generation, retained_epochs(self.spark))
        sink = self._rolled_back_sink(lineage)
        spec = QueryDefinition(name, writer, lineage, operators, store, self.policy, target(writer, table), sink)
        return ManagedQuery(spec, self.owner, files=self.place.files, runtime=self.runtime, recoveries=self.recoveries)
