"""Errors in the code or declaration of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from coord_control.errors.base import CoordControlError, Fault

__all__ = [
    "AssetKeyTaken",
    "ChannelFull",
    "CoordinatorFailed",
    "CoordinatorNotStarted",
    "CoordinatorTimeout",
    "DeclarationError",
    "DuplicateOperator",
    "EffectOfRequest",
    "EventInvalid",
    "EventTooLarge",
    "EventTypesChanged",
    "InvalidModel",
    "InvalidName",
    "JobNotFound",
    "NoAtomicCreate",
    "NoSuchSubtask",
    "NotStreaming",
    "OperatorReused",
    "OperatorUnused",
    "OperatorsChanged",
    "OutputInvalid",
    "OutputNotConsumed",
    "ParallelismChanged",
    "ParallelismFixed",
    "PartitioningMissing",
    "RequestFailed",
    "RequestNotValid",
    "SparkConnectUnsupported",
    "SparkTooOld",
    "StateInvalid",
    "StateNotPutBack",
    "StateTooLarge",
    "SubtaskFailed",
    "SubtaskMixed",
    "SubtaskNotAllowed",
    "UndeclaredEvent",
    "UndeclaredRequest",
    "UnsupportedOption",
    "UserDataError",
    "WakeChanged",
]

_NAMED_JOBS: Final = 20


class DeclarationError(CoordControlError):
    """The declaration of the job is invalid."""

    fault = Fault.USER


class InvalidName(DeclarationError):
    """The name of a job, a query, an operator or a label is invalid."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        also = ". Not 'latest', nor digits alone: those name other checkpoints" if kind == "label" else ""
        super().__init__(
            f"{kind} name {name!r} is invalid: use 1-100 letters, digits, '_', '.' or '-', starting with a letter "
            f"or digit{also}"
        )


class AssetKeyTaken(DeclarationError):
    """Two parts of streaming jobs map to the same asset key in Dagster."""

    def __init__(self, key: str, owners: Iterable[str]) -> None:
        self.key, self.owners = key, list(owners)
        super().__init__(
            f"{' and '.join(self.owners)} map to the same asset key {key!r}; rename one of the jobs or queries, give a "
            "query another key, or change the keys of all of them with a subclass of StreamingJobTranslator"
        )


class NotStreaming(DeclarationError):
    """An operator was applied to a DataFrame that is not streaming."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r} was applied to a batch DataFrame; apply it to a streaming one "
            "(spark.readStream...), before any foreachBatch"
        )


class PartitioningMissing(DeclarationError):
    """An operator was applied without a shuffle; docs/decisions/0039 says why there is always one."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r}: partition_by=None, an operator without a shuffle, is not possible: only a shuffle "
            "brings the same rows to the same subtask in every execution. Name the columns that decide the subtask; or "
            "give [] with parallelism=1; or use a live value (job.live), which needs neither an operator nor a shuffle"
        )


