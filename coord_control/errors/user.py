"""What the job's own code or declaration can get wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coord_control.errors.base import CoordControlError, Fault

__all__ = [
    "AssetKeyTaken",
    "ChannelFull",
    "CoordinatorFailed",
    "CoordinatorNotStarted",
    "CoordinatorTimeout",
    "DeclarationError",
    "DuplicateOperator",
    "EventInvalid",
    "EventTooLarge",
    "EventTypesChanged",
    "InvalidModel",
    "InvalidName",
    "JobNotFound",
    "NoSuchSubtask",
    "NotStreaming",
    "OperatorReused",
    "OperatorUnused",
    "OperatorsChanged",
    "OutputNotConsumed",
    "ParallelismChanged",
    "ParallelismFixed",
    "StateInvalid",
    "StateTooLarge",
    "SubtaskFailed",
    "SubtaskMixed",
    "SubtaskNotAllowed",
    "UndeclaredEvent",
    "UnsupportedOption",
    "UserDataError",
]


class DeclarationError(CoordControlError):
    """The job is declared in a way that cannot work."""

    fault = Fault.USER


class InvalidName(DeclarationError):
    """A name that cannot be used for a job, a query, an operator or a label."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        super().__init__(
            f"{kind} name {name!r} is not usable: take 1-100 letters, digits, '_', '.' or '-', beginning with a "
            "letter or digit"
        )


class AssetKeyTaken(DeclarationError):
    """Two things of streaming jobs would be the same asset in Dagster."""

    def __init__(self, key: str, owners: Iterable[str]) -> None:
        self.key, self.owners = key, list(owners)
        super().__init__(
            f"the asset key {key!r} would be that of {' and of '.join(self.owners)}; give one of the jobs or queries "
            "another name, a query a key of its own, or all of them other keys by a subclass of StreamingJobTranslator"
        )


class NotStreaming(DeclarationError):
    """A DataFrame that was given to an operator does not stream."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r} was applied to a batch DataFrame; apply it to a streaming one "
            "(spark.readStream...), before any foreachBatch"
        )


class DuplicateOperator(DeclarationError):
    """Two operators, or two queries, of a job have the same name."""

    def __init__(self, what: str, name: str) -> None:
        self.what, self.name = what, name
        super().__init__(f"{what} {name!r} exists already in this job; every {what} needs a name of its own")


class OperatorReused(DeclarationError):
    """An operator was to be used in two places; it is one step of one query."""

    def __init__(self, operator: str, first: str, second: str) -> None:
        self.operator, self.first, self.second = operator, first, second
        super().__init__(
            f"operator {operator!r} belongs to {first} and cannot also be used in {second}: an operator is one step "
            "of one query; declare a second operator, or write both outputs from one query with foreachBatch"
        )


class OperatorUnused(DeclarationError):
    """An operator was declared, and is part of no query that was started."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r} was declared but is part of no started query; call apply() and start the query "
            "that uses its result with job.start()"
        )


class UnsupportedOption(DeclarationError):
    """An option of a query that a coordinated one cannot have."""

    def __init__(self, option: str, why: str) -> None:
        self.option = option
        super().__init__(f"{option} cannot be used in a coordinated query: {why}")


class InvalidModel(DeclarationError):
    """A class that was declared as a state or an event cannot be one."""

    def __init__(self, operator: str, model: str, why: str) -> None:
        self.operator, self.model = operator, model
        super().__init__(f"operator {operator!r}: {model} cannot be used: {why}")


class OperatorsChanged(DeclarationError):
    """A query has other operators than were recorded."""

    def __init__(self, query: str, recorded: list[str], declared: list[str]) -> None:
        self.query, self.recorded, self.declared = query, recorded, declared
        super().__init__(
            f"query {query!r} has run with the operators {recorded or 'none'} and now declares {declared or 'none'}: "
            "their state would be lost or missing; keep the operators' uids, or start the query under another name"
        )


