"""What is known of checkpoints afterwards, and while they run: per checkpoint, query, operator and subtask.

Everything that Flink's REST interface shows has its place here, where it exists in Spark at all, and what Flink leaves
out: the coordinator's part, how long gateways held events, and how files came to the checkpoint.

| Flink                                   | here                                                                      |
| --------------------------------------- | ------------------------------------------------------------------------- |
| status, is_savepoint, failure_message   | ``status``, ``kind``, ``reason``, ``message``                             |
| trigger_timestamp, latest_ack_timestamp | ``triggered_at_seconds``, ``latest_passed_seconds`` after it              |
| end_to_end_duration                     | ``duration_seconds``                                                      |
| state_size, checkpointed_size           | ``state_bytes``; ``new_bytes``: what no older checkpoint holds            |
| persisted_data, alignment buffered      | ``channel_bytes``: events in transit, in both directions                  |
| alignment duration, start_delay         | ``blocked_seconds`` of a gateway, ``passed_seconds`` of a subtask         |
| checkpoint_duration sync, async         | ``boundary_seconds``, ``pin_seconds`` of a query                          |
| num_subtasks, num_acknowledged_subtasks | ``subtasks``, ``passed_subtasks``                                         |
| external_path, discarded                | ``path``, ``discarded``                                                   |
| nothing                                 | ``snapshot_seconds``, ``coordinator_bytes`` of an operator                |
| nothing                                 | ``blocked_events`` of a gateway                                           |
| nothing                                 | ``linked_bytes``, ``copied_bytes``, ``metadata_bytes``                    |
| processed_data, unaligned_checkpoint    | nothing: no barrier travels with the rows                                 |

Points in time are seconds since 1970 (UTC), because they are for people and outlive the driver; they come from outside
like everything else. ``to_json`` gives plain values whose names are those of the fields.

Values; any thread.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

from coord_control.ids import CheckpointId, CheckpointKind, Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.control_events import unseal
from coord_control.protocol.cut import OperatorCut, PendingCut, SubtaskCut
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.gateway import Gateway
from coord_control.protocol.records import size
from coord_control.protocol.recovery import in_sequence

__all__ = [
    "CheckpointFacts",
    "CheckpointStatistics",
    "CheckpointStatus",
    "CheckpointTotals",
    "OperatorStatistics",
    "QueryStatistics",
    "SubtaskStatistics",
    "SubtaskTotals",
    "offsets_within_limit",
    "operator_statistics",
    "statistics_so_far",
    "to_json",
]

_MAX_OFFSETS: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class SubtaskStatistics:
    """One subtask's part.

    Attributes:
        passed_seconds: from the trigger until it passed the boundary; None if it has not.
        state_bytes: its own state; the state that Spark keeps is the query's.
        blocked_events: events that waited for it behind this checkpoint.
        blocked_seconds: from the coordinator's snapshot point until it passed the boundary, or the checkpoint failed.
        down_bytes: channel state from the coordinator to it.
        up_bytes: channel state from it to the coordinator.
        ack_seconds: from the trigger until its ack of the boundary epoch; None if there was none after the trigger,
            because it was done before or had no rows.
    """

    subtask: SubtaskIndex
    passed_seconds: float | None  # not optional: a release that measured something else is recognized by its lack
    state_bytes: int = 0
    blocked_events: int = 0
    blocked_seconds: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    ack_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SubtaskTotals:
    """What the subtasks of one operator amount to; known also where their list is left out, because it is long.

    Attributes:
        passed_subtasks: those that have passed the boundary.
        latest_passed_seconds: from the trigger until the last one so far passed the boundary.
        subtask_bytes: their own states.
        channel_bytes: events in transit, in both directions.
        blocked_events: events that waited behind this checkpoint, at all gateways.
        blocked_seconds: the longest that a gateway was closed.
    """

    subtasks: int = 0
    passed_subtasks: int = 0
    latest_passed_seconds: float | None = None
    subtask_bytes: int = 0
    channel_bytes: int = 0
    blocked_events: int = 0
    blocked_seconds: float = 0.0

    @classmethod
    def of(cls, subtasks: Sequence[SubtaskStatistics]) -> SubtaskTotals:
        """Add up."""
        return cls(
            subtasks=len(subtasks),
            passed_subtasks=sum(each.passed_seconds is not None for each in subtasks),
            latest_passed_seconds=_latest(each.passed_seconds for each in subtasks),
            subtask_bytes=sum(each.state_bytes for each in subtasks),
            channel_bytes=sum(each.down_bytes + each.up_bytes for each in subtasks),
            blocked_events=sum(each.blocked_events for each in subtasks),
            blocked_seconds=max((each.blocked_seconds for each in subtasks), default=0.0),
        )


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """One operator's part.

    Attributes:
        asked_seconds: from the trigger until the coordinator was asked for its state; None if it was not.
        snapshot_seconds: from then until it answered; None if it has not.
        coordinator_bytes: its state.
        subtasks: its subtasks; empty also where they were left out.
        applied_events: the number of the last event from outside that the state contains, by job, once known.
        totals: of the subtasks; computed from them unless they were left out.
    """

    operator: OperatorUid
    asked_seconds: float | None = None
    snapshot_seconds: float | None = None
    coordinator_bytes: int = 0
    subtasks: tuple[SubtaskStatistics, ...] = ()
    applied_events: Mapping[str, int] | None = None
    totals: SubtaskTotals = SubtaskTotals()

    def __post_init__(self) -> None:
        if self.subtasks:
            object.__setattr__(self, "totals", SubtaskTotals.of(self.subtasks))

    @property
    def passed_subtasks(self) -> int:
        """Those that have passed the boundary."""
        return self.totals.passed_subtasks

    @property
    def latest_passed_seconds(self) -> float | None:
        """From the trigger until the last one so far passed the boundary."""
        return self.totals.latest_passed_seconds

    @property
    def channel_bytes(self) -> int:
        """The bytes of events in transit, in both directions."""
        return self.totals.channel_bytes

    @property
    def state_bytes(self) -> int:
        """The bytes of the coordinator's state, the subtasks' states and the events in transit."""
        return self.coordinator_bytes + self.channel_bytes + self.totals.subtask_bytes

    @property
    def blocked_events(self) -> int:
        """Events that waited behind this checkpoint, at all gateways."""
        return self.totals.blocked_events

    @property
    def blocked_seconds(self) -> float:
        """The longest that a gateway was closed."""
        return self.totals.blocked_seconds


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """One query's part.

    Attributes:
        boundary: the epoch at whose end it is cut, also when that was not reached.
        boundary_seconds: from the trigger until the boundary was reached; None if it was not.
        pin_seconds: how long it took to make its files durable; None if they are not.
        files: of Spark's checkpoint directory.
        file_bytes: their size.
        linked_bytes: of the files that were hard-linked.
        copied_bytes: of the files that were copied. What is in neither was there already, from an older checkpoint.
        offsets: by source, what it had been read up to at the boundary.
    """

    query: QueryName
    boundary: Epoch | None = None
    boundary_seconds: float | None = None
    pin_seconds: float | None = None
    files: int = 0
    file_bytes: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0
    operators: tuple[OperatorStatistics, ...] = ()
    offsets: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state_bytes(self) -> int:
        """Its files and the state of its operators."""
        return self.file_bytes + sum(operator.state_bytes for operator in self.operators)

    @property
    def new_bytes(self) -> int:
        """What no older checkpoint holds."""
        own = sum(operator.state_bytes for operator in self.operators)
        return self.linked_bytes + self.copied_bytes + own

    def without_subtasks(self) -> QueryStatistics:
        """Return the same without the lists of subtasks; their totals stay."""
        return replace(self, operators=tuple(replace(operator, subtasks=()) for operator in self.operators))


class CheckpointStatus(enum.Enum):
    """How far a checkpoint is."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """What is known of a checkpoint or savepoint itself, in the driver and in the control database.

    Attributes:
        key: of the request, when it had one; a command's is ``command:<id>``.
        cause: what triggered it: the schedule, a command, a stop.
        duration_seconds: from the trigger until it ended; None if it has not.
        message: why it failed, for people.
        path: where it lies, when it is complete.
        metadata_bytes: of its ``_metadata``.
    """

    label: str | None = None
    key: str | None = None
    cause: str = ""
    requested_by: str | None = None
    duration_seconds: float | None = None
    message: str = ""
    path: str | None = None
    metadata_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTotals(CheckpointFacts):
    """What the parts of a checkpoint amount to, where the parts are left out.

    Each is a property of :class:`CheckpointStatistics`, and a number in the control database.
    """

    state_bytes: int = 0
    new_bytes: int = 0
    channel_bytes: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0
    blocked_events: int = 0
    blocked_seconds: float = 0.0
    snapshot_seconds: float = 0.0
    subtasks: int = 0
    passed_subtasks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatistics(CheckpointFacts):
    """One checkpoint or savepoint.

    Attributes:
        triggered_at_seconds: when it was started.
        reason: why it failed.
        discarded: it was complete and has been removed since.
    """

    checkpoint: CheckpointId
    kind: CheckpointKind
    triggered_at_seconds: float
    periodic: bool = False
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    reason: FailureReason | None = None
    discarded: bool = False
    queries: tuple[QueryStatistics, ...] = ()

    def totals(self) -> dict[str, Any]:
        """Return the values of the fields of :class:`CheckpointTotals`."""
        return {each.name: getattr(self, each.name) for each in fields(CheckpointTotals)}

    @property
    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Those of all queries."""
        return tuple(operator for query in self.queries for operator in query.operators)

    @property
    def subtasks(self) -> int:
        return sum(operator.totals.subtasks for operator in self.operators)

    @property
    def passed_subtasks(self) -> int:
        """Those that have passed their boundary."""
        return sum(operator.passed_subtasks for operator in self.operators)

    @property
    def latest_passed_seconds(self) -> float | None:
        """From the trigger until the last subtask so far passed its boundary."""
        return _latest(operator.latest_passed_seconds for operator in self.operators)

    @property
    def state_bytes(self) -> int:
        """Everything that belongs to it, whether shared with older ones or not."""
        return self.metadata_bytes + sum(query.state_bytes for query in self.queries)

    @property
    def new_bytes(self) -> int:
        """What no older checkpoint holds; of a savepoint, which shares nothing, all of it."""
        if self.kind is CheckpointKind.SAVEPOINT:
            return self.state_bytes
        return self.metadata_bytes + sum(query.new_bytes for query in self.queries)

    @property
    def linked_bytes(self) -> int:
        return sum(query.linked_bytes for query in self.queries)

    @property
    def copied_bytes(self) -> int:
        return sum(query.copied_bytes for query in self.queries)

    @property
    def channel_bytes(self) -> int:
        """The bytes of events in transit, in both directions."""
        return sum(operator.channel_bytes for operator in self.operators)

    @property
    def blocked_events(self) -> int:
        return sum(operator.blocked_events for operator in self.operators)

    @property
    def blocked_seconds(self) -> float:
        """The longest that a gateway was closed."""
        return max((operator.blocked_seconds for operator in self.operators), default=0.0)

    @property
    def snapshot_seconds(self) -> float:
        """The longest that a coordinator took to give its state."""
        return max((operator.snapshot_seconds or 0.0 for operator in self.operators), default=0.0)


