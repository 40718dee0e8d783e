"""A restore that the program of a job asks for, or whoever starts it: ``Job(restore_from=...)``.

It takes place in three steps. Before the generation is claimed the checkpoint is found and read, because the claim must
be above its generation. After the claim its files are checked and put into new lineages, which nobody looks at yet.
When the program starts its first query, and that fits the checkpoint, the restore is committed: before that, whatever
goes wrong leaves the job as it was.

A restore is applied once. A driver that is started again with the same ``restore_from`` just goes on, as long as the
job's newest restore came from that checkpoint (for ``latest``: was asked for as ``latest``). To go back to it again,
say ``coordctl restore``.

Threads: those of the job's methods, which take turns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from coord_control.driver_process import ALLOW_VARIABLE, RESTORE_VARIABLE
from coord_control.durable.catalog import Catalog
from coord_control.durable.checkpoint_source import open_checkpoint
from coord_control.durable.checks import Check, Verdict, refuse
from coord_control.durable.files import Files, join
from coord_control.durable.lineage import OperatorRecord
from coord_control.durable.metadata import CheckpointMetadata, OperatorSnapshot
from coord_control.durable.preflight import check_files, check_job, check_sinks, check_spark_version
from coord_control.durable.preflight_declared import DeclaredQuery, check_declared
from coord_control.durable.restore_log import newest_restore
from coord_control.durable.restoring import PreparedRestore, is_applied, prepare_restore
from coord_control.errors import RestoredQueryUnused, StateInvalid
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
    _prepared: PreparedRestore | None = field(default=None)
    _is_committed: bool = field(default=False)

    @classmethod
    def wanted(
        cls, job: str, spark: SparkSession, root: str, ref: str, *, allow_non_restored_state: bool
    ) -> JobRestore | None:
        """Find what is to be restored; None: the job has done it already, and goes on.

        Raises:
            CheckpointNotFound: nothing, or more than one checkpoint, is meant.
            MissingRecord, DamagedRecord, UnsupportedFormat: the checkpoint cannot be used.
        """
        folder, files = join(root, job), files_for(root, spark)
        path = Catalog(files, folder, lambda path: files_for(path, spark)).resolve(ref).path
        storage = files_for(path, spark)
        with open_checkpoint(storage, path) as source:
            newest = newest_restore(files, folder)
            if newest is not None and is_applied(newest, source, ref):
                _log.info("= job %s was restored from %s before, and goes on", job, newest.path)
                return None
            return cls(job, ref, path, source.metadata, storage, allow_non_restored_state)

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
        is_fork = self.metadata.job != self.job
        with open_checkpoint(self.files, self.path) as source:
            allow = self.allow_non_restored_state
            checks = [
                *check_files(source, verify=True),
                *check_spark_version(source.metadata, spark.version),
                *check_job(files, job_folder, source, is_fork=is_fork, allow_non_restored_state=allow),
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
            )

    def starts(self, declared: DeclaredQuery, states: Mapping[OperatorUid, StateType[Any]]) -> None:
        """A query is about to be started: compare it with the checkpoint; the first one lets the restore take place.

        Args:
            states: the state models of its operators.

        Raises:
            RestoreRefused: it does not fit.
            Fenced: a newer driver owns the job.
        """
        checks = check_declared(self.metadata, declared, allow_non_restored_state=self.allow_non_restored_state)
        self._report([*checks, *check_states(self.metadata, states)])
        if not self._is_committed:
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

    def check_all_started(self, started: Collection[QueryName]) -> None:
        """The program has started all its queries.

        Raises:
            RestoredQueryUnused: one of the checkpoint is not among them.
        """
        unused = sorted(set(self.metadata.queries) - set(started))
        if unused and self._is_committed and not self.allow_non_restored_state:
            raise RestoredQueryUnused(self.path, [str(query) for query in unused])

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
        way_out = "let the model accept what an earlier one has saved: give new fields a default"
        return Check("states", uid, Verdict.REFUSED, str(error), way_out)
    return Check("states", uid, Verdict.OK, f"{len(snapshot.subtask_states)} are valid for {state.model.__name__}")


def restore_settings(restore_from: str | None, allow_non_restored_state: bool) -> tuple[str | None, bool]:
    """What the program says, or else the environment."""
    if restore_from is not None:
        return restore_from, allow_non_restored_state
    allowed = os.environ.get(ALLOW_VARIABLE, "").lower() in ("1", "true", "yes")
    return os.environ.get(RESTORE_VARIABLE) or None, allow_non_restored_state or allowed


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
    """How many streaming sources a query reads: a DataFrame that is used twice is read once by Spark."""
    found: list[Any] = []
    waiting: list[Any] = [frame._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        children = node.children()
        waiting += [children.apply(index) for index in range(children.size())]
        if not children.size() and node.isStreaming() and not any(node.equals(other) for other in found):
            found.append(node)
    return len(found)
