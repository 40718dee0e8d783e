"""Everything that a job can be asked for, from another process on any machine that reaches the control database.

A request is a row in the database that the job's driver takes and carries out; it is done once, however often it is
sent: each has an idempotency key, made up when none is given, and kept while a broken connection is tried again. A
caller that may be restarted itself gives a key of its own, so that asking again after the restart finds the first
request.

    with ControlClient() as client:
        savepoint = client.trigger_savepoint("flights", label="before-upgrade", key="deploy-42")
        print(client.wait(savepoint, timeout=60).path)

Neither Java nor Spark is needed here.

Threads: any; calls block on the database, and ``..._async`` waits without blocking the loop.
"""

from __future__ import annotations

import asyncio
import difflib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from coord_control.control import commands
from coord_control.control.client.command_wait import OnProgress, Wait, raise_if_not_running, result_of
from coord_control.control.client.reader import ControlReader
from coord_control.control.client.savepoint_import import read_savepoint
from coord_control.durable.checkpoints.checkpoint_folder import Storage
from coord_control.durable.offline.offline_restore import check_fork_name
from coord_control.errors import OperatorNotFound, RequestInvalid
from coord_control.storage.records import (
    AuditRecord,
    CommandRecord,
    CommandRequest,
    JobRecord,
    SavepointRecord,
)

__all__ = ["ControlClient"]

_C = TypeVar("_C", bound=commands.Command)


