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
    "Fenced",
    "FrameInvalid",
    "JavaMissing",
    "JobClosed",
    "JobEndRequested",
    "JobRunning",
    "LabelTaken",
    "MailboxNotFound",
    "MissingRecord",
    "NothingToSave",
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


class Fenced(CoordControlError):
    """Another driver has claimed a newer generation of the job (protocol section 6)."""

    fault = Fault.EXTERNAL

    def __init__(self, job: str, generation: int, newer: int | None = None, holder: str = "another driver") -> None:
        self.job, self.generation, self.newer, self.holder = job, generation, newer, holder
        what = f"generation {newer}" if newer is not None else "a newer generation"
        super().__init__(
            f"job {job!r}: {holder} has claimed {what}; this driver (generation {generation}) stops itself. Only one "
            f"driver of a job may run at a time; look which there were: coordctl generations {job}"
        )


class CommittedElsewhere(CoordControlError):
    """An epoch of a running query was committed, and Spark has not reported it for this driver's own run (protocol
    section 3, step 4).

    Args:
        why: what the run has failed with, if it has.
    """

    fault = Fault.EXTERNAL

    def __init__(self, query: str, epoch: int, why: str = "") -> None:
        self.query, self.epoch, self.why = query, epoch, why
        ended = f", which failed with: {why}" if why else ""
        super().__init__(
            f"query {query!r}: Spark's commit of epoch {epoch} is there, but it was not reported for this driver's own "
            f"run{ended}. Either the run failed in the middle of its commit, or something else writes to the same "
            "Spark checkpoint, such as an older driver of the job that still runs. Nothing of that epoch was settled. "
            "Correct what the run failed on, make sure that no other driver runs (coordctl generations JOB), then "
            "start the job again, from its newest checkpoint if results of the epoch must not be missed"
        )


class CommitUnknown(CoordControlError):
    """Spark was interrupted while it committed an epoch; what is durable decides, as after a crash."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, query: str, epoch: int) -> None:
        self.query, self.epoch = query, epoch
        super().__init__(
            f"query {query!r} was interrupted around the commit of epoch {epoch}; it restarts from what is durable"
        )


class AttemptRefused(CoordControlError):
    """The driver refused an execution of a subtask; the task fails, and Spark decides what happens next."""

    fault = Fault.EXTERNAL

    def __init__(self, attempt: object, reason: str) -> None:
        self.attempt, self.reason = attempt, reason
        super().__init__(f"{attempt}: {reason}")


class StoreError(CoordControlError):
    """The job's storage."""

    fault = Fault.EXTERNAL


class _UnusableRecord(StoreError):
    _state: ClassVar[str]

    def __init__(self, path: str, problem: str, remedy: str | None = None) -> None:
        self.path, self.problem = path, problem
        remedy = remedy or (
            "Nothing was skipped and nothing was started; put the file back from a copy of the storage, or start the "
            "query under another name"
        )
        super().__init__(f"{path} is {self._state}: {problem}. {remedy}")


class DamagedRecord(_UnusableRecord):
    """A file of the job does not say what was written into it."""

    _state = "damaged"


class MissingRecord(_UnusableRecord):
    """A file of the job that must be there is not."""

    _state = "missing"


class StateFileMissing(StoreError):
    """Spark's own directory lacks a file that an epoch needs, most often because Spark has just purged it."""

    retry = True

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{path} is missing in Spark's checkpoint directory: {problem}. Spark has purged it, or somebody removed "
            "it; take a newer epoch, and if that happens again raise spark.sql.streaming.minBatchesToRetain (100 "
            "unless it is set)"
        )


class UnsupportedFormat(StoreError):
    """A file was written by a release that this one does not understand."""

    def __init__(self, path: str, found: int, newest: int) -> None:
        self.path, self.found, self.newest = path, found, newest
        super().__init__(
            f"{path} has format version {found}; this release reads up to {newest}: it was written by a newer "
            "release, upgrade"
        )


class AlreadyExists(StoreError):
    """A create-if-absent lost its race: somebody else has written this name."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} exists already: another driver has written it")


class StoreUnavailable(StoreError):
    """The storage of a job did not do what was asked of it."""

    retry = True

    def __init__(self, path: str, action: str, cause: object) -> None:
        self.path, self.action = path, action
        super().__init__(f"cannot {action} {path}: {cause}; check that the storage is reachable, writable and not full")


class CheckpointNotFound(StoreError):
    """No checkpoint or savepoint, or more than one, is meant by a reference."""

    fault = Fault.USER

    def __init__(self, reference: str, problem: str, near: Iterable[str] = ()) -> None:
        self.reference, self.near = reference, tuple(near)
        suggestion = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        super().__init__(f"no checkpoint {reference!r}: {problem}{suggestion}")


class CheckpointInUse(StoreError):
    """A checkpoint or savepoint cannot be disposed of now; nothing of it was removed."""

    fault = Fault.USER
    retry = True

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} cannot be disposed of: {why}")


class LabelTaken(StoreError):
    """Another checkpoint or savepoint of the job has the label of a new one."""

    fault = Fault.USER

    def __init__(self, label: str) -> None:
        self.label = label
        super().__init__(
            f"another checkpoint or savepoint of the job has the label {label!r}; choose another label, or dispose of "
            "the other one"
        )


class SavepointTargetTaken(StoreError):
    """The folder that a new savepoint was to be written to is in use."""

    fault = Fault.USER

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{path} cannot hold a new savepoint: {problem}; name a folder that does not exist or is empty"
        )


class MailboxNotFound(StoreError):
    """A subtask's mailbox was to be dropped, and there is none that could be."""

    fault = Fault.USER

    def __init__(self, operator: str, subtask: int | None, problem: str) -> None:
        self.operator, self.subtask, self.problem = operator, subtask, problem
        what = f"operator {operator!r}" if subtask is None else f"subtask {subtask} of operator {operator!r}"
        super().__init__(f"{what} has no mailbox to be dropped: {problem}")