class NoAtomicCreate(DeclarationError):
    """The storage of a path cannot create a file so that exactly one of several writers succeeds."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"{path} cannot be written safely: {why}. Two drivers could both own a job there. Choose a root on a local "
            "disk, HDFS, S3 (s3a:// with Hadoop 3.4.2 or newer, and fs.s3a.create.conditional.enabled not set to "
            "false), ABFS or Google Cloud Storage, and check it with: coordctl doctor --root ROOT"
        )


class SparkTooOld(DeclarationError):
    """The installed Spark lacks what this needs; see docs/compatibility.md."""

    def __init__(self, what: str, needed: str, found: str, without: str = "") -> None:
        self.what, self.needed, self.found = what, needed, found
        instead = f", or {without}" if without else ""
        super().__init__(
            f"{what} needs Spark {needed} or newer, and this is Spark {found}: install it (pip install "
            f"'pyspark>={needed}' for the driver, the same release on the cluster){instead}"
        )


class SparkConnectUnsupported(DeclarationError):
    """A job was given a session of Spark Connect."""

    def __init__(self) -> None:
        super().__init__(
            "this is a session of Spark Connect, whose queries run in a server that coord_control cannot reach. Run "
            "the job as a classic driver: SparkSession.builder without remote(), SPARK_REMOTE and SPARK_CONNECT_MODE "
            "unset, started with spark-submit or coordctl run --master"
        )


class DuplicateOperator(DeclarationError):
    """Two operators, or two queries, of a job have the same name."""

    def __init__(self, what: str, name: str) -> None:
        self.what, self.name = what, name
        super().__init__(f"{what} {name!r} already exists in this job; choose another name")


class OperatorReused(DeclarationError):
    """An operator was used twice; it is one step of one query."""

    def __init__(self, operator: str, first: str, second: str) -> None:
        self.operator, self.first, self.second = operator, first, second
        super().__init__(
            f"operator {operator!r} belongs to {first} and cannot also be used in {second}: an operator is one step "
            "of one query; declare a second operator, or write both outputs from one query with foreachBatch"
        )


class OperatorUnused(DeclarationError):
    """An operator was declared, but no started query uses it."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r} was declared but is part of no started query; call apply() and start the query "
            "that uses its result with job.start()"
        )


class UnsupportedOption(DeclarationError):
    """A coordinated query does not support this option."""

    def __init__(self, option: str, why: str) -> None:
        self.option = option
        super().__init__(f"{option} cannot be used in a coordinated query: {why}")


class InvalidModel(DeclarationError):
    """A class cannot be used as the model of a state or an event."""

    def __init__(self, operator: str, model: str, why: str) -> None:
        self.operator, self.model = operator, model
        super().__init__(f"operator {operator!r}: {model} cannot be used: {why}")


class OperatorsChanged(DeclarationError):
    """The operators of a query differ from the recorded ones."""

    def __init__(self, query: str, recorded: list[str], declared: list[str]) -> None:
        self.query, self.recorded, self.declared = query, recorded, declared
        super().__init__(
            f"query {query!r} has run with the operators {recorded or 'none'} and now declares {declared or 'none'}: "
            "their state would be lost or missing; keep the operators' uids, or start the query under another name"
        )


class ParallelismChanged(DeclarationError):
    """The parallelism of an operator differs from the recorded one."""

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


class WakeChanged(DeclarationError):
    """An operator that has run was declared with ``wake``, or without it, unlike before."""

    def __init__(self, operator: str, query: str, declared: bool) -> None:
        self.operator, self.query, self.declared = operator, query, declared
        self.problem = (
            f"query {query!r} has run {'without' if declared else 'with'} the source that wake=True makes; Spark keeps "
            "the offsets of sources by their position"
        )
        self.way_out = (
            f"declare wake={not declared}, or start the operator under another uid in "
            "a query of another name, which begins with empty states at the beginning of its sources"
        )
        super().__init__(f"operator {operator!r}: {self.problem}; {self.way_out}")


class ParallelismFixed(DeclarationError):
    """The parallelism of an operator changed before a restored epoch of it was run again."""

    def __init__(self, operator: str, recorded: int, declared: int) -> None:
        self.operator, self.recorded, self.declared = operator, recorded, declared
        self.problem = (
            f"its {recorded} subtasks have events or results in the epoch that was planned when the checkpoint was "
            f"taken; that epoch is run again unchanged, and cannot be distributed to {declared}"
        )
        self.way_out = (
            f"declare {recorded} until that epoch is committed; then take a savepoint and restore it with a rescale "
            "function"
        )
        super().__init__(f"operator {operator!r}: {self.problem}; {self.way_out}")


class EventTypesChanged(DeclarationError):
    """The event types of an operator differ from the recorded ones, or their order does."""

    def __init__(self, operator: str, direction: str, recorded: list[str], declared: list[str]) -> None:
        self.operator, self.direction, self.recorded, self.declared = operator, direction, recorded, declared
        super().__init__(
            f"operator {operator!r} has run with the {direction!r} events {recorded} and now declares {declared}: "
            "recorded events name their type by its position; keep the recorded ones first, in their order, and add "
            "new ones after them"
        )


