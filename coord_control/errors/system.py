"""What storage, network, Spark and other drivers can get wrong, and how a query or a job ends."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import ClassVar

from coord_control.errors.base import CoordControlError, Fault

__all__ = [
    "AlreadyExists",
    "AttemptRefused",
    "AuthenticationFailed",
    "CheckpointInUse",
    "CheckpointNotCompleted",
    "CheckpointNotFound",
    "CommitUnknown",
    "CommittedElsewhere",
    "DamagedRecord",
    "EndpointClosed",
    "EndpointError",
    "EndpointNotBound",
    "EndpointTimeout",
    "EndpointUnreachable",
    "EpochNotRun",
    "Fenced",
    "FrameInvalid",
    "JavaMissing",
    "JobClosed",
    "JobEndRequested",
    "JobRunning",
    "LabelTaken",
    "MailboxNotFound",
    "MissingRecord",
    "NotAnswered",
    "NothingToSave",
    "OlderDriverAlive",
    "QueryFailed",
    "SavepointTargetTaken",
    "SparkLost",
    "StateFileMissing",
    "StoreError",
    "StoreUnavailable",
    "SupervisorLost",
    "TooManyFailedCheckpoints",
    "UnsupportedFormat",
]


class NotAnswered(CoordControlError):
    """A request to an operator has no answer now; it may have one later."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, operator: str, why: str) -> None:
        self.operator, self.why = operator, why
        super().__init__(f"operator {operator!r} has not answered: {why}")


class Fenced(CoordControlError):
    """Another driver has claimed a newer generation of the job (protocol section 6)."""

    fault = Fault.EXTERNAL

    def __init__(self, job: str, generation: int, newer: int | None = None, holder: str = "another driver") -> None:
        self.job, self.generation, self.newer, self.holder = job, generation, newer, holder
        what = f"generation {newer}" if newer is not None else "a newer generation"
        super().__init__(
            f"job {job!r}: {holder} has claimed {what}; this driver (generation {generation}) stops. Only one driver "
            f"of a job may run at a time; list them with: coordctl generations {job}"
        )


class CommittedElsewhere(CoordControlError):
    """An epoch of a running query was committed, but not by this driver's own run (protocol section 3, step 4).

    Args:
        why: the error of the run, if it failed.
    """

    fault = Fault.EXTERNAL

    def __init__(self, query: str, epoch: int, why: str = "") -> None:
        self.query, self.epoch, self.why = query, epoch, why
        ended = f", which failed with: {why}" if why else ""
        super().__init__(
            f"query {query!r}: epoch {epoch} is committed in Spark's checkpoint, but not by this driver's own run"
            f"{ended}. Either the run failed during its commit, or another process writes to the same Spark "
            "checkpoint, such as an older driver that is still running. Nothing of that epoch was settled. Fix the "
            "failure, make sure that no other driver runs (coordctl generations JOB), then start the job again, from "
            "its newest checkpoint if results of the epoch must not be missed"
        )


class EpochNotRun(CoordControlError):
    """A sink returned for an epoch of a query with state without running its rows, and Spark has committed it.

    Args:
        is_again: an earlier run has begun the epoch. If that one got as far as the sink, its state is complete, so the
            query is restarted.
    """

    fault = Fault.USER

    def __init__(self, query: str, epoch: int, *, is_again: bool) -> None:
        self.query, self.epoch, self.retry = query, epoch, is_again
        what = (
            "again, and Spark ends the run"
            if is_again
            else "so the state of the query lacks its rows, and Spark ends the query"
        )
        next_step = (
            "the query is restarted"
            if is_again
            else f"correct it, and restore the newest checkpoint before epoch {epoch}"
        )
        super().__init__(
            f"query {query!r}: the sink returned for epoch {epoch} without running it{' ' if is_again else ', '}{what} "
            "(STATE_STORE_COMMIT_VALIDATION_FAILED). A foreachBatch function of a query with state must also run the "
            f"epochs that it skips (frame.count() does); {next_step}"
        )


class CommitUnknown(CoordControlError):
    """Spark was interrupted while it committed an epoch; the query recovers from durable state, as after a crash."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, query: str, epoch: int) -> None:
        self.query, self.epoch = query, epoch
        super().__init__(
            f"query {query!r} was interrupted around the commit of epoch {epoch}; it restarts from its durable state"
        )


class AttemptRefused(CoordControlError):
    """The driver refused an attempt of a subtask; the task fails, and Spark decides what happens next."""

    fault = Fault.EXTERNAL

    def __init__(self, attempt: object, reason: str) -> None:
        self.attempt, self.reason = attempt, reason
        super().__init__(f"{attempt}: {reason}")


class StoreError(CoordControlError):
    """The job's storage failed."""

    fault = Fault.EXTERNAL


