"""A restore that the program of a job asks for, or whoever starts it: ``Job(restore_from=...)``.

It takes place in three steps. Before the generation is claimed the checkpoint is found and read, because the claim must
be above its generation. After the claim its files are checked and put into new lineages, which nobody looks at yet.
When the program has started all queries of the checkpoint, and all of them fit (:mod:`.starting`), the restore is
committed: before that, whatever goes wrong leaves the job as it was.

A restore is applied once. A driver that is started again with the same ``restore_from`` resumes where the job stands,
also when the job was restored to something else since, and when the checkpoint is gone. To go back to it again, say
``coordctl restore``.

Threads: those of the job's methods, which take turns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from coord_control.driver_process import ALLOW_MISSING_INPUT_VARIABLE, ALLOW_VARIABLE, RESTORE_VARIABLE
from coord_control.durable.catalog import Catalog
from coord_control.durable.checkpoint_source import open_checkpoint
from coord_control.durable.checks import Check, Verdict, refuse
from coord_control.durable.files import Files, join
from coord_control.durable.lineage import Lineage, OperatorRecord, open_prepared
from coord_control.durable.lineage_record import query_folder
from coord_control.durable.metadata import CheckpointMetadata, OperatorSnapshot
from coord_control.durable.preflight import check_files, check_job, check_sinks, check_spark_version
from coord_control.durable.preflight_declared import DeclaredQuery, check_declared
from coord_control.durable.preflight_sources import check_sources
from coord_control.durable.restoring import PreparedRestore, applied_restore, prepare_restore
from coord_control.errors import CheckpointNotFound, MissingRecord, RestoredQueryUnused, StateInvalid
from coord_control.ids import Generation, OperatorUid, QueryName
from coord_control.spark.hadoop_files import files_for
from coord_control.spark.models import StateType

__all__ = [
    "JobRestore",
    "check_states",
    "count_sources",
    "declared_query",
    "restore_settings",
]

_log = logging.getLogger("coord_control.job")

_SETTINGS: Final = ("spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.providerClass")


@dataclass(slots=True)
class JobRestore:
    """One restore of a job, on its way.

    Attributes:
        ref: what was asked for.
        path: the folder of the checkpoint.
    """

    job: str
    ref: str
    path: str
    metadata: CheckpointMetadata
    files: Files  #: the storage of the path
    allow_non_restored_state: bool
    allow_missing_input: bool
    _prepared: PreparedRestore | None = field(default=None)
    _is_committed: bool = field(default=False)

    @classmethod
    def wanted(
        cls,
        job: str,
        spark: SparkSession,
        root: str,
        ref: str,
        *,
        allow_non_restored_state: bool,
        allow_missing_input: bool,
    ) -> JobRestore | None:
        """Find what is to be restored; None: the job has done it already, and goes on.

        Raises:
            CheckpointNotFound: nothing, or more than one checkpoint, is meant.
            MissingRecord, DamagedRecord, UnsupportedFormat: the checkpoint cannot be used.
        """
        folder, files = join(root, job), files_for(root, spark)
        try:
            path = Catalog(files, folder, lambda path: files_for(path, spark)).resolve(ref).path
            storage = files_for(path, spark)
            with open_checkpoint(storage, path) as source:
                applied = applied_restore(files, folder, ref, source)
                if applied is None:
                    return cls(job, ref, path, source.metadata, storage, allow_non_restored_state, allow_missing_input)
        except (CheckpointNotFound, MissingRecord):
            if (applied := applied_restore(files, folder, ref, None)) is None:
                raise
        _log.info("= job %s was restored from %s before, and resumes where it stands", job, applied.path)
        return None

    @property
    def above(self) -> Generation:
        """The generation of the job must be above this."""
        return self.metadata.generation

    def prepare(
        self, files: Files, job_folder: str, generation: Generation, spark: SparkSession, verify: Callable[[], None]
    ) -> None:
        """Check the checkpoint and build the lineages; the generation is claimed.

        Args:
            verify: raises when a newer driver has claimed.

        Raises:
            RestoreRefused: it cannot work.
            DamagedRecord, MissingRecord: a file of the checkpoint is not what its manifest says.
        """
        is_fork, root = self.metadata.job != self.job, job_folder.rstrip("/").rpartition("/")[0]

        def storage(path: str) -> Files:
            return files_for(path, spark)

        with open_checkpoint(self.files, self.path) as source:
            allow = self.allow_non_restored_state
            checks = [
                *check_files(source, verify=True),
                *check_spark_version(source.metadata, spark.version),
                *check_job(files, job_folder, source, is_fork=is_fork, allow_non_restored_state=allow),
                *check_sources(files, storage, root, source, allow_missing_input=self.allow_missing_input),
                *check_sinks(files, job_folder, source, is_fork=is_fork),
            ]
            self._report(checks)
            self._prepared = prepare_restore(
                files,
                job_folder,
                source,
                generation=generation,
                verify_claim=verify,
                ref=self.ref,
                is_fork=is_fork,
                allow_non_restored_state=allow,
                allow_missing_input=self.allow_missing_input,
            )

    @property
    def is_committed(self) -> bool:
        """Whether it has taken place."""
        return self._is_committed

    def check(self, declared: DeclaredQuery, states: Mapping[OperatorUid, StateType[Any]]) -> None:
        """Compare a query of the program with the checkpoint.

        Args:
            states: the state models of its operators.

        Raises:
            RestoreRefused: it does not fit.
        """
        checks = check_declared(self.metadata, declared, allow_non_restored_state=self.allow_non_restored_state)
        self._report([*checks, *check_states(self.metadata, states)])

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
        operators: Mapping[OperatorUid, OperatorRecord],
        checkpoint_location: str | None,
        rescalable: Collection[OperatorUid],
    ) -> Lineage | None:
        """Open the new lineage of a query, which nothing uses yet; None if the checkpoint lacks it.

        Raises:
            LineageMismatch, NonRestoredState, ParallelismChanged, EventTypesChanged: the declaration does not fit.
        """
        prepared = self._prepared
        assert prepared is not None, "it is prepared when the job is opened"
        if (name := prepared.record.queries.get(query)) is None:
            return None
        folder = query_folder(prepared.job_folder, query)
        return open_prepared(files, folder, name, operators, checkpoint_location, rescalable=rescalable)

    def commit(self) -> None:
        """Let the restore take place.

        Raises:
            Fenced: a newer driver owns the job.
            StoreUnavailable: it may have taken place or not.
        """
        assert self._prepared is not None, "it is prepared when the job is opened"
        self._prepared.commit()
        self._is_committed = True
        record = self._prepared.record
        _log.info(
            "= job %s goes on from checkpoint %d (%s)",
            self.job,
            record.checkpoint,
            self.path,
            extra={"action": "restored", "job": self.job, "checkpoint": record.checkpoint},
        )

    def missing(self, declared: Collection[QueryName]) -> list[str]:
        """The queries of the checkpoint that the program has not started yet, sorted."""
        return sorted(str(query) for query in set(self.metadata.queries) - set(declared))

    def check_none_missing(self, declared: Collection[QueryName]) -> None:
        """The program has started all its queries.

        Raises:
            RestoredQueryUnused: one of the checkpoint is not among them, and must not be left out.
        """
        unused = self.missing(declared)
        if unused and not self.allow_non_restored_state:
            raise RestoredQueryUnused(self.path, unused)

    def _report(self, checks: list[Check]) -> None:
        for check in checks:
            if check.verdict is Verdict.WARNING:
                _log.warning("= job %s: %s", self.job, check)
        refuse(self.path, checks)


def check_states(metadata: CheckpointMetadata, states: Mapping[OperatorUid, StateType[Any]]) -> list[Check]:
    """Say whether the states in a checkpoint are valid for the models that the program has now."""
    return [
        _check_states(uid, state, metadata.operators[uid])
        for uid, state in sorted(states.items())
        if uid in metadata.operators
    ]


def _check_states(uid: OperatorUid, state: StateType[Any], snapshot: OperatorSnapshot) -> Check:
    try:
        for subtask, data in snapshot.subtask_states.items():
            state.load(subtask, data)
    except StateInvalid as error:
        way_out = "let the model accept what an earlier one has saved"
        return Check("states", uid, Verdict.REFUSED, str(error), way_out)
    return Check("states", uid, Verdict.OK, f"{len(snapshot.subtask_states)} are valid for {state.model.__name__}")


def restore_settings(
    restore_from: str | None, allow_non_restored_state: bool, allow_missing_input: bool
) -> tuple[str | None, bool, bool]:
    """Return what the program says, or else the environment."""
    if restore_from is not None:
        return restore_from, allow_non_restored_state, allow_missing_input
    return (
        os.environ.get(RESTORE_VARIABLE) or None,
        allow_non_restored_state or _is_set(ALLOW_VARIABLE),
        allow_missing_input or _is_set(ALLOW_MISSING_INPUT_VARIABLE),
    )


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")


def declared_query(
    name: QueryName,
    frame: DataFrame,
    operators: Mapping[OperatorUid, OperatorRecord],
    rescalable: Collection[OperatorUid],
) -> DeclaredQuery:
    """Describe a query of the program for the preflight."""
    conf = frame.sparkSession.conf
    settings = {key: value for key in _SETTINGS if (value := conf.get(key, None)) is not None}
    return DeclaredQuery(name, operators, rescalable, settings, count_sources(frame))


def count_sources(frame: DataFrame) -> int:
    """How many streaming sources a query reads, as Spark counts them: a source that is used twice counts twice."""
    count = 0
    waiting: list[Any] = [frame._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        children = node.children()
        waiting += [children.apply(index) for index in range(children.size())]
        count += not children.size() and node.isStreaming()
    return count
