"""Commands on single checkpoints: trigger, abort, dispose, verify.

Threads: see :mod:`.execution`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from coord_control.control.agent.buffer import SavepointDisposed, SavepointVerified
from coord_control.control.agent.driver_port import Completed, DriverPort, Handle
from coord_control.control.agent.execution import ThreadedExecution, Workplace, job_closed
from coord_control.control.agent.outcomes import cancelled, completed, outcome_of, refused
from coord_control.control.agent.reconciliation import catalog_of
from coord_control.control.commands import (
    Abort,
    AbortResult,
    CheckpointResult,
    Dispose,
    DisposeResult,
    Refusal,
    TriggerCheckpoint,
    TriggerSavepoint,
    Verify,
    VerifyResult,
)
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.errors import (
    CheckpointNotCompleted,
    CheckpointNotFound,
    CoordControlError,
    DamagedRecord,
    UnsupportedFormat,
)
from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.storage.records import CommandRecord, Outcome

__all__ = [
    "AbortExecution",
    "CheckpointExecution",
    "DisposeExecution",
    "VerifyExecution",
    "checkpoint_result",
    "command_key",
    "find_by_key",
    "progress_of",
    "request_of",
    "stored_result",
]


def command_key(command: CommandRecord) -> str:
    """Return the idempotency key of the checkpoint or restore that a command requests. It is recorded on the storage,
    for later drivers."""
    return f"command:{command.id}"


def request_of(
    command: CommandRecord, kind: CheckpointKind, label: str | None, target: str | None, cause: str = "command"
) -> CheckpointRequest:
    """Return the checkpoint request of a command.

    Raises:
        InvalidName: the label cannot be part of a path.
    """
    return CheckpointRequest(
        kind=kind,
        key=command_key(command),
        label=label,
        target=target,
        cause=cause,
        requested_by=command.requested_by or None,
    )


def find_by_key(catalog: Catalog, command: CommandRecord) -> CheckpointEntry | None:
    """Return the complete checkpoint that a command has made, if any."""
    key = command_key(command)
    for entry in catalog.entries():
        if entry.is_completed and entry.trigger is not None and entry.trigger.key == key:
            return entry
    return None


def checkpoint_result(done: Completed, kind: CheckpointKind) -> CheckpointResult:
    """Return the result of a complete checkpoint; from memory, because it is called on the agent's thread."""
    if done.statistics is None:
        return CheckpointResult(
            checkpoint=done.id, kind=kind.value, path=done.path, duration_seconds=0.0, state_bytes=0
        )
    return _result(done.statistics, done.path)


def stored_result(catalog: Catalog, entry: CheckpointEntry) -> CheckpointResult:
    """Return the result of a complete checkpoint from the storage.

    Raises:
        CheckpointNotFound: it was removed meanwhile.
        StoreUnavailable, DamagedRecord, UnsupportedFormat: its metadata cannot be read.
    """
    metadata = catalog.read(entry)
    try:
        return _result(stored_statistics(metadata, entry.path), entry.path)
    except (DamagedRecord, UnsupportedFormat):  # of a coordinator's state: the checkpoint is still complete
        return CheckpointResult(
            checkpoint=entry.checkpoint, kind=entry.kind, path=entry.path, duration_seconds=0.0, state_bytes=entry.size
        )


def _result(found: CheckpointStatistics, path: str) -> CheckpointResult:
    return CheckpointResult(
        checkpoint=found.checkpoint,
        kind=found.kind.value,
        path=path,
        duration_seconds=found.duration_seconds or 0.0,
        state_bytes=found.state_bytes,
        label=found.label,
        epochs={query.query: query.boundary for query in found.queries if query.boundary is not None},
    )


def progress_of(port: DriverPort, handle: Handle | None) -> dict[str, Any] | None:
    """Return the progress of a checkpoint as the fields of ``CommandProgress``."""
    if handle is None or handle.done:
        return None
    if handle.id is None:
        return {"message": "waiting for its turn"}
    found: dict[str, Any] = {"message": "in progress", "checkpoint": int(handle.id)}
    if (now := handle.progress()) is not None:
        found |= {"subtasks": now.subtasks, "passed_subtasks": now.passed}
        if now.waiting_for:
            found["message"] = f"waiting for the state of the coordinator of {', '.join(now.waiting_for)}"
        elif now.passed < now.subtasks:
            found["message"] = f"{now.passed} of {now.subtasks} subtasks have passed the boundary"
        with contextlib.suppress(CoordControlError):
            operators = port.status().operators
            found["blocked_events"] = sum(gateway.blocked for each in operators for gateway in each.gateways)
    return found


