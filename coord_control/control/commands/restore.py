"""``restore``, of the job itself or into a new one (a fork).

The checks run first. A fork is made while the job runs. Otherwise the job ends, its storage is put back, and then its
supervisor starts the next driver; if none is started, the command has failed, and the storage is as it was.

Taken over: completed if there is a restore with its key, or if the newest restore went to its folder and is of a later
generation; otherwise it is carried out again, from the folder that the older driver had found.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, ClassVar, Self

from coord_control.control.execution.checkpoint_execution import catalog_of, command_key
from coord_control.control.execution.command import Again, Command, Name, Path, Takeover
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.execution import Execution, ThreadedExecution, Workplace
from coord_control.control.execution.outcomes import CommandResult, completed, outcome_of
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.restore_log import RestoreRecord, find_restore, newest_restore
from coord_control.durable.offline.offline_restore import OfflineRestore, check_fork_name, check_restore, restore_job
from coord_control.durable.restore.checks import refuse
from coord_control.durable.restore.request import RestoreRequest
from coord_control.storage.records import CommandKind, CommandRecord, JobRecord, Outcome

__all__ = ["Restore", "RestoreResult", "next_step_of_fork"]


def next_step_of_fork(job: str) -> str:
    """Return what to do with a job that was forked."""
    return f'start its program now: Job("{job}", ...) with the same root, and with separate sinks'


class RestoreResult(CommandResult):
    """A job that was restored from a checkpoint or savepoint."""

    path: str
    checkpoint: int
    job: str  #: the restored job: the new one after a fork
    linked_bytes: int = 0
    copied_bytes: int = 0
    checks: tuple[dict[str, Any], ...] = ()  #: the preflight checks

    @classmethod
    def of(cls, done: OfflineRestore) -> Self:
        """Return the result of a restore that has taken place."""
        return cls(
            path=done.record.path,
            checkpoint=done.record.checkpoint,
            job=done.job,
            linked_bytes=done.linked_bytes,
            copied_bytes=done.copied_bytes,
            checks=tuple(each.to_json() for each in done.checks),
        )

    def text(self, job: str) -> str:
        if self.job == job:
            return f"job {job} resumes from checkpoint {self.checkpoint}: {self.path}"
        return (
            f"job {self.job} was forked from checkpoint {self.checkpoint}: {self.path}\n{next_step_of_fork(self.job)}"
        )


class Restore(RestoreRequest, Command[RestoreResult]):
    """Restore the job from a checkpoint or savepoint; with ``as_name``, fork a new job instead."""

    kind: ClassVar = CommandKind.RESTORE
    result: ClassVar = RestoreResult
    reads: ClassVar = True

    ref: Path
    as_name: Name | None = None

    @property
    def ends_job(self) -> bool:
        return self.as_name is None

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return RestoreExecution(command, self, place)

    def take_over(self, command: CommandRecord, port: DriverPort, now: datetime.datetime) -> Takeover:
        job = self.as_name or port.facts.name
        folder = join(port.facts.root, job)
        done = None if self.as_name else _restored_by_others(port, command, folder, self.roll_back_sinks)
        done = done or find_restore(port.files, folder, command_key(command))
        if done is None:
            return Again()
        return completed(RestoreResult(path=done.path, checkpoint=done.checkpoint, job=job), done.checkpoint)

    def check(self, job: str, read: Callable[[str], JobRecord]) -> None:
        check_fork_name(job, self.as_name)


class RestoreExecution(ThreadedExecution):
    def __init__(self, command: CommandRecord, payload: Restore, place: Workplace) -> None:
        super().__init__(command, place, is_daemon=False)
        self._payload = payload
        self._request: RestoreRequest | None = None  # the job is ending for it

    def work(self) -> Outcome | None:
        payload, port, place = self._payload, self._place.port, self._place
        is_fork = payload.as_name is not None
        if not is_fork and (refusal := place.ending.not_supervised("restore")) is not None:
            return refusal
        meant = dict(self._command.progress or {})
        if "path" not in meant:
            entry = catalog_of(port).resolve(payload.ref)
            # A driver that repeats it must not resolve "latest" to a newer one.
            meant = {"message": f"checking {entry.path}", "checkpoint": int(entry.checkpoint), "path": entry.path}
            place.journal.record(self._command, meant)
        request = payload.model_copy(update={"ref": meant["path"]})
        refuse(*check_restore(port.files, port.storage, request, root=port.facts.root, job=port.facts.name))
        if is_fork:
            return self._restore(request)
        place.ending.begin(self._command, restart=True)
        self._request = request
        self.say("the job is stopping to be restored and restarted")
        port.stop(restart=True)
        return None

    def job_ended(self) -> Outcome | None:
        if self._outcome is not None:
            return self._outcome
        if self._request is None:
            return self.came_too_late()
        not_restored = "was not restored and is not restarted automatically; restore it with coordctl restore, then "
        ending = self._place.ending
        if (outcome := ending.not_followed("restore", f"{not_restored}start it with coordctl run")) is not None:
            return outcome
        # This must finish before the process ends, because then the supervisor starts the next driver.
        try:
            return self._restore(self._request)
        except Exception as error:
            return outcome_of(error)

    def _restore(self, request: RestoreRequest) -> Outcome:
        port, key = self._place.port, command_key(self._command)
        done = restore_job(port.files, port.storage, request, root=port.facts.root, job=port.facts.name, key=key)
        return completed(RestoreResult.of(done), done.record.checkpoint)


def _restored_by_others(
    port: DriverPort, command: CommandRecord, folder: str, roll_back_sinks: bool
) -> RestoreRecord | None:
    """Return the newest restore if it went where this command wanted to go, after the driver that had claimed it.

    Args:
        roll_back_sinks: the command wanted the sinks to go there too.
    """
    assert command.generation is not None, "it was claimed"
    newest, path = newest_restore(port.files, folder), (command.progress or {}).get("path")
    if newest is None or path is None or newest.generation <= command.generation:
        return None
    if roll_back_sinks and not newest.roll_back_sinks:
        return None
    return newest if newest.path.rstrip("/") == str(path).rstrip("/") else None