class JobNotFound(CoordControlError):
    """There is no job of this name."""

    fault = Fault.USER

    def __init__(
        self, job: str, root: str, near: list[str], hint: str = "check --root", known: Sequence[str] = ()
    ) -> None:
        self.job, self.root, self.near, self.known = job, root, near, known
        suggestion = f"; did you mean {' or '.join(near)}?" if near else f"; {hint}"
        more = f", and {len(known) - _NAMED_JOBS} more" if len(known) > _NAMED_JOBS else ""
        others = f"; the jobs there are {', '.join(known[:_NAMED_JOBS])}{more}" if known else ""
        super().__init__(f"there is no job {job!r} in {root}{suggestion}{others}")


class UserDataError(CoordControlError):
    """A value from user code is invalid."""

    fault = Fault.USER


class UndeclaredEvent(UserDataError):
    """The type of an event is not declared for this direction."""

    def __init__(self, operator: str, direction: str, got: str, declared: list[str]) -> None:
        self.operator, self.direction, self.got, self.declared = operator, direction, got, declared
        super().__init__(
            f"operator {operator!r}: {got} is not among the declared {direction!r} events {declared}; add it to "
            f"{direction}=[...] of job.operator()"
        )


class EventTooLarge(UserDataError):
    """An event exceeds the size limit."""

    def __init__(self, operator: str, model: str, size: int, limit: int) -> None:
        self.operator, self.model, self.size, self.limit = operator, model, size, limit
        super().__init__(
            f"operator {operator!r}: an event {model} takes {size} bytes, the limit is {limit}; send a reference to "
            "the data (a path, a key) instead of the data"
        )


class StateTooLarge(UserDataError):
    """A state exceeds the size limit."""

    def __init__(self, operator: str, subtask: int, size: int, limit: int) -> None:
        self.operator, self.subtask, self.size, self.limit = operator, subtask, size, limit
        super().__init__(
            f"operator {operator!r}: the state of subtask {subtask} takes {size} bytes, the limit is {limit}; keep "
            "bulk data in Spark's own state (transformWithState) and only control state here"
        )


class EventInvalid(UserDataError):
    """An event does not match its model; ``fields`` has pydantic's errors: ``loc``, ``msg``."""

    def __init__(self, operator: str, model: str, problems: str, fields: Iterable[Mapping[str, Any]] = ()) -> None:
        self.operator, self.model, self.problems, self.fields = operator, model, problems, tuple(fields)
        super().__init__(f"operator {operator!r}: an event is not a valid {model}: {problems}")


class StateInvalid(UserDataError):
    """A state does not match its model."""

    def __init__(self, operator: str, where: str, model: str, problems: str) -> None:
        self.operator, self.where, self.model, self.problems = operator, where, model, problems
        super().__init__(
            f"operator {operator!r}: the state of {where} is not a valid {model}: {problems}; a changed model must "
            "accept what the earlier one saved (give new fields a default)"
        )


class NoSuchSubtask(UserDataError):
    """An operator has no subtask with this number."""

    def __init__(self, operator: str, subtask: int, parallelism: int) -> None:
        self.operator, self.subtask, self.parallelism = operator, subtask, parallelism
        super().__init__(f"operator {operator!r} has the subtasks 0..{parallelism - 1}; there is no subtask {subtask}")


class SubtaskNotAllowed(UserDataError):
    """A control event was addressed to a single subtask, but applies to all of them."""

    def __init__(self, operator: str, model: str) -> None:
        self.operator, self.model = operator, model
        super().__init__(
            f"operator {operator!r}: {model} is a configuration that all subtasks share; send it without a subtask"
        )


