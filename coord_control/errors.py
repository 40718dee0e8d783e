"""Every error of the package, in one tree. Each says whose fault it is and whether trying again can help, in fields.

- CoordControlError
    - InvalidTransition              a machine was given an input that its state does not allow (a bug, nothing changed)
    - DeclarationError               the job is declared in a way that cannot work
        - InvalidName, NotStreaming, DuplicateOperator, OperatorReused, OperatorUnused, UnsupportedOption, InvalidModel
        - OperatorsChanged, ParallelismChanged, EventTypesChanged, LineageMismatch
    - UserDataError                  a value that user code produced cannot be used
        - UndeclaredEvent, EventTooLarge, StateTooLarge, EventInvalid, StateInvalid, NoSuchSubtask, SubtaskMixed
    - SubtaskFailed                  a subtask's function failed in a way that no retry repairs
    - OutputNotConsumed              Spark committed an epoch although a subtask's output was not read to its end
    - CoordinatorFailed, CoordinatorTimeout
    - Fenced                         a newer driver owns the job
    - AttemptRefused                 the driver refused this execution of a subtask
    - StoreError
        - DamagedRecord, MissingRecord, UnsupportedFormat, AlreadyExists, StoreUnavailable
    - EndpointError
        - EndpointUnreachable, EndpointTimeout, EndpointClosed, EndpointNotBound, AuthenticationFailed, FrameInvalid
    - SparkLost                      the driver's JVM, or its Spark context, is gone
    - QueryFailed                    a query ended for good; the cause is chained
    - JobClosed                      the job was used after it ended
"""

from __future__ import annotations

import enum
from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "AttemptRefused",
    "AuthenticationFailed",
    "CoordControlError",
    "CoordinatorFailed",
    "CoordinatorTimeout",
    "DamagedRecord",
    "DeclarationError",
    "DuplicateOperator",
    "EndpointClosed",
    "EndpointError",
    "EndpointNotBound",
    "EndpointTimeout",
    "EndpointUnreachable",
    "EventInvalid",
    "EventTooLarge",
    "EventTypesChanged",
    "Fault",
    "Fenced",
    "FrameInvalid",
    "InvalidModel",
    "InvalidName",
    "InvalidTransition",
    "JobClosed",
    "LineageMismatch",
    "MissingRecord",
    "NoSuchSubtask",
    "NotStreaming",
    "OperatorReused",
    "OperatorUnused",
    "OperatorsChanged",
    "OutputNotConsumed",
    "ParallelismChanged",
    "QueryFailed",
    "SparkLost",
    "StateInvalid",
    "StateTooLarge",
    "StoreError",
    "StoreUnavailable",
    "SubtaskFailed",
    "SubtaskMixed",
    "UndeclaredEvent",
    "UnsupportedFormat",
    "UnsupportedOption",
    "UserDataError",
]


class Fault(enum.Enum):
    """Whose fault an error is."""

    USER = "user"  #: the job's code or its configuration
    EXTERNAL = "external"  #: the network, the storage, another driver
    INTERNAL = "internal"  #: this package: please report it


class CoordControlError(Exception):
    """Base of all errors of this package.

    Attributes:
        fault: whose fault it is.
        retry: whether the same action may succeed when tried again without a change.
    """

    fault: ClassVar[Fault] = Fault.INTERNAL
    retry: ClassVar[bool] = False


class InvalidTransition(CoordControlError):
    """A machine was given an input that its state does not allow; nothing was changed."""

    def __init__(self, machine: str, state: object, input_: object) -> None:
        self.machine, self.state, self.input = machine, state, input_
        super().__init__(
            f"{machine}: input {_name(input_)} is not allowed in state {_name(state)}; nothing was changed"
        )


def _name(value: object) -> str:
    return value.name if isinstance(value, enum.Enum) else str(value)


class DeclarationError(CoordControlError):
    """The job is declared in a way that cannot work."""

    fault = Fault.USER


class InvalidName(DeclarationError):
    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        super().__init__(
            f"{kind} name {name!r} is not usable: take 1-100 letters, digits, '_', '.' or '-', beginning with a "
            "letter or digit"
        )


class NotStreaming(DeclarationError):
    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r} was applied to a batch DataFrame; apply it to a streaming one "
            "(spark.readStream...), before any foreachBatch"
        )


class DuplicateOperator(DeclarationError):
    def __init__(self, what: str, name: str) -> None:
        self.what, self.name = what, name
        super().__init__(f"{what} {name!r} exists already in this job; every {what} needs a name of its own")


class OperatorReused(DeclarationError):
    def __init__(self, operator: str, first: str, second: str) -> None:
        self.operator, self.first, self.second = operator, first, second
        super().__init__(
            f"operator {operator!r} belongs to {first} and cannot also be used in {second}: an operator is one step "
            "of one "
            "query; declare a second operator, or write both outputs from one query with foreachBatch"
        )


class OperatorUnused(DeclarationError):
    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r} was declared but is part of no started query; call apply() and start the query "
            "that uses "
            "its result with job.start()"
        )