class NothingToSave(StoreError):
    """There is no state of which a savepoint could be taken."""

    fault = Fault.USER

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"there is nothing to save in {path}: {problem}; look whether it is the right folder")


class JobRunning(CoordControlError):
    """Something needs a job without a driver, and it has one, or may have."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, job: str, generation: int, host: str, *, is_known: bool) -> None:
        self.job, self.generation, self.host, self.is_known = job, generation, host, is_known
        if is_known:
            found = f"is running (generation {generation}, on {host}): stop it first, or ask it by its own interface"
        else:
            found = (
                f"may be running (generation {generation}, on {host}), which cannot be looked at from here: make sure "
                "that it has ended and say --force, which fences it off if it has not"
            )
        super().__init__(f"the driver of job {job!r} {found}")


class EndpointError(CoordControlError):
    """The connection between a subtask and the driver."""

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
    """The driver has not answered a subtask in time."""

    def __init__(self, host: str, port: int, waiting_for: str, seconds: float) -> None:
        self.host, self.port, self.waiting_for, self.seconds = host, port, waiting_for, seconds
        super().__init__(
            f"the driver at {host}:{port} has not answered within {seconds:g} s while waiting for {waiting_for}"
        )


class EndpointClosed(EndpointError):
    """The driver has closed its endpoint."""

    def __init__(self, host: str, port: int, cause: object) -> None:
        self.host, self.port = host, port
        super().__init__(f"the connection to the driver at {host}:{port} was closed: {cause}")


class EndpointNotBound(EndpointError):
    """Nobody can listen where a driver, an exporter or a page was told to.

    Args:
        setting: what says where; left out for the endpoint of a job.
    """

    def __init__(
        self, host: str, ports: range, cause: object, setting: str = "Job(port=..., bind_address=...)"
    ) -> None:
        self.host, self.ports = host, ports
        # Whoever has the port may be about to end; an address of another machine never becomes one of this machine.
        self.retry = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        which = str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}" if ports else "an empty range"
        super().__init__(
            f"cannot listen at {host}, port {which}: {cause}; choose another port, or an address of "
            f"this machine, with {setting}"
        )


class AuthenticationFailed(EndpointError):
    """A connection between driver and subtask whose other side does not know the generation's secret."""

    retry = False

    def __init__(self, host: str, port: int, why: str) -> None:
        self.host, self.port = host, port
        super().__init__(f"authentication with {host}:{port} failed: {why}")


class FrameInvalid(EndpointError):
    """Bytes between driver and subtask that are no frame of the protocol."""

    retry = False

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"invalid frame: {problem}")


class JavaMissing(CoordControlError):
    """Spark cannot start on this machine: it has no Java."""

    fault = Fault.USER

    def __init__(self, found: str, next_step: str) -> None:
        self.found, self.next_step = found, next_step
        super().__init__(f"Spark needs Java: {found}; {next_step}; coordctl doctor checks this machine for all of it")


class SparkLost(CoordControlError):
    """The driver's JVM has died, or its Spark context was stopped: only a new driver can go on."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, cause: object) -> None:
        super().__init__(
            f"Spark has ended under the job ({cause}); nothing is lost: start the driver again, as coordctl run does"
        )


class SupervisorLost(CoordControlError):
    """The driver's supervisor has ended without stopping it, so the driver has stopped its jobs."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self) -> None:
        super().__init__(
            "the supervisor (coordctl run) was killed or crashed, so its driver has stopped the job; nothing is lost: "
            "start the job again with coordctl run"
        )


class QueryFailed(CoordControlError):
    """A query ended for good; ``__cause__`` is the error that ended it."""

    def __init__(self, query: str, attempts: int, cause: object) -> None:
        self.query, self.attempts = query, attempts
        again = f" after {attempts} restarts without progress" if attempts else ""
        super().__init__(f"query {query!r} failed{again}: {cause}")


class TooManyFailedCheckpoints(CoordControlError):
    """More checkpoints in a row failed than the job's options allow; a new driver begins to count at zero."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, failures: int, last: str) -> None:
        self.failures, self.last = failures, last
        super().__init__(
            f"{failures} checkpoints in a row failed, more than tolerable_consecutive_failures allows; the last one: "
            f"{last}"
        )


class CheckpointNotCompleted(CoordControlError):
    """A checkpoint or savepoint that was asked for does not exist; ``reason`` is a code of the closed set
    :class:`~coord_control.protocol.failures.FailureReason`."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, kind: str, reason: str, message: str) -> None:
        self.kind, self.reason = kind, reason
        super().__init__(f"the {kind} was not completed ({reason}): {message}")


class JobClosed(CoordControlError):
    """A job was asked for something after it had ended."""

    fault = Fault.USER

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"job {job!r} has ended; make a new Job to go on")


class JobEndRequested(JobClosed, SystemExit):
    """A job was asked for something after it had ended, because a command or SIGTERM had asked for its end.

    It is a ``SystemExit`` with code 0: a program that was still declaring or starting queries, and lets it pass, ends
    as one whose job was stopped or is started again."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.code = 0