class _UnusableRecord(StoreError):
    _state: ClassVar[str]

    def __init__(self, path: str, problem: str, remedy: str | None = None) -> None:
        self.path, self.problem = path, problem
        remedy = remedy or (
            "Nothing was skipped and nothing was started; restore the file from a backup of the storage, or start the "
            "query under another name"
        )
        super().__init__(f"{path} is {self._state}: {problem}. {remedy}")


class DamagedRecord(_UnusableRecord):
    """A file of the job is corrupt."""

    _state = "damaged"


class MissingRecord(_UnusableRecord):
    """A required file of the job is missing."""

    _state = "missing"


class StateFileMissing(StoreError):
    """A file that an epoch needs is missing in Spark's directory, usually because Spark has just purged it."""

    retry = True

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{path} is missing in Spark's checkpoint directory: {problem}. Spark purged it, or it was removed by "
            "hand; use a newer epoch, and if this happens again raise spark.sql.streaming.minBatchesToRetain (default "
            "100)"
        )


class UnsupportedFormat(StoreError):
    """A file has a format version that this release cannot read."""

    def __init__(self, path: str, found: int, newest: int) -> None:
        self.path, self.found, self.newest = path, found, newest
        super().__init__(
            f"{path} has format version {found}; this release reads versions up to {newest}: upgrade coord-control"
        )


class AlreadyExists(StoreError):
    """A create-if-absent lost a race: the file already exists."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} already exists: another driver wrote it")


class StoreUnavailable(StoreError):
    """An operation on the storage of a job failed."""

    retry = True

    def __init__(self, path: str, action: str, cause: object) -> None:
        self.path, self.action = path, action
        super().__init__(f"cannot {action} {path}: {cause}; check that the storage is reachable, writable and not full")


class CheckpointNotFound(StoreError):
    """A reference matches no checkpoint or savepoint, or more than one."""

    fault = Fault.USER

    def __init__(self, reference: str, problem: str, near: Iterable[str] = ()) -> None:
        self.reference, self.near = reference, tuple(near)
        listing = "see coordctl savepoint list and coordctl checkpoint list"
        suggestion = f"did you mean {' or '.join(self.near)}?" if self.near else listing
        super().__init__(f"no checkpoint {reference!r}: {problem}; {suggestion}")


class CheckpointInUse(StoreError):
    """A checkpoint or savepoint is in use and cannot be disposed of now; nothing was removed."""

    fault = Fault.USER
    retry = True

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} cannot be disposed of: {why}")


class LabelTaken(StoreError):
    """Another checkpoint or savepoint of the job already has the label."""

    fault = Fault.USER

    def __init__(self, label: str) -> None:
        self.label = label
        super().__init__(
            f"another checkpoint or savepoint of the job has the label {label!r}; choose another label, or dispose of "
            "the other one"
        )


class SavepointTargetTaken(StoreError):
    """The target folder of a new savepoint is in use."""

    fault = Fault.USER

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{path} cannot hold a new savepoint or export: {problem}; name a folder that does not exist or is empty"
        )


class MailboxNotFound(StoreError):
    """A subtask has no mailbox that can be dropped."""

    fault = Fault.USER

    def __init__(self, operator: str, subtask: int | None, problem: str) -> None:
        self.operator, self.subtask, self.problem = operator, subtask, problem
        what = f"operator {operator!r}" if subtask is None else f"subtask {subtask} of operator {operator!r}"
        super().__init__(f"{what} has no mailbox to drop: {problem}")


class NothingToSave(StoreError):
    """There is no state to take a savepoint of."""

    fault = Fault.USER

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"there is nothing to save in {path}: {problem}; check that it is the right folder")


class JobRunning(CoordControlError):
    """The job must be stopped, but its driver is running or may be running."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, job: str, generation: int, host: str, *, is_known: bool) -> None:
        self.job, self.generation, self.host, self.is_known = job, generation, host, is_known
        if is_known:
            found = f"is running (generation {generation}, on {host}): stop it first, or send it a command"
        else:
            found = (
                f"may be running (generation {generation}, on {host}), which cannot be checked from here: make sure "
                "that it has ended and use --force, which fences it off if it has not"
            )
        super().__init__(f"the driver of job {job!r} {found}")