class UnsupportedOption(DeclarationError):
    def __init__(self, option: str, why: str) -> None:
        self.option = option
        super().__init__(f"{option} cannot be used in a coordinated query: {why}")


class InvalidModel(DeclarationError):
    def __init__(self, operator: str, model: str, why: str) -> None:
        self.operator, self.model = operator, model
        super().__init__(f"operator {operator!r}: {model} cannot be used: {why}")


class OperatorsChanged(DeclarationError):
    def __init__(self, query: str, recorded: list[str], declared: list[str]) -> None:
        self.query, self.recorded, self.declared = query, recorded, declared
        super().__init__(
            f"query {query!r} has run with the operators {recorded or 'none'} and now declares {declared or 'none'}: "
            "their state would "
            "be lost or missing; keep the operators' uids, or start the query under another name"
        )


class ParallelismChanged(DeclarationError):
    def __init__(self, operator: str, recorded: int, declared: int) -> None:
        self.operator, self.recorded, self.declared = operator, recorded, declared
        super().__init__(
            f"operator {operator!r} has run with parallelism {recorded} and now declares {declared}: its states are "
            "kept per "
            f"subtask; declare {recorded} again, or start under another uid and query name"
        )


class EventTypesChanged(DeclarationError):
    def __init__(self, operator: str, direction: str, recorded: list[str], declared: list[str]) -> None:
        self.operator, self.direction, self.recorded, self.declared = operator, direction, recorded, declared
        super().__init__(
            f"operator {operator!r} has run with the {direction!r} events {recorded} and now declares {declared}: "
            "recorded events "
            "name their type by its position; keep the recorded ones first, in their order, and add new ones behind "
            "them"
        )


class LineageMismatch(DeclarationError):
    def __init__(self, query: str, recorded: str, declared: str) -> None:
        self.query, self.recorded, self.declared = query, recorded, declared
        super().__init__(
            f"query {query!r} has its Spark checkpoint at {recorded}, not at {declared}; leave checkpoint_location "
            "out, or start "
            "under another query name"
        )


class UserDataError(CoordControlError):
    """A value that user code produced cannot be used."""

    fault = Fault.USER


class UndeclaredEvent(UserDataError):
    def __init__(self, operator: str, direction: str, got: str, declared: list[str]) -> None:
        self.operator, self.direction, self.got, self.declared = operator, direction, got, declared
        super().__init__(
            f"operator {operator!r}: {got} is not among the declared {direction!r} events {declared}; add it to "
            f"{direction}=[...] of job.operator()"
        )


class EventTooLarge(UserDataError):
    def __init__(self, operator: str, model: str, size: int, limit: int) -> None:
        self.operator, self.model, self.size, self.limit = operator, model, size, limit
        super().__init__(
            f"operator {operator!r}: an event {model} takes {size} bytes, the limit is {limit}; send a reference to "
            "the data (a path, a key) instead of the data"
        )


class StateTooLarge(UserDataError):
    def __init__(self, operator: str, subtask: int, size: int, limit: int) -> None:
        self.operator, self.subtask, self.size, self.limit = operator, subtask, size, limit
        super().__init__(
            f"operator {operator!r}: the state of subtask {subtask} takes {size} bytes, the limit is {limit}; keep "
            "bulk data in "
            "Spark's own state (transformWithState) and only control state here"
        )


class EventInvalid(UserDataError):
    def __init__(self, operator: str, model: str, problems: str) -> None:
        self.operator, self.model, self.problems = operator, model, problems
        super().__init__(f"operator {operator!r}: an event is not a valid {model}: {problems}")


class StateInvalid(UserDataError):
    def __init__(self, operator: str, where: str, model: str, problems: str) -> None:
        self.operator, self.where, self.model, self.problems = operator, where, model, problems
        super().__init__(
            f"operator {operator!r}: the state of {where} is not a valid {model}: {problems}; a changed model must "
            "accept what "
            "the earlier one saved (give new fields a default)"
        )


class NoSuchSubtask(UserDataError):
    def __init__(self, operator: str, subtask: int, parallelism: int) -> None:
        self.operator, self.subtask, self.parallelism = operator, subtask, parallelism
        super().__init__(f"operator {operator!r} has the subtasks 0..{parallelism - 1}; there is no subtask {subtask}")


class SubtaskMixed(UserDataError):
    """Rows of several subtasks in one call: something between the operator's repartitioning and its function moved
    them."""

    fault = Fault.INTERNAL

    def __init__(self, operator: str, subtask: int) -> None:
        self.operator, self.subtask = operator, subtask
        super().__init__(
            f"operator {operator!r}: rows of other subtasks arrived in the task of subtask {subtask}; please report "
            "the "
            "query plan (df.explain(True)); spark.sql.adaptive.enabled=false may help until it is repaired"
        )


class SubtaskFailed(CoordControlError):
    """A subtask's function failed in a way that no retry repairs; ``reason`` names the original error."""

    fault = Fault.USER

    def __init__(self, attempt: object, reason: str) -> None:
        self.attempt, self.reason = attempt, reason
        super().__init__(f"{attempt}: {reason}")


