"""Commands that end the job: stop, stop with a savepoint, restart, restore.

The agent is closed while the job ends, and reports the outcome last, before the process can end:

    stop                  the job has ended                               -> completed
    stop with savepoint   the savepoint exists, and then the job ends     -> completed
                          (if an earlier driver took it for the command,
                          and the job ran on after it: it is replaced)
    restart               the next driver runs                            -> completed, by the next driver
                          (if no next driver starts: failed)
    restore               the job has ended, the storage is restored      -> completed; then the next driver starts
                          (if no next driver starts: failed, and the
                          storage is unchanged)

A driver that dies before that, or that cannot reach the database at the end, leaves the command to the next driver
(:mod:`.command_takeover`).

Threads: each command has its own thread, which the process waits for.
"""

from __future__ import annotations

from typing import Any

from coord_control.control.agent.checkpoint_commands import (
    checkpoint_result,
    command_key,
    progress_of,
    request_of,
)
from coord_control.control.agent.driver_port import Completed, Handle
from coord_control.control.agent.execution import ThreadedExecution, Workplace, job_closed
from coord_control.control.agent.outcomes import cancelled, completed, failed, outcome_of, refused
from coord_control.control.agent.reconciliation import catalog_of
from coord_control.control.commands import (
    CheckpointResult,
    Refusal,
    Restart,
    Restore,
    RestoreResult,
    Stop,
    StopResult,
    StopWithSavepoint,
)
from coord_control.durable.offline.offline_restore import RestoreRequest, check_restore, restore_job
from coord_control.durable.restore.checks import refusal
from coord_control.errors import CheckpointNotCompleted
from coord_control.ids import CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.storage.records import CommandRecord, Outcome

__all__ = ["RestartExecution", "RestoreExecution", "StopExecution", "StopWithSavepointExecution"]


def _not_supervised(what: str) -> Outcome:
    return refused(
        Refusal.NOT_SUPERVISED,
        f"the driver does not run under coordctl run, which would have to start it again after a {what}; stop the job "
        "and start it again by hand",
    )


def _not_followed(place: Workplace, what: str, consequence: str) -> Outcome | None:
    """Return the failure of a command that ended the job if no next driver will start, otherwise None.

    Args:
        consequence: what happens to the job, and the next step.
    """
    if not place.is_supervised():
        why = f"the supervisor (coordctl run) was killed while the job was stopping for the {what}"
        return failed(Refusal.NOT_SUPERVISED.value, f"{why}, so the job {consequence}", retry=True)
    if (error := place.ending.final_error) is not None:
        why = f"the job failed while it was stopping for the {what}, with an error that a restart does not fix"
        message = f"{why} ({error}), so the job {consequence} once the error is fixed"
        return failed(Refusal.JOB_NOT_RUNNING.value, message, retry=True)
    return None


class StopExecution(ThreadedExecution):
    """``stop``.

    Args:
        savepoint: the one that an earlier driver took for the same command.
    """

    def __init__(
        self, command: CommandRecord, payload: Stop, place: Workplace, savepoint: CheckpointResult | None = None
    ) -> None:
        super().__init__(command, place, is_daemon=False)
        self._grace = payload.grace_seconds
        self._savepoint = savepoint

    def work(self) -> Outcome | None:
        if not self._place.ending.begin(restart=False):
            return job_closed(self._command)
        self.say("the job is stopping")
        self._place.port.stop(self._grace)
        return None

    def job_ended(self) -> Outcome | None:
        # Even if something else ended the job first: the result is the requested one.
        return self._outcome or completed(StopResult(savepoint=self._savepoint))


