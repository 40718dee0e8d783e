"""A restore requested by the program of a job, or by the user who starts it: ``Job(restore_from=...)``.

It takes place in three steps. Before the generation is claimed the checkpoint is found and read, because the claim must
be above its generation. After the claim its files are checked and put into new lineages, which are not in use yet. When
the program has started all queries of the checkpoint, and all of them fit (:mod:`.query_starts`), the restore is
committed: before that, whatever goes wrong leaves the job as it was.

A restore is applied once. A driver that is started again with the same ``restore_from`` resumes where the job stands,
also when the job was restored to something else since, and when the checkpoint is gone. To go back to it again, say
``coordctl restore``.

Threads: those of the job's methods, which take turns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from pyspark.sql import SparkSession

from coord_control.driver_process import (
    ACCEPT_SKIPPED_VARIABLE,
    ALLOW_MISSING_INPUT_VARIABLE,
    ALLOW_VARIABLE,
    RESTORE_VARIABLE,
    ROLL_BACK_VARIABLE,
)
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.restore_log import RestoreRecord
from coord_control.durable.restore.prepared_restore import (
    PreparedRestore,
    applied_restore,
    is_restore_of,
    prepare_restore,
)
from coord_control.durable.restore.request import RestoreRequest, check_request
from coord_control.errors import CheckpointNotFound, MissingRecord
from coord_control.ids import LATEST, Generation
from coord_control.spark.hadoop_files import absolute, files_for
from coord_control.spark.job.pending_restore import PendingRestore
from coord_control.spark.job.program_check import program_check

__all__ = ["JobRestore", "requested_restore"]

_log = logging.getLogger("coord_control.job")


@dataclass(slots=True, kw_only=True)
class JobRestore(PendingRestore):
    """A restore that the program has requested.

    Attributes:
        files: the storage of the path.
    """

    is_applied = False

    request: RestoreRequest
    files: Files
    _prepared: PreparedRestore | None = field(default=None)

    @classmethod
    def wanted(cls, job: str, spark: SparkSession, root: str, request: RestoreRequest) -> Self | None:
        """Find what is to be restored, or return None if the job has already restored it.

        Raises:
            CheckpointNotFound: nothing, or more than one checkpoint, is meant.
            MissingRecord, DamagedRecord, UnsupportedFormat: the checkpoint cannot be used.
        """
        folder, files, ref = join(root, job), files_for(root, spark), request.ref
        try:
            path = Catalog(files, folder, lambda path: files_for(path, spark)).resolve(ref).path
            storage = files_for(path, spark)
            with open_checkpoint(storage, path) as source:
                applied = applied_restore(files, folder, ref, source)
                if applied is None:
                    return cls(
                        job=job,
                        job_folder=folder,
                        path=path,
                        metadata=source.metadata,
                        allow_non_restored_state=request.allow_non_restored_state,
                        request=request,
                        files=storage,
                    )
                if ref != LATEST and not is_restore_of(applied, source):
                    _log.warning(
                        "= job %s: %s is another checkpoint now (%s), which is NOT restored, because a restore is "
                        "applied once; to restore it, stop the job and use coordctl restore %s %s",
                        job,
                        ref,
                        path,
                        job,
                        ref,
                    )
        except (CheckpointNotFound, MissingRecord):
            if (applied := applied_restore(files, folder, ref, None)) is None:
                raise
        _log.info("= job %s was restored from %s before, and resumes where it stands", job, applied.path)
        if request.roll_back_sinks and not applied.roll_back_sinks:
            _log.warning(
                "= job %s: its sinks are NOT set back, because that restore did not ask for it; stop the job, and "
                "restore it with coordctl restore %s %s --roll-back-sinks",
                job,
                job,
                applied.path,
            )
        return None

    @property
    def above(self) -> Generation:
        """The generation of the job must be above this."""
        return self.metadata.generation

    def prepare(self, files: Files, generation: Generation, spark: SparkSession, verify: Callable[[], None]) -> None:
        """Check the checkpoint and build the lineages; the generation is claimed.

        Args:
            verify: raises when a newer driver has claimed.

        Raises:
            RestoreRefused: it cannot work.
            DamagedRecord, MissingRecord: a file of the checkpoint is not what its manifest says.
        """
        request = self.request

        def storage(path: str) -> Files:
            return files_for(path, spark)

        with open_checkpoint(self.files, self.path) as source:
            checks = check_request(request, source, files, self.job_folder, storage, spark_version=spark.version)
            self._report(checks)
            self._prepared = prepare_restore(
                files,
                self.job_folder,
                source,
                generation=generation,
                verify_claim=verify,
                ref=request.ref,
                is_fork=self.metadata.job != self.job,
                by_program=True,
                allow_non_restored_state=request.allow_non_restored_state,
                allow_missing_input=request.allow_missing_input,
                roll_back_sinks=request.roll_back_sinks,
            )

    @property
    def record(self) -> RestoreRecord:
        assert self._prepared is not None, "it is prepared when the job is opened"
        return self._prepared.record

    def commit(self) -> None:
        assert self._prepared is not None, "it is prepared when the job is opened"
        self._prepared.commit()
        self.is_committed = True
        record = self.record
        _log.info(
            "= job %s resumes from checkpoint %d (%s)",
            self.job,
            record.checkpoint,
            self.path,
            extra={"action": "restored", "job": self.job, "checkpoint": record.checkpoint},
        )


def requested_restore(
    restore_from: str | None,
    *,
    allow_non_restored_state: bool,
    allow_missing_input: bool,
    roll_back_sinks: bool,
    accept_skipped_epochs: bool,
) -> RestoreRequest | None:
    """Return what the program requests, or else the environment; a check of the program takes the place of both."""
    if (check := program_check()) is not None:
        return check.request()
    if restore_from is None:
        restore_from = os.environ.get(RESTORE_VARIABLE) or None
        allow_non_restored_state = allow_non_restored_state or _is_set(ALLOW_VARIABLE)
        allow_missing_input = allow_missing_input or _is_set(ALLOW_MISSING_INPUT_VARIABLE)
        roll_back_sinks = roll_back_sinks or _is_set(ROLL_BACK_VARIABLE)
        accept_skipped_epochs = accept_skipped_epochs or _is_set(ACCEPT_SKIPPED_VARIABLE)
    if restore_from is None:
        return None
    return RestoreRequest(
        ref=absolute(restore_from) if "/" in restore_from else restore_from,
        allow_non_restored_state=allow_non_restored_state,
        allow_missing_input=allow_missing_input,
        roll_back_sinks=roll_back_sinks,
        accept_skipped_epochs=accept_skipped_epochs,
    )


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")