class OlderDriverAlive(CoordControlError):
    """Sinks are to be set back while an earlier driver of the job, which hangs, could still write to them."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, generation: int, processes: Iterable[int]) -> None:
        self.generation, self.processes = generation, tuple(processes)
        pids = " ".join(map(str, self.processes))
        super().__init__(
            f"the driver of generation {generation} was replaced, but is still alive: if it wakes up, it may write "
            f"its unfinished epoch to the sinks that are to be set back. Nothing was started and no sink was touched. "
            f"End its processes (kill -9 {pids}), then start the job again"
        )


class EndpointError(CoordControlError):
    """The connection between a subtask and the driver failed."""

    fault = Fault.EXTERNAL
    retry = True


class EndpointUnreachable(EndpointError):
    """A subtask cannot reach the driver."""

    def __init__(self, host: str, port: int, cause: object) -> None:
        self.host, self.port = host, port
        super().__init__(
            f"cannot reach the driver at {host}:{port}: {cause}; it must be reachable from the executors "
            "(spark.driver.host, and the endpoint's port open in firewalls and network policies)"
        )


class EndpointTimeout(EndpointError):
    """The driver did not answer a subtask in time."""

    def __init__(self, host: str, port: int, waiting_for: str, seconds: float) -> None:
        self.host, self.port, self.waiting_for, self.seconds = host, port, waiting_for, seconds
        super().__init__(
            f"the driver at {host}:{port} did not answer within {seconds:g} s while waiting for {waiting_for}"
        )


class EndpointClosed(EndpointError):
    """The driver has closed its endpoint."""

    def __init__(self, host: str, port: int, cause: object) -> None:
        self.host, self.port = host, port
        super().__init__(f"the connection to the driver at {host}:{port} was closed: {cause}")


class EndpointNotBound(EndpointError):
    """A driver, an exporter or a page cannot listen at its address.

    Args:
        setting: the setting with the address; by default, the one of a job's endpoint.
    """

    def __init__(
        self, host: str, ports: range, cause: object, setting: str = "Job(port=..., bind_address=...)"
    ) -> None:
        self.host, self.ports = host, ports
        # A port in use may become free; an address of another machine never becomes one of this machine.
        self.retry = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        which = str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}" if ports else "an empty range"
        super().__init__(
            f"cannot listen at {host}, port {which}: {cause}; choose another port, or an address of "
            f"this machine, with {setting}"
        )


class AuthenticationFailed(EndpointError):
    """The other end of a connection between driver and subtask does not know the generation's secret."""

    retry = False

    def __init__(self, host: str, port: int, why: str) -> None:
        self.host, self.port = host, port
        super().__init__(f"authentication with {host}:{port} failed: {why}")


class FrameInvalid(EndpointError):
    """Bytes between driver and subtask are not a frame of the protocol."""

    retry = False

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"invalid frame: {problem}")


class JavaMissing(CoordControlError):
    """Spark cannot start on this machine without Java."""

    fault = Fault.USER

    def __init__(self, found: str, next_step: str) -> None:
        self.found, self.next_step = found, next_step
        super().__init__(f"Spark needs Java: {found}; {next_step}; coordctl doctor checks this machine")


class SparkLost(CoordControlError):
    """The driver's JVM died, or its Spark context was stopped: only a new driver can resume the job."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, cause: object) -> None:
        super().__init__(
            f"Spark ended while the job was running ({cause}); nothing is lost: start the driver again (coordctl run "
            "does that automatically)"
        )


class SupervisorLost(CoordControlError):
    """The driver's supervisor ended without stopping the driver, so the driver stopped its jobs."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self) -> None:
        super().__init__(
            "the supervisor (coordctl run) was killed or crashed, so its driver stopped the job; nothing is lost: "
            "start the job again with coordctl run"
        )


class QueryFailed(CoordControlError):
    """A query failed permanently; ``__cause__`` is the original error."""

    def __init__(self, query: str, attempts: int, cause: object) -> None:
        self.query, self.attempts = query, attempts
        again = f" after {attempts} restarts without progress" if attempts else ""
        super().__init__(f"query {query!r} failed{again}: {cause}")


class TooManyFailedCheckpoints(CoordControlError):
    """More checkpoints in a row failed than the job's options allow; a new driver starts counting at zero."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, failures: int, last: str) -> None:
        self.failures, self.last = failures, last
        super().__init__(
            f"{failures} checkpoints in a row failed, more than tolerable_consecutive_failures allows; the last one: "
            f"{last}"
        )


class CheckpointNotCompleted(CoordControlError):
    """A requested checkpoint or savepoint did not complete; ``reason`` is a code of the closed set
    :class:`~coord_control.protocol.failures.FailureReason`."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, kind: str, reason: str, message: str) -> None:
        self.kind, self.reason = kind, reason
        super().__init__(f"the {kind} was not completed ({reason}): {message}")


class JobClosed(CoordControlError):
    """A job was used after it had ended."""

    fault = Fault.USER

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"job {job!r} has ended; create a new Job to resume it")


class JobEndRequested(JobClosed, SystemExit):
    """A job was used after a command or SIGTERM had ended it.

    It is a ``SystemExit`` with code 0: a program that was still declaring or starting queries, and does not catch it,
    ends like one whose job was stopped or restarted."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.code = 0
