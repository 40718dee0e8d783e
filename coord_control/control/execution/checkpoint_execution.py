"""What commands that take checkpoints have in common: the request, the progress, the result.

Threads: see :mod:`.execution`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from pydantic import Field

from coord_control.control.execution.driver_port import Completed, DriverPort, Handle
from coord_control.control.execution.execution import Execution, Workplace, job_closed
from coord_control.control.execution.outcomes import CommandResult, cancelled, completed, outcome_of
from coord_control.control.wording import human_bytes, human_seconds
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.errors import CheckpointNotCompleted, CoordControlError, DamagedRecord, UnsupportedFormat
from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.storage.records import CommandRecord, Outcome

__all__ = [
    "CheckpointExecution",
    "CheckpointResult",
    "catalog_of",
    "checkpoint_result",
    "command_key",
    "find_by_key",
    "progress_of",
    "request_of",
    "stored_result",
]


class CheckpointResult(CommandResult):
    """A completed checkpoint or savepoint."""

    checkpoint: int
    kind: str  #: checkpoint or savepoint
    path: str
    duration_seconds: float
    state_bytes: int
    label: str | None = None
    epochs: dict[str, int] = Field(default_factory=dict)  #: by query

    def text(self, job: str) -> str:
        epochs = ", ".join(f"{query} after epoch {epoch}" for query, epoch in self.epochs.items())
        return (
            f"{self.kind} {self.checkpoint}: {self.path}\n"
            f"{human_bytes(self.state_bytes)} in {human_seconds(self.duration_seconds)}"
            + (f"; {epochs}" if epochs else "")
        )


def catalog_of(port: DriverPort) -> Catalog:
    """Return the catalog of the checkpoints of the port's job on its storage."""
    return Catalog(port.files, port.facts.folder, port.storage)


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


class CheckpointExecution(Execution):
    """The execution of a command that takes a checkpoint or savepoint.

    Args:
        target: the folder to create for a savepoint, or None for one in the job's folder.
    """

    def __init__(
        self,
        command: CommandRecord,
        place: Workplace,
        kind: CheckpointKind,
        *,
        label: str | None = None,
        target: str | None = None,
    ) -> None:
        self._command, self._place, self._kind = command, place, kind
        self._label, self._target = label, target
        self._handle: Handle | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        request = request_of(self._command, self._kind, self._label, self._target)
        self._handle = self._place.port.submit(request)

    @property
    def checkpoint(self) -> CheckpointId | None:
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

    def cancel(self) -> bool:
        if self._handle is None or self._handle.done:
            return False
        if not self._is_cancelled:
            self._is_cancelled = True
            self._handle.abort()
        return True

    def job_ended(self) -> Outcome | None:
        assert self._handle is not None, "it was begun"
        return self.poll() if self._handle.done else job_closed(self._command)
