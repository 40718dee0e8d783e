"""A restore whose queries have not started: each query of the program is checked, and then all start together.

The program asks for it (:mod:`.job_restore`): then it takes place when all queries have been checked. Or it has taken
place without the program (``coordctl restore``, Dagster, a driver that was asked for it), and no query has run since
(:class:`AppliedRestore`): the queries wait all the same, so if one is refused the restore can still be undone.

Threads: those of the job's methods, which take turns.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from pyspark.sql import DataFrame

from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import Lineage, LineageOperator, open_prepared
from coord_control.durable.job_folder.lineage_record import query_folder, read_record
from coord_control.durable.job_folder.restore_log import RestoreRecord, newest_restore
from coord_control.durable.offline.undo import query_that_ran, sinks_are_back
from coord_control.durable.restore.checks import Check, Verdict, refuse
from coord_control.durable.restore.preflight_declared import DeclaredQuery, check_declared
from coord_control.durable.restore.seeds import read_seed
from coord_control.errors import RestoredQueryUnused
from coord_control.ids import OperatorUid, QueryName
from coord_control.spark.job.saved_checks import OperatorModels, check_live, check_saved
from coord_control.spark.live.live_model import LiveModel
from coord_control.spark.queries.kafka_offsets import check_kafka

__all__ = ["AppliedRestore", "PendingRestore", "count_sources", "declared_query"]

_log = logging.getLogger("coord_control.job")

_SETTINGS: Final = ("spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.providerClass")


@dataclass(slots=True, kw_only=True)
class PendingRestore(abc.ABC):
    """One restore of a job, until all of its queries have been checked.

    Attributes:
        path: the folder of the checkpoint.
        metadata: of the checkpoint; of an applied restore without the states of its queries, and of their files only
            the logs of file sinks.
        is_committed: it has taken place, and all queries of the checkpoint may start.
        has_touched_sinks: a driver has begun to set the sinks back, so it cannot be undone.
        is_rolled_back: this driver has set the sinks back.
    """

    is_applied: ClassVar[bool]  #: It took place without the program.

    job: str
    job_folder: str
    path: str
    metadata: CheckpointMetadata
    allow_non_restored_state: bool
    is_committed: bool = False
    has_touched_sinks: bool = False
    is_rolled_back: bool = False

    @property
    @abc.abstractmethod
    def record(self) -> RestoreRecord:
        """What the lineages of the queries are."""

    @property
    def can_undo(self) -> bool:
        """Whether it can be undone once it has taken place, until a query runs: not a fork, nor an undo."""
        return bool(self.record.replaced) and not self.has_touched_sinks

    @abc.abstractmethod
    def commit(self) -> None:
        """Commit the restore unless it is committed; all queries have been checked.

        Raises:
            Fenced: a newer driver owns the job.
            StoreUnavailable: it may have taken place or not.
        """

    def check(
        self, declared: DeclaredQuery, models: Mapping[OperatorUid, OperatorModels], live: Iterable[LiveModel[Any]]
    ) -> None:
        """Compare a query of the program with the checkpoint.

        Args:
            models: of its operators.
            live: of the job's live values.

        Raises:
            RestoreRefused: it does not fit.
        """
        checks = check_declared(self.metadata, declared, allow_non_restored_state=self.allow_non_restored_state)
        self._report([*checks, *check_saved(self.metadata, models), *check_live(self.metadata, live)])

    def check_kafka(self, query: QueryName, frame: DataFrame) -> None:
        """Ask the brokers of a query's sources whether they still have what the checkpoint has not read.

        Raises:
            RestoreRefused: they do not.
        """
        offsets = self.metadata.queries[query].offsets
        self._report(list(check_kafka(query, frame, offsets, allow_missing_input=self.record.allow_missing_input)))

    def check_start(self, query: QueryName, refusal: str | None) -> None:
        """Report what Spark says to the start of a query.

        Args:
            refusal: None: it would start.

        Raises:
            RestoreRefused: it would not.
        """
        if refusal is not None:
            self._report([Check("start", query, Verdict.REFUSED, f"Spark says: {refusal}", "correct the query")])

    def check_plan(self, query: QueryName, refusal: str | None) -> None:
        """Report what Spark says to a query's plan.

        Args:
            refusal: None: it has accepted it.

        Raises:
            RestoreRefused: it has not.
        """
        if refusal is not None:
            way_out = "Spark keeps aggregations, joins and sources as they were: change the query back"
            self._report([Check("plan", query, Verdict.REFUSED, f"Spark says: {refusal}", way_out)])

    def open(
        self,
        files: Files,
        query: QueryName,
        operators: Mapping[OperatorUid, LineageOperator],
        checkpoint_location: str | None,
        rescalable: Collection[OperatorUid],
    ) -> Lineage | None:
        """Open the new lineage of a query, which nothing uses yet; None if the checkpoint lacks it.

        Raises:
            LineageMismatch, NonRestoredState, ParallelismChanged, WakeChanged, EventTypesChanged: the declaration does
                not fit.
        """
        if query not in self.metadata.queries:
            return None
        folder, name = query_folder(self.job_folder, query), self.record.queries[query]
        return open_prepared(files, folder, name, operators, checkpoint_location, rescalable=rescalable)

    def missing(self, declared: Collection[QueryName]) -> list[str]:
        """Return the queries of the checkpoint that the program has not started yet, sorted."""
        return sorted(str(query) for query in set(self.metadata.queries) - set(declared))

    def check_none_missing(self, declared: Collection[QueryName]) -> None:
        """Check that the program has started all queries of the checkpoint.

        Raises:
            RestoredQueryUnused: one of the checkpoint is not among them, and must not be left out.
        """
        unused = self.missing(declared)
        if unused and not self.allow_non_restored_state:
            raise RestoredQueryUnused(self.path, unused, is_applied=self.is_applied, can_undo=self.can_undo)

    def _report(self, checks: list[Check]) -> None:
        for check in checks:
            if check.verdict is Verdict.WARNING:
                _log.warning("= job %s: %s", self.job, check)
        refuse(self.path, checks, is_applied=self.is_applied, can_undo=self.is_applied and self.can_undo)


@dataclass(slots=True, kw_only=True)
class AppliedRestore(PendingRestore):
    """A restore that took place without the program, while no query has run in its lineages."""

    is_applied = True

    applied: RestoreRecord

    @classmethod
    def find(cls, files: Files, job: str, job_folder: str) -> Self | None:
        """Return the newest restore of a job if its lineages are untouched, else None: then the queries just start.

        Raises:
            DamagedRecord, MissingRecord, UnsupportedFormat: what is stored cannot be used.
        """
        newest = newest_restore(files, job_folder)
        if newest is None or query_that_ran(files, job_folder, newest) is not None:
            return None
        parts, allows = [], False
        for query, name in newest.queries.items():
            folder = query_folder(job_folder, query)
            record = read_record(files, folder, name)
            # What an undo names may be a lineage that was never restored.
            if record is not None and record.restored_from is not None:
                parts.append(read_seed(files, join(folder, name)))
                allows = allows or record.restored_from.allow_non_restored_state
        if not parts:
            return None
        return cls(
            job=job,
            job_folder=job_folder,
            path=newest.path,
            metadata=_joined(parts),
            allow_non_restored_state=allows,
            applied=newest,
            has_touched_sinks=sinks_are_back(files, job_folder, newest),
        )

    @property
    def record(self) -> RestoreRecord:
        return self.applied

    def commit(self) -> None:
        self.is_committed = True
        _log.info("= job %s: all queries fit %s, from which it was restored, and start", self.job, self.path)


def _joined(parts: Sequence[CheckpointMetadata]) -> CheckpointMetadata:
    # Spark's own files say what it has kept of the state, and may have been rewritten: --shuffle-partitions.
    queries = {
        query: snapshot.model_copy(update={"state_operators": ()})
        for part in parts
        for query, snapshot in part.queries.items()
    }
    operators = {uid: snapshot for part in parts for uid, snapshot in part.operators.items()}
    return parts[0].model_copy(update={"queries": queries, "operators": operators})


def declared_query(
    name: QueryName,
    frame: DataFrame,
    operators: Mapping[OperatorUid, LineageOperator],
    rescalable: Collection[OperatorUid],
) -> DeclaredQuery:
    """Describe a query of the program for the preflight."""
    conf = frame.sparkSession.conf
    settings = {key: value for key in _SETTINGS if (value := conf.get(key, None)) is not None}
    return DeclaredQuery(name, operators, rescalable, settings, count_sources(frame))


def count_sources(frame: DataFrame) -> int:
    """Return how many streaming sources a query reads, as Spark counts them: a source that is used twice counts
    twice."""
    count = 0
    waiting: list[Any] = [frame._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        children = node.children()
        waiting += [children.apply(index) for index in range(children.size())]
        count += not children.size() and node.isStreaming()
    return count
