"""What a client can look at.

Threads: any; every call is one transaction of its own.
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

from coord_control.control.client.database_connection import Connection
from coord_control.control.client.fleet_reader import FleetReader
from coord_control.control.client.job_snapshot import JobSnapshot, Samples
from coord_control.control.settings import ControlSettings
from coord_control.storage.records import (
    AuditRecord,
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    CheckpointSummary,
    CommandKind,
    CommandRecord,
    CommandState,
    GenerationRecord,
    JobRecord,
    RecoveryRecord,
    SavepointRecord,
    SubtaskRecord,
)
from coord_control.storage.store import ControlStore

__all__ = ["ControlReader"]

_WATCHED_CHECKPOINTS: Final = 10
_WATCHED_COMMANDS: Final = 10
#: Seconds of a sample, and for how long such ones are kept.
_RESOLUTIONS: Final = ((5, timedelta(hours=1)), (60, timedelta(days=1)))
_COARSEST: Final = 3600


class ControlReader(FleetReader):
    """The reading half of :class:`~coord_control.control.client.control_client.ControlClient`."""

    def __init__(
        self, url: str | None = None, *, actor: str | None = None, settings: ControlSettings | None = None
    ) -> None:
        """
        Args:
            url: the database; None: as ``COORD_CONTROL`` says, or the user's embedded one.
            actor: who asks, for the audit trail; None: the user of this process.
            settings: instead of those of the environment.

        Raises:
            ControlSettingsInvalid: the environment says something that cannot be used.
            NoControlPlane: it says that there is none.
        """
        loaded = settings if settings is not None and url is None else ControlSettings.load(url)
        self._connection = Connection(loaded, application="coord-control client")
        self.actor = actor or current_user()
        self.host = socket.gethostname()

    @property
    def url(self) -> str:
        """The database's address, without a password."""
        return self._connection.display_url

    @property
    def settings(self) -> ControlSettings:
        """What this client goes by."""
        return self._connection.settings

    def close(self) -> None:
        """Give the connections back. May be called twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def jobs(self) -> tuple[JobRecord, ...]:
        """All jobs by name, without their queries and operators."""
        return self._connection.call(lambda store: store.jobs.list())

    def job(self, name: str) -> JobRecord:
        """One job with everything that its driver last said of itself.

        Raises:
            JobNotFound: there is none; the message names those with a similar name.
        """
        return self._connection.call(lambda store: store.jobs.get(name))

    def generations(self, job: str) -> tuple[GenerationRecord, ...]:
        """The drivers that a job has had, newest first.

        Raises:
            JobNotFound: there is none.
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
        """Checkpoints and savepoints of a job, newest first.

        Args:
            requested_by: only those of this actor: a user of a client, or ``dagster:schedule:<name>``.
            before: only those with a smaller id: the next page.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(
            lambda store: store.checkpoints.list(
                job, kind=kind, state=state, requested_by=requested_by, limit=limit, before_id=before
            )
        )

    def checkpoint(self, job: str, checkpoint: int) -> CheckpointRecord:
        """One of them, with its queries and operators.

        Raises:
            JobNotFound, RecordNotFound: there is none; the message names those beside it.
        """
        return self._connection.call(lambda store: store.checkpoints.get(job, checkpoint))

    def subtasks(self, job: str, checkpoint: int) -> tuple[SubtaskRecord, ...]:
        """The part of every subtask in a checkpoint; empty when its history is so old that it was thinned out.

        Raises:
            JobNotFound, RecordNotFound: there is none.
        """
        return self._connection.call(lambda store: store.checkpoints.subtasks(job, checkpoint))

    def summary(self, job: str, *, kind: CheckpointKind | None = None, window: int = 10_000) -> CheckpointSummary:
        """Counts, and percentiles over the newest ``window`` completed checkpoints.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.checkpoints.summary(job, kind=kind, window=window))

    def savepoints(self, job: str | None = None) -> tuple[SavepointRecord, ...]:
        """Savepoints, newest first; also imported ones."""
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
        """Commands, newest first; of all jobs without a job.

        Args:
            before: only those with a smaller id: the next page.
        """
        return self._connection.call(
            lambda store: store.commands.list(job=job, state=state, kind=kind, limit=limit, before=before)
        )

    def command(self, command: str) -> CommandRecord:
        """One command.

        Raises:
            CommandNotFound: there is none.
        """
        return self._connection.call(lambda store: store.commands.get(command))

    def command_of_key(self, job: str, key: str) -> CommandRecord | None:
        """The command that was requested with an idempotency key; None: there is none yet.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.commands.of_key(job, key))

    def recoveries(self, job: str, *, limit: int = 50) -> tuple[RecoveryRecord, ...]:
        """Why and from where a job went on, newest first.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._connection.call(lambda store: store.recoveries.list(job, limit=limit))

    def audit(self, job: str | None = None, *, limit: int = 50) -> tuple[AuditRecord, ...]:
        """Who asked for what, with which outcome, newest first."""
        return self._connection.call(lambda store: store.audit.list(job, limit=limit))

    def samples(
        self,
        job: str,
        *,
        since: datetime | timedelta = timedelta(hours=1),
        until: datetime | None = None,
        resolution_seconds: int | None = None,
    ) -> Samples:
        """What was measured of a job's queries and operators, oldest first.

        Args:
            since: a time with a zone, or how long ago.
            resolution_seconds: 5, 60 or 3600; None: the finest that is kept for so long.

        Raises:
            JobNotFound: there is no such job.
        """

        now = datetime.now(UTC)
        start = now - since if isinstance(since, timedelta) else since
        resolution = resolution_seconds or _finest(now - start)
        return self._connection.call(
            lambda store: Samples(
                queries=store.samples.queries(job, since=start, until=until, resolution=resolution),
                operators=store.samples.operators(job, since=start, until=until, resolution=resolution),
            )
        )

    def snapshot(self, job: str) -> JobSnapshot:
        """A job as it is now, with its newest checkpoints and the commands that are not finished.

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
        """Look at a job again and again, ``interval`` seconds apart, until nobody wants the next one.

        Raises:
            JobNotFound: there is no such job, or not any more.
            DatabaseUnavailable: as every call, after ``retry_seconds``.
        """
        while True:
            yield self.snapshot(job)
            time.sleep(interval)

    async def watch_async(self, job: str, *, interval: float = 1.0) -> AsyncIterator[JobSnapshot]:
        """As :meth:`watch`."""
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
