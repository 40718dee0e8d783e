"""The reading half of the client.

Threads: any; every call is a separate transaction.
"""

from __future__ import annotations

import asyncio
import getpass
import socket
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Self

from coord_control.control.client.database_connection import DatabaseConnection
from coord_control.control.client.fleet_reader import FleetReader
from coord_control.control.client.job_snapshot import JobSamples, JobSnapshot
from coord_control.control.settings import ControlSettings
from coord_control.storage.records import (
    AuditRecord,
    CheckpointKind,
    CheckpointRecord,
    CheckpointReport,
    CheckpointState,
    CheckpointSummary,
    CommandKind,
    CommandRecord,
    CommandState,
    GenerationRecord,
    JobRecord,
    LiveChangeRecord,
    RecoveryRecord,
    SavepointRecord,
    SubtaskRecord,
)
from coord_control.storage.store import ControlStore

__all__ = ["ControlReader"]

_WATCHED_CHECKPOINTS: Final = 10
_WATCHED_COMMANDS: Final = 10
#: The resolution of samples in seconds, and how long they are kept.
_RESOLUTIONS: Final = ((5, timedelta(hours=1)), (60, timedelta(days=1)))
_COARSEST: Final = 3600


class ControlReader(FleetReader):
    """The reading half of :class:`~coord_control.control.client.control_client.ControlClient`."""

    def __init__(
        self, url: str | None = None, *, actor: str | None = None, settings: ControlSettings | None = None
    ) -> None:
        """
        Args:
            url: the database URL; defaults to ``COORD_CONTROL``, or else to the user's embedded database.
            actor: who makes the requests, for the audit trail; defaults to the user of this process.
            settings: settings to use instead of the environment.

        Raises:
            ControlSettingsInvalid: a setting is invalid.
            NoControlPlane: the control plane is switched off.
        """
        loaded = settings if settings is not None and url is None else ControlSettings.load(url)
        self._connection = DatabaseConnection(loaded, application="coord-control client")
        self.actor = actor or current_user()
        self.host = socket.gethostname()

    @property
    def url(self) -> str:
        """Return the database URL without a password."""
        return self._connection.display_url

    @property
    def settings(self) -> ControlSettings:
        """Return this client's settings."""
        return self._connection.settings

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs by name, without their queries and operators."""
        return self._connection.call(lambda store: store.jobs.list())

    def job(self, name: str) -> JobRecord:
        """Return a job with everything that its driver last reported.

        Raises:
            JobNotFound: there is no such job; the message suggests similar names.
        """
        return self._connection.call(lambda store: store.jobs.get(name))

    def generations(self, job: str) -> tuple[GenerationRecord, ...]:
        """Return the drivers that a job has had, newest first.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.jobs.generations(job))

    def checkpoints(
        self,
        job: str,
        *,
        kind: CheckpointKind | None = None,
        state: CheckpointState | None = None,
        requested_by: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> tuple[CheckpointRecord, ...]:
        """Return checkpoints and savepoints of a job, newest first.

        Args:
            requested_by: only those of this actor: the user of a client, or ``dagster:schedule:<name>``.
            before: only those with a smaller id, for the next page.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(
            lambda store: store.checkpoints.list(
                job, kind=kind, state=state, requested_by=requested_by, limit=limit, before_id=before
            )
        )

    def checkpoint(self, job: str, checkpoint: int) -> CheckpointRecord:
        """Return a checkpoint or savepoint with its queries and operators.

        Raises:
            JobNotFound, RecordNotFound: it does not exist; the message suggests similar names, or the nearest ids.
        """
        return self._connection.call(lambda store: store.checkpoints.get(job, checkpoint))

    def checkpoint_report(self, job: str, checkpoint: int) -> CheckpointReport:
        """Return a checkpoint with its subtasks, its job, and the job's newest recovery, read in one transaction.

        Of the checkpoint of a completed command it returns the final record: drivers write it before the outcome.

        Raises:
            JobNotFound, RecordNotFound: as for :meth:`checkpoint`.
        """
        return self._connection.call(lambda store: store.checkpoints.report(job, checkpoint))

    def subtasks(self, job: str, checkpoint: int) -> tuple[SubtaskRecord, ...]:
        """Return the subtasks of a checkpoint; none if there is no such checkpoint, or if it is so old that these
        details were removed.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.checkpoints.subtasks(job, checkpoint))

    def summary(self, job: str, *, kind: CheckpointKind | None = None, window: int = 10_000) -> CheckpointSummary:
        """Return counts, and percentiles over the newest ``window`` completed checkpoints.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.checkpoints.summary(job, kind=kind, window=window))

    def savepoints(self, job: str | None = None) -> tuple[SavepointRecord, ...]:
        """Return savepoints, including imported ones, newest first."""
        return self._connection.call(lambda store: store.savepoints.list(job))

    def commands(
        self,
        job: str | None = None,
        *,
        state: CommandState | None = None,
        kind: CommandKind | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> tuple[CommandRecord, ...]:
        """Return commands, newest first.

        Args:
            job: the job, or None for all jobs.
            before: only those with a smaller id, for the next page.
        """
        return self._connection.call(
            lambda store: store.commands.list(job=job, state=state, kind=kind, limit=limit, before=before)
        )

    def command(self, command: str) -> CommandRecord:
        """Return a command.

        Raises:
            CommandNotFound: there is no such command.
        """
        return self._connection.call(lambda store: store.commands.get(command))

    def command_of_key(self, job: str, key: str) -> CommandRecord | None:
        """Return the command with an idempotency key, or None if there is none yet.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.commands.of_key(job, key))

    def recoveries(self, job: str, *, limit: int = 50) -> tuple[RecoveryRecord, ...]:
        """Return the recoveries of a job, newest first.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.recoveries.list(job, limit=limit))

    def live_changes(self, job: str, name: str | None = None, *, limit: int = 50) -> tuple[LiveChangeRecord, ...]:
        """Return how the live values of a job have changed, or one of them, newest first.

        What is accepted is part of :meth:`job`.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.live.list(job, name, limit))

    def audit(self, job: str | None = None, *, limit: int = 50) -> tuple[AuditRecord, ...]:
        """Return the audit trail, newest first: who requested what, and its outcome."""
        return self._connection.call(lambda store: store.audit.list(job, limit=limit))

    def samples(
        self,
        job: str,
        *,
        since: datetime | timedelta = timedelta(hours=1),
        until: datetime | None = None,
        resolution_seconds: int | None = None,
    ) -> JobSamples:
        """Return samples of a job's queries and operators, oldest first.

        Args:
            since: a time with a time zone, or how long ago.
            resolution_seconds: 5, 60 or 3600; defaults to the finest resolution that is kept for that long.

        Raises:
            JobNotFound: there is no such job.
        """

        now = datetime.now(UTC)
        start = now - since if isinstance(since, timedelta) else since
        resolution = resolution_seconds or _finest(now - start)
        return self._connection.call(
            lambda store: JobSamples(
                queries=store.samples.queries(job, since=start, until=until, resolution=resolution),
                operators=store.samples.operators(job, since=start, until=until, resolution=resolution),
            )
        )

    def snapshot(self, job: str) -> JobSnapshot:
        """Return the current state of a job, with its newest checkpoints and its unfinished commands.

        Raises:
            JobNotFound: there is no such job.
        """

        def read(store: ControlStore) -> JobSnapshot:
            commands = store.commands.list(job=job, limit=_WATCHED_COMMANDS)
            return JobSnapshot(
                job=store.jobs.get(job),
                checkpoints=store.checkpoints.list(job, limit=_WATCHED_CHECKPOINTS),
                commands=tuple(command for command in commands if not command.is_finished),
            )

        return self._connection.call(read)

    def watch(self, job: str, *, interval: float = 1.0) -> Iterator[JobSnapshot]:
        """Yield snapshots of a job, ``interval`` seconds apart.

        Raises:
            JobNotFound: there is no such job (any more).
            DatabaseUnavailable: the database could not be reached for ``retry_seconds``.
        """
        while True:
            yield self.snapshot(job)
            time.sleep(interval)

    async def watch_async(self, job: str, *, interval: float = 1.0) -> AsyncIterator[JobSnapshot]:
        """Do the same as :meth:`watch`, without blocking the event loop."""
        while True:
            yield await asyncio.to_thread(self.snapshot, job)
            await asyncio.sleep(interval)


def _finest(age: timedelta) -> int:
    return next((seconds for seconds, kept in _RESOLUTIONS if age <= kept), _COARSEST)


def current_user() -> str:
    """Return the user of this process, for audit trails."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without an entry and without a variable
        return "unknown"
