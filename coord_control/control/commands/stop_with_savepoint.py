"""``stop_with_savepoint``: takes a savepoint, after which nothing is processed, and then ends the job.

With ``drain`` every query first reads what its sources have when the command is carried out. The command is completed
when all is done. If an earlier driver took a savepoint for the same command, and epochs have
been processed since, that savepoint is removed and another one is taken.

Taken over:

| what is found                                          | then                                                    |
| ------------------------------------------------------ | ------------------------------------------------------- |
| its savepoint, and the job has ended since             | completed                                               |
| its savepoint, and the driver died;                    |                                                         |
| no epoch has run since                                 | this job ends as well                                   |
| an epoch has run since, or may have                    | again: queries beyond the savepoint get a new one       |
| none, and the job has ended since                      | refused: the job ended otherwise                        |
| none, and the driver died, perhaps while it drained    | again; ``drain``: what the sources have then            |
"""

from __future__ import annotations

import contextlib
import datetime
from typing import Any, ClassVar, Final

from coord_control.control.commands.stop import StopResult
from coord_control.control.execution.checkpoint_execution import (
    CheckpointResult,
    catalog_of,
    checkpoint_result,
    find_by_key,
    progress_of,
    request_of,
    stored_result,
)
from coord_control.control.execution.command import Again, Command, EndJob, Label, Path, Takeover
from coord_control.control.execution.driver_port import Completed, DriverPort, Handle
from coord_control.control.execution.ending import has_ended
from coord_control.control.execution.execution import Execution, ThreadedExecution, Workplace, job_closed
from coord_control.control.execution.outcomes import cancelled, completed, failed, outcome_of
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata
from coord_control.durable.restore.prepared_restore import queries_of
from coord_control.durable.restore.reached import stands_at
from coord_control.errors import CheckpointNotCompleted, CheckpointNotFound
from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["StopWithSavepoint", "StopWithSavepointExecution"]

_CANCELLED: Final = "it was aborted on request; the job keeps running"


class StopWithSavepoint(Command[StopResult]):
    """Take a savepoint, plan no epoch after it, and end the driver with exit code 0; on request after draining."""

    kind: ClassVar = CommandKind.STOP_WITH_SAVEPOINT
    result: ClassVar = StopResult
    takes: ClassVar = CheckpointKind.SAVEPOINT

    target: Path | None = None
    label: Label | None = None
    drain: bool = False  #: read everything that the sources have now, before the savepoint

    @property
    def ends_job(self) -> bool:
        return True

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return StopWithSavepointExecution(command, self, place)

    def take_over(self, command: CommandRecord, port: DriverPort, now: datetime.datetime) -> Takeover:
        catalog = catalog_of(port)
        savepoint, metadata = None, None
        if (entry := find_by_key(catalog, command)) is not None:
            with contextlib.suppress(CheckpointNotFound):  # it was removed meanwhile
                savepoint, metadata = stored_result(catalog, entry), catalog.read(entry)
        if has_ended(command, port, now):
            if savepoint is None:
                return job_closed(command)
            return completed(StopResult(savepoint=savepoint), savepoint.checkpoint)
        if metadata is None or not _is_last(port, metadata):
            return Again()
        return EndJob(savepoint)


class StopWithSavepointExecution(ThreadedExecution):
    def __init__(self, command: CommandRecord, payload: StopWithSavepoint, place: Workplace) -> None:
        super().__init__(command, place, is_daemon=False)
        self._payload = payload
        self._handle: Handle | None = None
        self._savepoint: CheckpointResult | None = None
        self._is_cancelled = False

    @property
    def checkpoint(self) -> CheckpointId | None:
        return None if self._handle is None else self._handle.id

    def work(self) -> Outcome | None:
        payload, port = self._payload, self._place.port
        request = request_of(
            self._command, CheckpointKind.SAVEPOINT, payload.label, payload.target, "stop with savepoint"
        )
        try:
            done = self._take(request)
        except CheckpointNotCompleted as error:
            if self._is_cancelled and error.reason == FailureReason.ABORTED.code:
                return cancelled(_CANCELLED, self.checkpoint)
            return outcome_of(error, self.checkpoint)
        except TimeoutError as error:
            return failed(FailureReason.EXPIRED.name, str(error), retry=True)
        self._savepoint = checkpoint_result(done, CheckpointKind.SAVEPOINT)
        self._place.ending.begin(self._command, restart=False)
        self.say("the savepoint is complete, the job is stopping", checkpoint=int(done.id))
        port.stop()
        return None

    def _take(self, request: CheckpointRequest) -> Completed:
        port = self._place.port
        tell_draining = self.say if self._payload.drain else None
        while True:
            try:
                return port.savepoint_and_pause(
                    request, self._began, lambda: not self._is_cancelled, tell_draining=tell_draining
                )
            except CheckpointNotCompleted as error:
                # The key belongs to this command: an earlier driver took the savepoint, and died before the job ended.
                outdated = self.checkpoint
                if error.reason != FailureReason.KEY_REUSED.code or outdated is None:
                    raise
            self.say(f"epochs have been processed since savepoint {outdated}: it is replaced by a new one")
            port.dispose(str(outdated))
            self._handle = None

    def progress(self) -> dict[str, Any] | None:
        return progress_of(self._place.port, self._handle) or self._progress

    def cancel(self) -> bool:
        if self._savepoint is not None or self._outcome is not None:
            return False
        if not self._is_cancelled:
            self._is_cancelled = True
            if self._handle is not None:
                self._handle.abort()
            if not self.has_begun:
                self._outcome = cancelled(_CANCELLED)
        return True

    def job_ended(self) -> Outcome | None:
        if self._outcome is not None or self._place.ending.has_next_driver:
            return self._outcome
        if self._savepoint is None:
            return self.came_too_late()
        return completed(StopResult(savepoint=self._savepoint), self._savepoint.checkpoint)

    def _began(self, handle: Handle) -> None:
        self._handle = handle
        if self._is_cancelled:
            handle.abort()


def _is_last(port: DriverPort, savepoint: CheckpointMetadata) -> bool:
    """Return whether nothing has run since: another driver may have run, unknown to the database, and died as well."""
    folder = port.facts.folder
    names = queries_of(port.files, folder)
    return savepoint.queries.keys() == set(names) and all(
        stands_at(port.files, folder, name, savepoint.queries[name]) for name in names
    )