class ChannelFull(UserDataError):
    """Too many events wait for one subtask, or were sent by one subtask in one epoch."""

    def __init__(self, operator: str, subtask: int, direction: str, size: int, limit: int) -> None:
        self.operator, self.subtask, self.direction, self.size, self.limit = operator, subtask, direction, size, limit
        what = (
            f"events that wait for subtask {subtask} take {size} bytes"
            if direction == "down"
            else f"events that subtask {subtask} sends in one epoch take {size} bytes"
        )
        remedy = (
            "a subtask takes its events in its next epoch with rows, and one without rows collects them: send less, "
            "or spread the keys over the subtasks. Waiting events are durable and survive restarts: feed rows to that "
            f"subtask, or discard the events with `coordctl mailbox drop JOB {operator} {subtask}` while the job is "
            "stopped"
            if direction == "down"
            else "send summaries instead of single facts"
        )
        super().__init__(f"operator {operator!r}: {what}, the limit is {limit}; {remedy}")


class CoordinatorNotStarted(UserDataError):
    """A coordinator tried to send an event before its query was started."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r}: its query has not been started, so nothing can be sent yet; send from the "
            "coordinator's start() or later"
        )


class UndeclaredRequest(UserDataError):
    """An operator does not answer requests of this type."""

    def __init__(self, operator: str, got: str, declared: Iterable[str], near: Iterable[str] = ()) -> None:
        self.operator, self.got, self.declared, self.near = operator, got, list(declared), list(near)
        suggestion = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        super().__init__(
            f"operator {operator!r} answers no request {got!r}, only {self.declared or 'none'} (requests=[...] of "
            f"job.operator()) and CommittedStates{suggestion}"
        )


class RequestNotValid(UserDataError):
    """A request does not match its model; ``fields`` has pydantic's errors: ``loc``, ``msg``."""

    def __init__(self, operator: str, model: str, problems: str, fields: Iterable[Mapping[str, Any]] = ()) -> None:
        self.operator, self.model, self.problems, self.fields = operator, model, problems, tuple(fields)
        super().__init__(f"operator {operator!r}: the request is not a valid {model}: {problems}")


class RequestFailed(UserDataError):
    """A coordinator raised while it handled a request, or returned what is no answer to it."""

    def __init__(self, operator: str, model: str, why: str) -> None:
        self.operator, self.model, self.why = operator, model, why
        super().__init__(f"the coordinator of operator {operator!r} did not answer the request {model}: {why}")


class EffectOfRequest(UserDataError):
    """A coordinator tried to do something because of a request, which has no effect."""

    def __init__(self, operator: str, what: str) -> None:
        self.operator, self.what = operator, what
        super().__init__(
            f"operator {operator!r}: handle_request may not {what}, because a request has no effect; what has one is a "
            "control event (handle_control_event)"
        )


class StateNotPutBack(UserDataError):
    """A request changed the coordinator's state, and ``restore`` raised when that was to be undone."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r}: handle_request changed the coordinator's state, and restore() failed to put it "
            "back, so the query is restarted from its durable state"
        )


class OutputInvalid(UserDataError):
    """A subtask's function yielded something else than chunks or rows of its schema."""

    def __init__(self, operator: str, problem: str, advice: str) -> None:
        self.operator, self.problem, self.advice = operator, problem, advice
        super().__init__(f"operator {operator!r}: {problem}; {advice}")


class SubtaskMixed(UserDataError):
    """One call received rows of several subtasks: they were moved after the operator repartitioned them."""

    fault = Fault.INTERNAL

    def __init__(self, operator: str, subtask: int) -> None:
        self.operator, self.subtask = operator, subtask
        super().__init__(
            f"operator {operator!r}: rows of other subtasks arrived in the task of subtask {subtask}; please report "
            "the query plan (df.explain(True)); spark.sql.adaptive.enabled=false may work around it"
        )


class SubtaskFailed(CoordControlError):
    """A subtask's function failed, and a retry would not help; ``reason`` names the original error."""

    fault = Fault.USER

    def __init__(self, attempt: object, reason: str) -> None:
        self.attempt, self.reason = attempt, reason
        super().__init__(f"{attempt}: {reason}")


class OutputNotConsumed(CoordControlError):
    """Spark committed an epoch without reading all output of a subtask (protocol section 3, step 5)."""

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
