"""Restoring a job, or forking a new one: through its driver, or directly on its storage if the job is not running.

A repeated task does not restore twice: a request to a driver is found again by its key, and a restore on the storage is
recorded there under the same key.

Threads: the task's. A restore on the storage blocks the worker; one through a driver waits in the triggerer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from coord_control.airflow.attempts import Attempts
from coord_control.airflow.command_task import CommandOperator
from coord_control.airflow.earlier_restore import earlier_restore, storage_key
from coord_control.airflow.task_failure import nothing_done
from coord_control.airflow.task_result import Metadata, restore_metadata
from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.request_input import absolute_reference
from coord_control.control.commands import Command, Refusal, Restore, RestoreResult, requested
from coord_control.durable.files.by_scheme import without_spark
from coord_control.durable.files.filesystem import Files
from coord_control.durable.job_folder.restore_log import RestoreRecord
from coord_control.durable.offline.offline_restore import check_fork_name, restore_job
from coord_control.durable.restore.checks import Verdict
from coord_control.errors import CommandRefused, RestoreRefused
from coord_control.storage.records import JobRecord

__all__ = ["RestoreOperator"]


class RestoreOperator(CommandOperator):
    """Restores a job from a checkpoint or savepoint, or forks a new job from it.

    A running job is restored by its driver, which its supervisor then starts again. The folder of a job that is not
    running must be accessible from the worker; start its driver afterwards.

    Args:
        ref: an id, a label, ``latest``, or an absolute path.
        as_name: fork a new job with this name instead of restoring this one.
        allow_non_restored_state, allow_missing_input, roll_back_sinks, accept_skipped_epochs, verify, force: see
            :meth:`~coord_control.control.client.control_client.ControlClient.restore`.
        kwargs: those of :class:`~coord_control.airflow.command_task.CommandOperator`.
    """

    template_fields: ClassVar[Sequence[str]] = (*CommandOperator.template_fields, "ref", "as_name")

    def __init__(
        self,
        *,
        ref: str,
        as_name: str | None = None,
        allow_non_restored_state: bool = False,
        allow_missing_input: bool = False,
        roll_back_sinks: bool = False,
        accept_skipped_epochs: bool = False,
        verify: bool = True,
        force: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ref = ref
        self.as_name = as_name
        self.allow_non_restored_state = allow_non_restored_state
        self.allow_missing_input = allow_missing_input
        self.roll_back_sinks = roll_back_sinks
        self.accept_skipped_epochs = accept_skipped_epochs
        self.verify = verify
        self.force = force

    def command(self) -> Command[Any]:
        """Return the request."""
        return self._request()

    def ask(self, context: Mapping[str, Any], attempts: Attempts, client: ControlClient) -> Metadata:
        """Restore through the driver, or on the storage if there is none."""
        check_fork_name(self.job, self.as_name or None)
        record = client.job(self.job)
        earlier = earlier_restore(attempts, client, record, self._target, lambda: self._storage_of_job(record))
        if isinstance(earlier, RestoreRecord):
            return self._found_on_storage(attempts, earlier)
        try:
            if earlier is not None or record.is_alive or record.waits_for_driver:
                return super().ask(context, attempts, client)
            return self._on_storage(attempts, client, record)
        except CommandRefused as error:
            if error.code == Refusal.RESTORE_REFUSED:
                self._log_checks(error.fields)
            raise
        except RestoreRefused as error:
            self._log_checks(error.checks)
            raise

    def metadata(self, client: ControlClient, result: RestoreResult) -> Metadata:
        """Return what was restored, and from where."""
        self._log_checks(result.checks)
        return restore_metadata("driver", result)

    def _on_storage(self, attempts: Attempts, client: ControlClient, record: JobRecord) -> Metadata:
        request, files = self._request(), self._storage_of_job(record)
        attempts.go_to_storage()
        key = storage_key(attempts)
        self.log.info("Job %s is not running: restoring directly on its storage in %s", self.job, record.root)
        restored = restore_job(files, _storage, request, root=record.root, job=self.job, key=key)
        result = RestoreResult.of(restored)
        self._log_checks(result.checks)
        self.log.info("Job %s was restored: its next driver resumes from %s", restored.job, restored.record.path)
        details = {"as_name": self.as_name} if self.as_name else None
        client.record_done(self.job, "restore", restored.record.path, details)
        attempts.report(key)
        return restore_metadata("storage", result)

    def _found_on_storage(self, attempts: Attempts, done: RestoreRecord) -> Metadata:
        assert done.key is not None, "it was found by its key"
        self.log.info("An earlier attempt has already restored job %s: nothing was done", self._target)
        attempts.report(done.key)
        return restore_metadata(
            "storage", RestoreResult(path=done.path, checkpoint=int(done.checkpoint), job=self._target)
        )

    @property
    def _target(self) -> str:
        return self.as_name or self.job

    def _request(self) -> Restore:
        made: Restore = requested(
            Restore,
            ref=absolute_reference(self.ref),
            allow_non_restored_state=self.allow_non_restored_state,
            allow_missing_input=self.allow_missing_input,
            roll_back_sinks=self.roll_back_sinks,
            accept_skipped_epochs=self.accept_skipped_epochs,
            verify=self.verify,
            force=self.force,
            as_name=self.as_name or None,
        )
        return made

    def _storage_of_job(self, job: JobRecord) -> Files:
        files = _storage(job.root)
        if not files.exists(job.folder):
            raise nothing_done(
                f"the folder {job.folder} of job {job.name} is not accessible from this worker; run "
                f"coordctl restore {job.name} where it is (the job last ran on {job.host})"
            )
        return files

    def _log_checks(self, checks: Iterable[Mapping[str, Any]]) -> None:
        for check in checks:
            verdict, subject, way_out = check.get("verdict", ""), check.get("subject"), check.get("way_out")
            what = f"{check.get('name', '')} of {subject}" if subject else check.get("name", "")
            tell = self.log.info if verdict == Verdict.OK.value else self.log.warning
            tell("preflight: %s: %s: %s%s", verdict, what, check.get("found", ""), f" ({way_out})" if way_out else "")


def _storage(path: str) -> Files:
    if (files := without_spark(path)) is not None:
        return files
    raise nothing_done(
        f"the job is not running, and Airflow does not start Spark to read {path}. Run coordctl restore, which does; "
        "or start the job and clear the task, so that its driver restores it. For S3, Azure and Google Cloud, Airflow "
        "reads it without Spark after: pip install 'coord-control[objects]'"
    )