def operator_statistics(cut: OperatorCut) -> OperatorStatistics:
    """Return what a finished cut says of its operator; a subtask without measurements was at the boundary already."""
    passed = {each.subtask: each for each in cut.subtasks}
    up_bytes: dict[SubtaskIndex, int] = {}
    for outbox in cut.up:
        up_bytes[outbox.subtask] = up_bytes.get(outbox.subtask, 0) + size(outbox.events)
    down = in_sequence(cut.replay.inputs if cut.replay is not None else {}, cut.down)
    known = sorted(passed.keys() | cut.states.keys() | down.keys() | up_bytes.keys())
    subtasks = [
        SubtaskStatistics(
            subtask=measured.subtask,
            passed_seconds=measured.passed_seconds,
            state_bytes=len(cut.states.get(measured.subtask) or b""),
            blocked_events=measured.blocked_events,
            blocked_seconds=measured.blocked_seconds,
            down_bytes=size(down.get(measured.subtask, ())),
            up_bytes=up_bytes.get(measured.subtask, 0),
            ack_seconds=measured.ack_seconds,
        )
        for measured in (passed.get(subtask, SubtaskCut(subtask)) for subtask in known)
    ]
    coordinator_bytes = len(cut.coordinator_state or b"")
    return OperatorStatistics(
        cut.operator,
        cut.asked_seconds,
        cut.snapshot_seconds,
        coordinator_bytes,
        tuple(subtasks),
        unseal(cut.operator, cut.coordinator_state).numbers,
    )


