"""What a driver reports to observers inside its process: facts of the job, and news of it.

Everything here is an immutable value, so it may be passed to any thread, over a wire and into a database. Points in
time are seconds since 1970 (UTC), for people; durations are seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coord_control.ids import CheckpointId, Epoch, Generation, OperatorUid, QueryName
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.protocol.status import QueryStatus

__all__ = [
    "ControlEvent",
    "EventSchema",
    "FeedStatus",
    "JobFacts",
    "JobListener",
    "LiveFacts",
    "LiveUse",
    "OperatorFacts",
    "QueryFacts",
    "RecoveryCause",
    "RecoveryFact",
    "RequestSchema",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What does not change while a driver runs.

    Attributes:
        folder: of the job, below ``root``.
        host: of the driver's machine.
        started_at_seconds: when the driver opened the job.
        process_started: before the program was read, by the monotonic clock.
        version: of this package.
        address, port, tls: where subtasks reach the driver, and whether encrypted.
        spark_ui: the address of Spark's own page; empty if it has none.
    """

    name: str
    root: str
    folder: str
    generation: Generation
    host: str
    pid: int
    started_at_seconds: float
    process_started: float
    version: str
    python_version: str
    spark_version: str
    master: str
    address: str
    port: int
    tls: bool
    spark_ui: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFacts:
    """A query that was started, and where its state is."""

    name: QueryName
    query_id: str
    lineage: str  #: the name of its folder
    checkpoint: str  #: Spark's checkpoint directory
    operators: tuple[OperatorUid, ...]
    status: QueryStatus


@dataclass(frozen=True, slots=True)
class EventSchema:
    """An event that may be sent to an operator from outside: its name and the JSON schema of its payload."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestSchema:
    """A request that an operator answers: its name, and the JSON schemas of its payload and of its answer."""

    name: str
    schema: Mapping[str, Any]
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFacts:
    """A declared operator.

    Attributes:
        query: None: no query that uses it was started yet.
        state: the name of the subtask state's model.
        up: names of the events that subtasks send.
    """

    uid: OperatorUid
    query: QueryName | None
    parallelism: int
    state: str
    events: tuple[EventSchema, ...]
    up: tuple[str, ...]
    requests: tuple[RequestSchema, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveUse:
    """A live value in one query.

    Attributes:
        version: that its newest epoch has seen.
        since: the first epoch that has seen it.
        next_epoch: the epoch from which on the accepted version is in force; None if it is already.
    """

    version: int
    since: Epoch
    next_epoch: Epoch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFacts:
    """A live value of the job.

    Attributes:
        value: the JSON of its model.
        by: who has changed it last.
        schema: the JSON schema of its model.
        uses: the queries in which an epoch has asked for live values.
    """

    name: str
    version: int
    value: bytes
    by: str
    at_seconds: float
    schema: Mapping[str, Any]
    uses: Mapping[QueryName, LiveUse]


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """An event from outside that fits the operator's declaration.

    Attributes:
        event_type: the name of its model.
        payload: its JSON, as the model writes it.
        subtask: the only subtask it is for; None for all.
    """

    operator: OperatorUid
    event_type: str
    payload: bytes
    subtask: int | None


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """How far an operator is with its events from outside.

    Attributes:
        applied: the number of the newest one that was passed to its coordinator; None if its query was not started yet:
            then nothing may be accepted.
        durable: up to this number nothing can undo them; the others are applied again after a failure.
        waiting: accepted and not passed to the coordinator yet.
        refused: the numbers of those that were refused, by this driver or an earlier one, and whose outcome was not yet
            reported to be durable.
    """

    applied: int | None
    durable: int
    waiting: int
    refused: tuple[int, ...] = ()


class RecoveryCause(enum.Enum):
    """Why a query or job had to resume from durable facts."""

    QUERY_FAILED = "query_failed"  #: restarted in place, by the same driver
    DRIVER_START = "driver_start"  #: the driver before this one has ended in order
    DRIVER_DIED = "driver_died"  #: the driver before this one has not said that it ended
    FENCED = "fenced"  #: the driver before this one was alive when this one took over
    RESTORE = "restore"  #: from a checkpoint, on request


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFact:
    """The recovery of one query from durable facts.

    Attributes:
        what: one line for people.
        from_epoch: the last commit that it resumed from; -1 for none.
        checkpoint: what was restored, for a restore.
        path: where it lies.
        epochs_again: epochs that had been planned and are run again: those that were not committed, and after a restore
            also those that were committed after the checkpoint.
        started_at_seconds: when the failure was noticed, or the driver began to recover the query.
        duration_seconds: from then until the first commit after it; None if there was none before the next recovery, or
            the end.
        message: the failure.
    """

    cause: RecoveryCause
    what: str
    query: QueryName
    generation: Generation
    from_epoch: Epoch
    checkpoint: CheckpointId | None = None
    path: str | None = None
    epochs_again: int = 0
    started_at_seconds: float
    duration_seconds: float | None = None
    message: str = ""


class JobListener:
    """Hears what happens in a job; a subclass overrides what it wants to hear.

    Calls come from any thread of the driver, the loop of the protocol among them: they must not block, and what they
    raise is logged and goes nowhere.
    """

    def on_checkpoint(self, statistics: CheckpointStatistics) -> None:
        """Called when a checkpoint has started, progressed or ended."""

    def on_checkpoint_discarded(self, checkpoint: CheckpointId) -> None:
        """Called when a completed checkpoint was removed from the storage; an earlier driver may have made it."""

    def on_recovery(self, fact: RecoveryFact) -> None:
        """Called when a query has recovered, or had to recover again before that."""

    def on_query_changed(self) -> None:
        """Called when a query was started, fails, runs again or has ended."""

    def on_feed_open(self, operator: OperatorUid, applied: int) -> None:
        """Called at the start and after each recovery with the number that a coordinator is at: pass it again, in
        order, every accepted event with a higher number. Repeating those that the feed still has is harmless."""

    def on_event_applied(self, operator: OperatorUid, number: int, subtasks: tuple[int, ...] = ()) -> None:
        """Called when an event was passed to the coordinator, which has sent something to these subtasks because of it;
        again after a recovery that went behind it."""

    def on_event_refused(self, operator: OperatorUid, number: int, error: Exception) -> None:
        """Handle an event whose callback raised: it has failed, and is never applied again. Once its outcome is
        durable, call the feed's ``forget_refusals``."""

    def on_events_durable(self, operator: OperatorUid, number: int) -> None:
        """Called when nothing can undo the events up to this number any more."""