class CheckpointExecution:
    """``trigger_checkpoint`` and ``trigger_savepoint``."""

    def __init__(self, command: CommandRecord, payload: TriggerCheckpoint | TriggerSavepoint, place: Workplace) -> None:
        self._command, self._payload, self._place = command, payload, place
        self._kind = CheckpointKind.SAVEPOINT if isinstance(payload, TriggerSavepoint) else CheckpointKind.CHECKPOINT
        self._handle: Handle | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        payload = self._payload
        target = payload.target if isinstance(payload, TriggerSavepoint) else None
        self._handle = self._place.port.submit(request_of(self._command, self._kind, payload.label, target))

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The checkpoint's id, once it has one."""
        return None if self._handle is None else self._handle.id

    def poll(self) -> Outcome | None:
        assert self._handle is not None, "it was begun"
        if not self._handle.done:
            return None
        try:
            done = self._handle.wait(0.0)
        except CheckpointNotCompleted as error:
            if self._is_cancelled and error.reason == FailureReason.ABORTED.code:
                return cancelled("it was aborted on request", self._handle.id)
            return outcome_of(error, self._handle.id)
        return completed(checkpoint_result(done, self._kind), done.id)

    def progress(self) -> dict[str, Any] | None:
        return progress_of(self._place.port, self._handle)

    def cancel(self) -> None:
        if self._handle is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._handle.abort()

    def job_ended(self) -> Outcome | None:
        assert self._handle is not None, "it was begun"
        return self.poll() if self._handle.done else job_closed(self._command)


class AbortExecution:
    """``abort``, for a checkpoint in progress, given by its id or by the command that requested it."""

    def __init__(self, command: CommandRecord, payload: Abort, place: Workplace) -> None:
        self._command, self._payload, self._place = command, payload, place
        self._outcome: Outcome | None = None

    def begin(self) -> None:
        payload, place = self._payload, self._place
        if payload.command is not None:
            checkpoint = place.checkpoint_of(payload.command)
            was_there = place.cancel(payload.command)
        else:
            assert payload.checkpoint is not None, "its model demands one of the two"
            checkpoint = payload.checkpoint
            was_there = place.port.abort(CheckpointId(checkpoint))
        if was_there:
            self._outcome = completed(AbortResult(checkpoint=checkpoint or 0), checkpoint)
        elif checkpoint is not None and self._died_with_its_driver(checkpoint):
            self._outcome = completed(AbortResult(checkpoint=checkpoint), checkpoint)
        else:
            self._outcome = refused(Refusal.NOTHING_TO_ABORT, "it has already finished, or was never started")

    def poll(self) -> Outcome | None:
        return self._outcome

    def progress(self) -> dict[str, Any] | None:
        return None

    def cancel(self) -> None:
        """Do nothing: the command finishes as soon as it begins."""

    def job_ended(self) -> Outcome | None:
        return self._outcome

    def _died_with_its_driver(self, checkpoint: int) -> bool:
        # Taken over from an older driver: the abort is done if the checkpoint failed together with that driver.
        assert self._command.generation is not None, "it was claimed"
        is_older = self._command.generation < self._place.port.facts.generation
        return is_older and self._place.has_failed(checkpoint)


class DisposeExecution(ThreadedExecution):
    """``dispose``."""

    def __init__(self, command: CommandRecord, payload: Dispose, place: Workplace) -> None:
        super().__init__(command, place)
        self._payload = payload

    def work(self) -> Outcome | None:
        port, meant = self._place.port, dict(self._command.progress or {})
        if "path" not in meant:
            entry = catalog_of(port).resolve(self._payload.ref)
            # Recorded before the removal: a later driver that finds nothing there must know that this one has removed
            # it, and must not resolve "latest" to the checkpoint before.
            meant = {"message": f"removes {entry.path}", "checkpoint": int(entry.checkpoint), "path": entry.path}
            self._place.record(self._command, meant)
        checkpoint, path = meant["checkpoint"], meant["path"]
        with contextlib.suppress(CheckpointNotFound):  # an earlier driver removed it, and died before it reported that
            port.dispose(path)
        self._place.happened(SavepointDisposed(path))
        return completed(DisposeResult(path=path, checkpoint=checkpoint), checkpoint)


class VerifyExecution(ThreadedExecution):
    """``verify``."""

    def __init__(self, command: CommandRecord, payload: Verify, place: Workplace) -> None:
        super().__init__(command, place)
        self._payload = payload

    def work(self) -> Outcome | None:
        catalog = catalog_of(self._place.port)
        with catalog.hold(self._payload.ref, "it is being verified") as entry:
            self.say(f"reads {entry.path}", checkpoint=int(entry.checkpoint))
            metadata = catalog.read(entry)
            problems = list(verify_files(catalog.files_of(entry), entry.path, metadata))
        fatal = tuple(str(each) for each in problems if each.is_fatal)
        self._place.happened(SavepointVerified(entry.path, fatal))
        found = [
            {"path": each.path, "kind": each.kind.value, "detail": each.detail, "fatal": each.is_fatal}
            for each in problems
        ]
        result = VerifyResult(
            path=entry.path,
            checkpoint=entry.checkpoint,
            files=metadata.file_count,
            size=metadata.size,
            problems=tuple(found),
        )
        return completed(result, entry.checkpoint)