class OutputNotConsumed(CoordControlError):
    """Protocol section 3, step 5: a hello without an ack in an epoch that Spark committed."""

    fault = Fault.USER

    def __init__(self, operator: str, subtasks: list[int], epoch: int) -> None:
        self.operator, self.subtasks, self.epoch = operator, subtasks, epoch
        super().__init__(
            f"operator {operator!r}: Spark committed epoch {epoch} without reading all output of the subtasks "
            f"{subtasks}; something "
            "after the operator stops early (take, limit, first, isEmpty, show): consume the whole output, for "
            "example cache it "
            "in foreachBatch before looking at a part of it"
        )


class CoordinatorFailed(CoordControlError):
    """A callback of a coordinator raised (rule C17); the traceback is part of the message."""

    fault = Fault.USER
    retry = True

    def __init__(self, operator: str, callback: str, traceback: str) -> None:
        self.operator, self.callback, self.traceback = operator, callback, traceback
        super().__init__(f"the coordinator of operator {operator!r} failed in {callback}:\n{traceback}")


class CoordinatorTimeout(CoordControlError):
    fault = Fault.USER
    retry = True

    def __init__(self, operator: str, seconds: float) -> None:
        self.operator, self.seconds = operator, seconds
        super().__init__(
            f"the coordinator of operator {operator!r} has not given its state within {seconds:g} s; callbacks must "
            "not "
            "block: move slow work to context.run_in_background, and complete every result"
        )


class Fenced(CoordControlError):
    """Another driver has claimed a newer generation of the job (protocol section 6)."""

    fault = Fault.EXTERNAL

    def __init__(self, job: str, generation: int, newer: int | None = None, holder: str = "another driver") -> None:
        self.job, self.generation, self.newer, self.holder = job, generation, newer, holder
        what = f"generation {newer}" if newer is not None else "a newer generation"
        super().__init__(
            f"job {job!r}: {holder} has claimed {what}; this driver (generation {generation}) stops itself. Only one "
            "driver "
            "of a job may run at a time"
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


class DamagedRecord(StoreError):
    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{path} is damaged: {problem}. Nothing was skipped and nothing was started; put the file back from a "
            "copy of the "
            "storage, or start the query under another name"
        )


class MissingRecord(StoreError):
    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"{path} is missing: {problem}. Nothing was skipped and nothing was started; put the file back from a "
            "copy of the "
            "storage, or start the query under another name"
        )


class UnsupportedFormat(StoreError):
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
    retry = True

    def __init__(self, path: str, action: str, cause: object) -> None:
        self.path, self.action = path, action
        super().__init__(f"cannot {action} {path}: {cause}; check that the storage is reachable, writable and not full")


class EndpointError(CoordControlError):
    """The connection between a subtask and the driver."""

    fault = Fault.EXTERNAL
    retry = True


class EndpointUnreachable(EndpointError):
    def __init__(self, host: str, port: int, cause: object) -> None:
        self.host, self.port = host, port
        super().__init__(
            f"cannot reach the driver at {host}:{port}: {cause}; it must be reachable from the executors "
            "(spark.driver.host, "
            "and the endpoint's port open in firewalls and network policies)"
        )


class EndpointTimeout(EndpointError):
    def __init__(self, host: str, port: int, waiting_for: str, seconds: float) -> None:
        self.host, self.port, self.waiting_for, self.seconds = host, port, waiting_for, seconds
        super().__init__(
            f"the driver at {host}:{port} has not answered within {seconds:g} s while waiting for {waiting_for}"
        )


class EndpointClosed(EndpointError):
    def __init__(self, host: str, port: int, cause: object) -> None:
        self.host, self.port = host, port
        super().__init__(f"the connection to the driver at {host}:{port} was closed: {cause}")


class EndpointNotBound(EndpointError):
    retry = False

    def __init__(self, host: str, ports: range, cause: object) -> None:
        self.host, self.ports = host, ports
        which = str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}" if ports else "an empty range"
        super().__init__(
            f"cannot listen at {host}, port {which}: {cause}; choose another port or range of ports, and an address of "
            "this machine"
        )


class AuthenticationFailed(EndpointError):
    retry = False

    def __init__(self, host: str, port: int, why: str) -> None:
        self.host, self.port = host, port
        super().__init__(f"authentication with {host}:{port} failed: {why}")


class FrameInvalid(EndpointError):
    retry = False

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"invalid frame: {problem}")


class SparkLost(CoordControlError):
    """The driver's JVM has died, or its Spark context was stopped: only a new driver can go on."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, cause: object) -> None:
        super().__init__(
            f"Spark has ended under the job ({cause}); nothing is lost: start the driver again, as coordctl run does"
        )


class QueryFailed(CoordControlError):
    """A query ended for good; ``__cause__`` is the error that ended it."""

    def __init__(self, query: str, attempts: int, cause: object) -> None:
        self.query, self.attempts = query, attempts
        again = f" after {attempts} restarts without progress" if attempts else ""
        super().__init__(f"query {query!r} failed{again}: {cause}")


class JobClosed(CoordControlError):
    fault = Fault.USER

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"job {job!r} has ended; make a new Job to go on")