class ParallelismChanged(DeclarationError):
    """An operator has another parallelism than was recorded."""

    def __init__(self, operator: str, recorded: int, declared: int, *, is_restored: bool = False) -> None:
        self.operator, self.recorded, self.declared = operator, recorded, declared
        way_out = (
            "give job.operator() a rescale function that redistributes them"
            if is_restored
            else "take a savepoint and restore it with a rescale function, or start under another uid and query name"
        )
        super().__init__(
            f"operator {operator!r} has run with parallelism {recorded} and now declares {declared}: its states are "
            f"kept per subtask; declare {recorded} again, or {way_out}"
        )


class ParallelismFixed(DeclarationError):
    """An operator gets another parallelism while a restored epoch of it is still to be run again."""

    def __init__(self, operator: str, recorded: int, declared: int) -> None:
        self.operator, self.recorded, self.declared = operator, recorded, declared
        self.problem = (
            f"its {recorded} subtasks have events or results in the epoch that was planned when the checkpoint was "
            f"taken; that epoch is run again as it was, and cannot be given to {declared}"
        )
        self.way_out = (
            f"declare {recorded} until that epoch is committed; then take a savepoint and restore it with a rescale "
            "function"
        )
        super().__init__(f"operator {operator!r}: {self.problem}; {self.way_out}")


class EventTypesChanged(DeclarationError):
    """Event types of an operator are not those that were recorded, or in another order."""

    def __init__(self, operator: str, direction: str, recorded: list[str], declared: list[str]) -> None:
        self.operator, self.direction, self.recorded, self.declared = operator, direction, recorded, declared
        super().__init__(
            f"operator {operator!r} has run with the {direction!r} events {recorded} and now declares {declared}: "
            "recorded events name their type by its position; keep the recorded ones first, in their order, and add "
            "new ones behind them"
        )


class JobNotFound(CoordControlError):
    """There is no job of this name, where it was looked for."""

    fault = Fault.USER

    def __init__(self, job: str, root: str, near: list[str], hint: str = "check --root") -> None:
        self.job, self.root, self.near = job, root, near
        suggestion = f"; did you mean {' or '.join(near)}?" if near else f"; {hint}"
        super().__init__(f"there is no job {job!r} in {root}{suggestion}")


class UserDataError(CoordControlError):
    """A value that user code produced cannot be used."""

    fault = Fault.USER


class UndeclaredEvent(UserDataError):
    """An event whose type was not declared for this direction."""

    def __init__(self, operator: str, direction: str, got: str, declared: list[str]) -> None:
        self.operator, self.direction, self.got, self.declared = operator, direction, got, declared
        super().__init__(
            f"operator {operator!r}: {got} is not among the declared {direction!r} events {declared}; add it to "
            f"{direction}=[...] of job.operator()"
        )


class EventTooLarge(UserDataError):
    """An event is larger than an event may be."""

    def __init__(self, operator: str, model: str, size: int, limit: int) -> None:
        self.operator, self.model, self.size, self.limit = operator, model, size, limit
        super().__init__(
            f"operator {operator!r}: an event {model} takes {size} bytes, the limit is {limit}; send a reference to "
            "the data (a path, a key) instead of the data"
        )


class StateTooLarge(UserDataError):
    """A state is larger than a state may be."""

    def __init__(self, operator: str, subtask: int, size: int, limit: int) -> None:
        self.operator, self.subtask, self.size, self.limit = operator, subtask, size, limit
        super().__init__(
            f"operator {operator!r}: the state of subtask {subtask} takes {size} bytes, the limit is {limit}; keep "
            "bulk data in Spark's own state (transformWithState) and only control state here"
        )


class EventInvalid(UserDataError):
    """``fields`` are the problems again, as pydantic says them: ``loc``, ``msg``."""

    def __init__(self, operator: str, model: str, problems: str, fields: Iterable[Mapping[str, Any]] = ()) -> None:
        self.operator, self.model, self.problems, self.fields = operator, model, problems, tuple(fields)
        super().__init__(f"operator {operator!r}: an event is not a valid {model}: {problems}")