class StopWithSavepointExecution(ThreadedExecution):
    """``stop_with_savepoint``."""

    def __init__(self, command: CommandRecord, payload: StopWithSavepoint, place: Workplace) -> None:
        super().__init__(command, place, is_daemon=False)
        self._payload = payload
        self._handle: Handle | None = None
        self._savepoint: CheckpointResult | None = None
        self._is_cancelled = False

    def work(self) -> Outcome | None:
        payload, port = self._payload, self._place.port
        request = request_of(
            self._command, CheckpointKind.SAVEPOINT, payload.label, payload.target, "stop with savepoint"
        )
        try:
            done = self._take(request)
        except CheckpointNotCompleted as error:
            number = None if self._handle is None else self._handle.id
            if self._is_cancelled and error.reason == FailureReason.ABORTED.code:
                return cancelled("it was aborted on request; the job keeps running", number)
            return outcome_of(error, number)
        except TimeoutError as error:
            return failed(FailureReason.EXPIRED.name, str(error), retry=True)
        self._savepoint = checkpoint_result(done, CheckpointKind.SAVEPOINT)
        if not self._place.ending.begin(restart=False):
            return job_closed(self._command)
        self.say("the savepoint is complete, the job is stopping", checkpoint=int(done.id))
        port.stop()
        return None

    def _take(self, request: CheckpointRequest) -> Completed:
        port = self._place.port
        while True:
            try:
                return port.savepoint_and_pause(request, self._began, lambda: not self._is_cancelled)
            except CheckpointNotCompleted as error:
                # The key belongs to this command: an earlier driver took the savepoint, and died before the job ended.
                outdated = self._handle.id if self._handle is not None else None
                if error.reason != FailureReason.KEY_REUSED.code or outdated is None:
                    raise
            self.say(f"epochs have been processed since savepoint {outdated}: it is replaced by a new one")
            port.dispose(str(outdated))
            self._handle = None

    def progress(self) -> dict[str, Any] | None:
        return progress_of(self._place.port, self._handle) or self._progress

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._handle is not None:
            self._handle.abort()

    def job_ended(self) -> Outcome | None:
        if self._outcome is not None:
            return self._outcome
        if self._savepoint is None:
            return job_closed(self._command)
        return completed(StopResult(savepoint=self._savepoint), self._savepoint.checkpoint)

    def _began(self, handle: Handle) -> None:
        self._handle = handle
        if self._is_cancelled:
            handle.abort()


class RestartExecution(ThreadedExecution):
    """``restart``."""

    def __init__(self, command: CommandRecord, payload: Restart, place: Workplace) -> None:
        super().__init__(command, place, is_daemon=False)
        self._is_ending = False

    def work(self) -> Outcome | None:
        if not self._place.is_supervised():
            return _not_supervised("restart")
        if not self._place.ending.begin(restart=True):
            return job_closed(self._command)
        self._is_ending = True
        self.say("the job is restarting")
        self._place.port.stop(restart=True)
        return None

    def job_ended(self) -> Outcome | None:
        if self._outcome is not None or not self._is_ending:
            return self._outcome or job_closed(self._command)
        return _not_followed(self._place, "restart", "is not restarted automatically; start it with coordctl run")


class RestoreExecution(ThreadedExecution):
    """``restore``, of the job itself or as a fork."""

    def __init__(self, command: CommandRecord, payload: Restore, place: Workplace) -> None:
        super().__init__(command, place, is_daemon=False)
        self._payload = payload
        self._request: RestoreRequest | None = None  # set while the job ends for it

    def work(self) -> Outcome | None:
        payload, port, place = self._payload, self._place.port, self._place
        is_fork = payload.as_name is not None
        if not is_fork and not place.is_supervised():
            return _not_supervised("restore")
        meant = dict(self._command.progress or {})
        if "path" not in meant:
            entry = catalog_of(port).resolve(payload.ref)
            # A driver that repeats it must not resolve "latest" to a newer one.
            meant = {"message": f"checking {entry.path}", "checkpoint": int(entry.checkpoint), "path": entry.path}
            place.record(self._command, meant)
        request = RestoreRequest(
            root=port.facts.root,
            job=port.facts.name,
            ref=meant["path"],
            fork=payload.as_name,
            allow_non_restored_state=payload.allow_non_restored_state,
            allow_missing_input=payload.allow_missing_input,
            verify=payload.verify,
            force=payload.force,
            key=command_key(self._command),
        )
        path, checks = check_restore(port.files, port.storage, request)
        if (error := refusal(path, checks)) is not None:
            return refused(Refusal.RESTORE_REFUSED, str(error), fields=[each.to_json() for each in checks])
        if is_fork:
            return self._restore(request)
        if not place.ending.begin(restart=True):
            return job_closed(self._command)
        self._request = request
        self.say("the job is stopping to be restored and restarted")
        port.stop(restart=True)
        return None

    def job_ended(self) -> Outcome | None:
        if self._outcome is not None:
            return self._outcome
        if self._request is None:
            return job_closed(self._command)
        not_restored = "was not restored and is not restarted automatically; restore it with coordctl restore, then "
        if (outcome := _not_followed(self._place, "restore", f"{not_restored}start it with coordctl run")) is not None:
            return outcome
        # This must finish before the process ends, because then the supervisor starts the next driver.
        try:
            return self._restore(self._request)
        except Exception as error:
            return outcome_of(error)

    def _restore(self, request: RestoreRequest) -> Outcome:
        port = self._place.port
        done = restore_job(port.files, port.storage, request)
        result = RestoreResult(
            path=done.record.path,
            checkpoint=done.record.checkpoint,
            job=request.target,
            linked_bytes=done.linked_bytes,
            copied_bytes=done.copied_bytes,
            checks=tuple(each.to_json() for each in done.checks),
        )
        return completed(result, done.record.checkpoint)