class ControlClient(ControlReader):
    """Asks jobs for things, and looks at them.

    Every request returns at once, with the recorded command; :meth:`wait` waits for its end and returns its typed
    result. All requests have two arguments in common:

    * ``key``: the same key again is the same command, and gives it back; another request with it is refused.
    * ``expires_seconds``: a command that no driver has taken by then has expired. None: ten minutes, or what
      ``COORD_CONTROL_EXPIRY_SECONDS`` says.

    and raise:

    * ``JobNotFound``: there is no such job; the message names those with a similar name.
    * ``JobNotRunning``: it has no driver that could do it; the request is recorded as refused.
    * ``KeyReused``: the key belongs to another request.
    * ``RequestInvalid``: an argument is too long, or does not make sense; nothing was sent.
    * ``DatabaseUnavailable``: the database could not be reached for ``COORD_CONTROL_RETRY_SECONDS``.
    """

    def trigger_checkpoint(
        self, job: str, *, label: str | None = None, key: str | None = None, expires_seconds: float | None = None
    ) -> CommandRecord:
        """Take a checkpoint now. Its result is a ``CheckpointResult``."""
        command = _made(commands.TriggerCheckpoint, label=label)
        return self._submit(job, command, key, expires_seconds)

    def trigger_savepoint(
        self,
        job: str,
        *,
        target: str | None = None,
        label: str | None = None,
        key: str | None = None,
        expires_seconds: float | None = None,
    ) -> CommandRecord:
        """Take a savepoint. Its result is a ``CheckpointResult``.

        Args:
            target: its new folder, as the driver's machine sees it; None: below the job's.
        """
        command = _made(commands.TriggerSavepoint, target=target, label=label)
        return self._submit(job, command, key, expires_seconds)

    def abort(
        self,
        job: str,
        *,
        checkpoint: int | None = None,
        command: str | None = None,
        key: str | None = None,
        expires_seconds: float | None = None,
    ) -> CommandRecord:
        """Give up a checkpoint that is under way, named by its id or by its command. Result: ``AbortResult``."""
        made = _made(commands.Abort, checkpoint=checkpoint, command=command)
        return self._submit(job, made, key, expires_seconds)

    def stop(
        self,
        job: str,
        *,
        grace_seconds: float | None = None,
        key: str | None = None,
        expires_seconds: float | None = None,
    ) -> CommandRecord:
        """End the job after its current epochs; nobody starts it again. Result: ``StopResult``."""
        command = _made(commands.Stop, grace_seconds=grace_seconds)
        return self._submit(job, command, key, expires_seconds)

    def stop_with_savepoint(
        self,
        job: str,
        *,
        target: str | None = None,
        label: str | None = None,
        key: str | None = None,
        expires_seconds: float | None = None,
    ) -> CommandRecord:
        """Take a savepoint, process nothing after it, and end the job. Result: ``StopResult``."""
        command = _made(commands.StopWithSavepoint, target=target, label=label)
        return self._submit(job, command, key, expires_seconds)

    def restart(self, job: str, *, key: str | None = None, expires_seconds: float | None = None) -> CommandRecord:
        """End the job's driver and have it started again. Result: ``RestartResult``, once the next one runs."""
        return self._submit(job, commands.Restart(), key, expires_seconds)

    def restore(
        self,
        job: str,
        ref: str,
        *,
        allow_non_restored_state: bool = False,
        allow_missing_input: bool = False,
        verify: bool = True,
        force: bool = False,
        as_name: str | None = None,
        key: str | None = None,
        expires_seconds: float | None = None,
    ) -> CommandRecord:
        """Let the running job go on from a checkpoint or savepoint. Result: ``RestoreResult``.

        Args:
            ref: an id, a label, ``latest``, or a path.
            allow_non_restored_state: queries and operators may come and go.
            allow_missing_input: files that a source would read again may be gone; their rows are lost.
            verify: read all files and compare their checksums, not only their sizes.
            force: also when a driver of the job that is restored may run where the running driver cannot look: it is
                fenced off. That is so for a fork whose name another machine has used.
            as_name: another job goes on from it, beside this one, which is left alone.

        Raises:
            ForkNameTaken: ``as_name`` is the job itself; nothing was recorded.
        """
        check_fork_name(job, as_name)
        command = _made(
            commands.Restore,
            ref=ref,
            allow_non_restored_state=allow_non_restored_state,
            allow_missing_input=allow_missing_input,
            verify=verify,
            force=force,
            as_name=as_name,
        )
        return self._submit(job, command, key, expires_seconds)

    def dispose(
        self, job: str, ref: str, *, key: str | None = None, expires_seconds: float | None = None
    ) -> CommandRecord:
        """Remove a checkpoint or savepoint for good. Result: ``DisposeResult``."""
        return self._submit(job, _made(commands.Dispose, ref=ref), key, expires_seconds)

    def verify(
        self, job: str, ref: str, *, key: str | None = None, expires_seconds: float | None = None
    ) -> CommandRecord:
        """Have the driver read all files of a checkpoint or savepoint. Result: ``VerifyResult``."""
        return self._submit(job, _made(commands.Verify, ref=ref), key, expires_seconds)

    def send_event(
        self,
        job: str,
        operator: str,
        event_type: str,
        payload: JsonValue | BaseModel,
        *,
        subtask: int | None = None,
        key: str | None = None,
        expires_seconds: float | None = None,
    ) -> CommandRecord:
        """Send a control event, exactly once. Result: ``SendEventResult``, once its effect is durable.

        Args:
            event_type: one of the event models that the operator declares, by its class name.
            payload: the event; whether it fits the model is decided by the driver.
            subtask: None: all of them, or whatever the operator's coordinator makes of it.

        Raises:
            OperatorNotFound: the job has no such operator, or the operator no such event.
        """
        value = payload.model_dump(mode="json") if isinstance(payload, BaseModel) else payload
        command = _made(commands.SendEvent, operator=operator, event_type=event_type, payload=value, subtask=subtask)
        record = self.job(job)
        if record.is_alive:  # one that does not run is refused for that reason, and has perhaps said nothing yet
            _check_event(record, operator, event_type)
        return self._submit(job, command, key, expires_seconds)

    def cancel(self, command: str | CommandRecord) -> CommandRecord:
        """Give up a command: at once when no driver has taken it; a checkpoint under way is aborted.

        Raises:
            CommandNotFound: there is none.
            CommandNotCancellable: a driver carries it out already, and it is no checkpoint.
        """
        name = _id(command)
        return self._connection.call(lambda store: store.commands.cancel(name, self.actor))

    def wait(
        self,
        command: str | CommandRecord,
        timeout: float | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> commands.CommandResult:
        """Wait for a command's end, and return its result.

        Args:
            timeout: seconds; None: as long as it takes.
            on_progress: is told the command whenever it has changed: see ``CommandRecord.progress``.

        Raises:
            CommandTimeout: it goes on; wait again, or cancel it.
            CommandFailed: it was carried out and failed. Subclasses: ``CommandRefused``, ``ControlEventRefused``
                (``fields`` says what is wrong), ``CommandExpired``, ``CommandCancelled``.
            JobNotRunning: the job has no driver that could do it.
        """
        name, wait = _id(command), Wait(timeout, on_progress, time.monotonic())
        while True:
            record = self._connection.call(lambda store: store.commands.look(name))
            pause = wait.pause_after(record, time.monotonic())
            if pause is None:
                return result_of(record)
            time.sleep(pause)

    async def wait_async(
        self,
        command: str | CommandRecord,
        timeout: float | None = None,  # noqa: ASYNC109 - as in wait(); its error says how to go on
        *,
        on_progress: OnProgress | None = None,
    ) -> commands.CommandResult:
        """As :meth:`wait`, without blocking the loop."""
        name, wait = _id(command), Wait(timeout, on_progress, time.monotonic())
        while True:
            record = await asyncio.to_thread(self._connection.call, lambda store: store.commands.look(name))
            pause = wait.pause_after(record, time.monotonic())
            if pause is None:
                return result_of(record)
            await asyncio.sleep(pause)

    def import_savepoint(self, path: str, *, storage: Storage | None = None) -> SavepointRecord:
        """Record a savepoint that no job of this database has taken; nothing of it is copied.

        Args:
            path: its folder; without ``storage`` on this machine.
            storage: how paths of other kinds are read.

        Raises:
            CheckpointNotFound: there is none; the message names folders with a similar name.
            DamagedRecord, UnsupportedFormat: what it says about itself cannot be read.
        """
        record = read_savepoint(path, storage)
        saved = self._connection.call(lambda store: store.savepoints.save(record))
        self._audit("import_savepoint", record.job, record.path)
        return saved

    def record_verified(self, path: str, problems: Sequence[str] = ()) -> SavepointRecord:
        """Record that all files of a savepoint were read, by somebody who did it without the job's driver.

        Args:
            problems: what must keep it from being restored.

        Raises:
            RecordNotFound: no savepoint is known at this path.
        """
        self._connection.call(lambda store: store.savepoints.get(path))  # a database that is not there is not made
        marked = self._connection.call(lambda store: store.savepoints.mark_verified(path, problems))
        self._audit("verify", marked.job, path)
        return marked

    def record_disposed(self, path: str) -> None:
        """Record that a savepoint was removed from its storage without the job's driver.

        Raises:
            RecordNotFound: no savepoint is known at this path.
        """
        known = self._connection.call(lambda store: store.savepoints.get(path))  # a missing database is not made
        self._connection.call(lambda store: store.savepoints.forget(path))
        self._audit("dispose", known.job, path)

    def record_dropped(self, job: str, operator: str, subtask: int, events: int) -> None:
        """Record that what waited for a subtask was dropped on the job's storage.

        Raises:
            JobNotFound: there is no such job.
        """
        self.job(job)
        self._audit("drop_mailbox", job, f"{operator}[{subtask}]", {"events": events})

    def forget(self, job: str) -> None:
        """Remove a job's history from the database; its checkpoints on storage stay.

        Raises:
            JobNotFound: there is no such job.
            JobStillAlive: it has a driver.
        """
        self._connection.call(lambda store: store.jobs.forget(job))
        self._audit("forget", job, job)

    def _audit(self, action: str, job: str | None, subject: str, details: dict[str, Any] | None = None) -> None:
        # What is no command leaves its trace here; commands leave theirs in the transaction that records them.
        entry = AuditRecord(
            actor=self.actor,
            host=self.host,
            action=action,
            job=job,
            subject=subject,
            outcome="completed",
            details=details or {},
        )
        self._connection.call(lambda store: store.audit.add(entry))

    def _submit(
        self, job: str, command: commands.Command, key: str | None, expires_seconds: float | None
    ) -> CommandRecord:
        request = CommandRequest(
            job=job,
            kind=command.kind,
            payload=commands.command_payload(command),
            key=key or uuid.uuid4().hex,
            operator=command.operator if isinstance(command, commands.SendEvent) else None,
            requested_by=self.actor,
            requested_from=self.host,
            expires_seconds=self.settings.expiry_seconds if expires_seconds is None else expires_seconds,
        )
        record = self._connection.call(lambda store: store.commands.submit(request))
        raise_if_not_running(record)
        return record


def _made(model: Callable[..., _C], **arguments: Any) -> _C:
    try:
        return model(**arguments)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}".lstrip(": ") for each in error.errors()]
        kind = str(getattr(model, "model_fields")["kind"].default)  # noqa: B009 - a callable, for mypy
        raise RequestInvalid(kind, problems) from error


def _id(command: str | CommandRecord) -> str:
    return command if isinstance(command, str) else command.id


def _check_event(job: JobRecord, uid: str, event_type: str) -> None:
    known = {operator.uid: operator for operator in job.operators}
    if uid not in known:
        near = difflib.get_close_matches(uid, known, n=3)
        raise OperatorNotFound("operator", uid, f"job {job.name!r}", known, near)
    types = [each.name for each in known[uid].event_types]
    if event_type not in types:
        near = difflib.get_close_matches(event_type, types, n=3)
        raise OperatorNotFound("control event", event_type, f"operator {uid!r}", types, near)