class StateInvalid(UserDataError):
    """A state does not fit its model."""

    def __init__(self, operator: str, where: str, model: str, problems: str) -> None:
        self.operator, self.where, self.model, self.problems = operator, where, model, problems
        super().__init__(
            f"operator {operator!r}: the state of {where} is not a valid {model}: {problems}; a changed model must "
            "accept what the earlier one saved (give new fields a default)"
        )


class NoSuchSubtask(UserDataError):
    """An operator has no subtask of this number."""

    def __init__(self, operator: str, subtask: int, parallelism: int) -> None:
        self.operator, self.subtask, self.parallelism = operator, subtask, parallelism
        super().__init__(f"operator {operator!r} has the subtasks 0..{parallelism - 1}; there is no subtask {subtask}")


class SubtaskNotAllowed(UserDataError):
    """A control event was addressed to one subtask, and is meant for all of them together."""

    def __init__(self, operator: str, model: str) -> None:
        self.operator, self.model = operator, model
        super().__init__(
            f"operator {operator!r}: {model} is a configuration that all subtasks share; send it without a subtask"
        )


class ChannelFull(UserDataError):
    """Too many events wait for one subtask, or are sent by one in one epoch: neither memory nor a record is endless."""

    def __init__(self, operator: str, subtask: int, direction: str, size: int, limit: int) -> None:
        self.operator, self.subtask, self.direction, self.size, self.limit = operator, subtask, direction, size, limit
        what = (
            f"events that wait for subtask {subtask} take {size} bytes"
            if direction == "down"
            else f"events that subtask {subtask} sends in one epoch take {size} bytes"
        )
        remedy = (
            "a subtask takes its events in its next epoch with rows, and one without rows collects them: send less, "
            "or spread the keys over the subtasks. What waits is durable, so each restart finds it: feed rows to "
            f"that subtask, or give the events up with `coordctl mailbox drop JOB {operator} {subtask}` while the job "
            "does not run"
            if direction == "down"
            else "send summaries instead of single facts"
        )
        super().__init__(f"operator {operator!r}: {what}, the limit is {limit}; {remedy}")


class CoordinatorNotStarted(UserDataError):
    """A coordinator was to send something before its query was started."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r}: its query has not been started, so nothing can be sent yet; send from the "
            "coordinator's start() or later"
        )


class SubtaskMixed(UserDataError):
    """Rows of several subtasks in one call: something between the operator's repartitioning and its function moved
    them."""

    fault = Fault.INTERNAL

    def __init__(self, operator: str, subtask: int) -> None:
        self.operator, self.subtask = operator, subtask
        super().__init__(
            f"operator {operator!r}: rows of other subtasks arrived in the task of subtask {subtask}; please report "
            "the query plan (df.explain(True)); spark.sql.adaptive.enabled=false may help until it is repaired"
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
            f"{subtasks}; something after the operator stops early (take, limit, first, isEmpty, show): consume the "
            "whole output, for example cache it in foreachBatch before looking at a part of it"
        )


class CoordinatorFailed(CoordControlError):
    """A callback of a coordinator raised (rule C17); the traceback is part of the message."""

    fault = Fault.USER
    retry = True

    def __init__(self, operator: str, callback: str, traceback: str) -> None:
        self.operator, self.callback, self.traceback = operator, callback, traceback
        super().__init__(f"the coordinator of operator {operator!r} failed in {callback}:\n{traceback}")


class CoordinatorTimeout(CoordControlError):
    """A coordinator has not given its state in time."""

    fault = Fault.USER
    retry = True

    def __init__(self, operator: str, seconds: float) -> None:
        self.operator, self.seconds = operator, seconds
        super().__init__(
            f"the coordinator of operator {operator!r} has not given its state within {seconds:g} s; callbacks must "
            "not block: move slow work to context.run_in_background, and complete every result"
        )