def statistics_so_far(
    operator: OperatorUid, cut: PendingCut, gateways: Sequence[Gateway], now: float
) -> OperatorStatistics:
    """Return what has been measured of an operator whose query is not captured; sizes are known only when it is cut.

    Args:
        gateways: of all its subtasks, in their order.
    """
    if cut.captured is not None:  # another operator of the query is not
        return operator_statistics(cut.captured)
    subtasks = (cut.so_far(SubtaskIndex(subtask), gateway, now) for subtask, gateway in enumerate(gateways))
    asked_at, answered_at = cut.asked_at, cut.answered_at
    return OperatorStatistics(
        operator,
        None if asked_at is None else asked_at - cut.triggered_at,
        None if asked_at is None or answered_at is None else answered_at - asked_at,
        len(cut.state),
        tuple(
            SubtaskStatistics(
                subtask=each.subtask,
                passed_seconds=each.passed_seconds,
                blocked_events=each.blocked_events,
                blocked_seconds=each.blocked_seconds,
                ack_seconds=each.ack_seconds,
            )
            for each in subtasks
        ),
    )


def offsets_within_limit(offsets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the offsets of a checkpoint's queries, so that all together stay readable.

    They are for people; what a restore goes by is in the metadata's part about the query. Where they would be more
    than 16 KiB of JSON, those of the queries with the longest ones become ``{"omitted": bytes}``.
    """
    sizes = {query: len(json.dumps(each)) for query, each in offsets.items()}
    left = _MAX_OFFSETS
    kept: dict[str, dict[str, Any]] = {}
    for query, size_of in sorted(sizes.items(), key=lambda each: each[1]):
        fits = size_of <= left
        kept[query] = dict(offsets[query]) if fits else {"omitted": size_of}
        left -= size_of if fits else 0
    return kept


def to_json(value: object) -> Any:
    """Return plain values for JSON: fields first, then what is derived from them, by name; enums by their code."""
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.name != "totals"]  # these are derived
        names += [name for name in _derived(type(value)) if name not in names and name != "operators"]
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, FailureReason):
        return value.code
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_json(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    return value


def _derived(kind: type) -> list[str]:
    return [name for name, attribute in vars(kind).items() if isinstance(attribute, property)]


def _latest(times: Iterable[float | None]) -> float | None:
    return max((time for time in times if time is not None), default=None)
