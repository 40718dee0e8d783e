"""Draws the timeline of a checkpoint: when each subtask's gateway closed, its ack arrived, and the gateway opened.

```
alerts                                       [== files ==]      the query's files are pinned
  threshold     [ state ]                                       the coordinator is asked for its state
    0 ----------[#### 12 ####o)                                 closed, with waiting events; opened by the ack
    1 ----o-----()                                              acknowledged before the coordinator had answered
    2, not passed [########### 7 ###########]                   of a failed checkpoint: closed until the failure
```

All times are in seconds since the trigger. A gateway closes when the coordinator has answered and opens when its
subtask has passed the boundary, so ``closed = opened - blocked_seconds``. If a subtask has not passed, its gateway was
closed at the coordinator's answer, and ``blocked_seconds`` is how long it was closed until the checkpoint failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coord_control.control.wording import human_seconds
from coord_control.protocol.statistics import OperatorStatistics, QueryStatistics
from coord_control.storage.records import CheckpointRecord, SubtaskRecord
from coord_control.ui.scales import Scale, seconds_scale

__all__ = ["MOST_SUBTASKS", "Bar", "Lane", "Timeline", "timeline_of"]

MOST_SUBTASKS: Final = 200

_WIDTH: Final = 960.0
_LEFT: Final = 190.0
_RIGHT: Final = 936.0
_TOP: Final = 30.0
_BOTTOM: Final = 26.0
_ROW: Final = 20.0
_THIN_ROW: Final = 11.0
_THIN_FROM: Final = 60
_STEPS: Final = 8
_LEAST_BAR: Final = 2.0
_DIGIT: Final = 7.0
# How many subtasks that have not passed are named in the description.
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time.

    Attributes:
        kind: a class of the style sheet: ``closed``, ``blocked``, ``state`` or ``files``.
        label: the text inside the bar, if there is room.
    """

    kind: str
    x: float
    width: float
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One row: a query, an operator or a subtask.

    Attributes:
        kind: ``query``, ``operator`` or ``subtask``.
        text: a description of everything that the lane shows.
        waits: the end of the line for the open gateway before the coordinator's answer.
        is_missing: whether the subtask has not passed, or the operator's coordinator has not answered.
    """

    kind: str
    label: str
    y: float
    height: float
    text: str
    bar: Bar | None = None
    waits: float | None = None
    acknowledged: float | None = None
    opened: float | None = None
    is_missing: bool = False

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The whole drawing.

    Attributes:
        finished: the position of the end of the checkpoint, or None if it has not ended.
        left_out: number of subtasks that are not drawn.
        description: a summary in words.
    """

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    scale: Scale
    lanes: tuple[Lane, ...]
    finished: float | None
    shown: int
    left_out: int
    description: str


def timeline_of(checkpoint: CheckpointRecord, subtasks: Sequence[SubtaskRecord]) -> Timeline | None:
    """Draw a checkpoint; return None if no details are known.

    Args:
        subtasks: the subtasks in display order; only the first ones are drawn.
    """
    if not subtasks and all(query.pin_seconds is None for query in checkpoint.queries):
        return None
    shown = subtasks[:MOST_SUBTASKS]
    scale = seconds_scale(_longest(checkpoint, subtasks), _LEFT, _RIGHT, steps=_STEPS)
    height = _THIN_ROW if len(shown) > _THIN_FROM else _ROW
    lanes, y = [], _TOP
    for lane in _lanes(checkpoint, shown, scale, height):
        lanes.append(replace(lane, y=y))
        y += lane.height
    duration = checkpoint.duration_seconds
    return Timeline(
        width=_WIDTH,
        height=y + _BOTTOM,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=y,
        scale=scale,
        lanes=tuple(lanes),
        finished=None if duration is None else scale.at(duration),
        shown=len(shown),
        left_out=len(subtasks) - len(shown),
        description=_description(subtasks),
    )


def _longest(checkpoint: CheckpointRecord, subtasks: Iterable[SubtaskRecord]) -> float:
    ends = [checkpoint.duration_seconds or 0.0]
    ends += [subtask.passed_seconds or 0.0 for subtask in subtasks]
    ends += [(query.boundary_seconds or 0.0) + (query.pin_seconds or 0.0) for query in checkpoint.queries]
    return max(ends)


def _lanes(
    checkpoint: CheckpointRecord, subtasks: Sequence[SubtaskRecord], scale: Scale, height: float
) -> Iterator[Lane]:
    by_operator: dict[str, list[SubtaskRecord]] = {}
    for subtask in subtasks:
        by_operator.setdefault(subtask.operator, []).append(subtask)
    for query in checkpoint.queries:
        yield _query_lane(query, scale)
        for operator in query.operators:
            yield _operator_lane(operator, scale)
            for subtask in by_operator.pop(operator.operator, ()):
                yield _subtask_lane(subtask, _answered(operator), scale, height)
    for uid, rest in by_operator.items():  # lost queries are recovered from the storage, but not their operators
        yield Lane(kind="operator", label=uid, y=0.0, height=_ROW, text=f"operator {uid}")
        for subtask in rest:
            yield _subtask_lane(subtask, None, scale, height)


def _answered(operator: OperatorStatistics) -> float | None:
    """Return when the coordinator had returned its state."""
    if operator.asked_seconds is None or operator.snapshot_seconds is None:
        return None
    return operator.asked_seconds + operator.snapshot_seconds


def _query_lane(query: QueryStatistics, scale: Scale) -> Lane:
    bar, text = None, f"query {query.query}"
    if query.boundary_seconds is not None and query.pin_seconds is not None:
        bar = _bar("files", query.boundary_seconds, query.boundary_seconds + query.pin_seconds, scale, "files")
        text += (
            f": at its boundary, epoch {query.boundary}, after {human_seconds(query.boundary_seconds)}; files were "
            f"made durable in {human_seconds(query.pin_seconds)}"
        )
    elif query.boundary_seconds is not None:
        text += f": at its boundary, epoch {query.boundary}, after {human_seconds(query.boundary_seconds)}"
    elif query.boundary is not None:
        text += f": its boundary, the end of epoch {query.boundary}, was not reached"
    return Lane(kind="query", label=query.query, y=0.0, height=_ROW, text=text, bar=bar)


def _operator_lane(operator: OperatorStatistics, scale: Scale) -> Lane:
    answered, text = _answered(operator), f"operator {operator.operator}"
    label, bar = str(operator.operator), None
    if operator.asked_seconds is None:
        text += ": its coordinator was not asked for its state"
    elif answered is None:
        label += ", no answer"
        text += f": its coordinator was asked for its state after {human_seconds(operator.asked_seconds)}, no answer"
    else:
        bar = _bar("state", operator.asked_seconds, answered, scale, "state")
        text += (
            f": its coordinator was asked for its state after {human_seconds(operator.asked_seconds)} and took "
            f"{human_seconds(operator.snapshot_seconds)}"
        )
    return Lane(kind="operator", label=label, y=0.0, height=_ROW, text=text, bar=bar, is_missing=answered is None)


def _subtask_lane(subtask: SubtaskRecord, answered: float | None, scale: Scale, height: float) -> Lane:
    acknowledged, opened = subtask.ack_seconds, subtask.passed_seconds
    closed = answered
    if opened is not None:
        closed = max(0.0, opened - subtask.blocked_seconds)
    bar = None
    if closed is not None and subtask.blocked_seconds:
        kind = "blocked" if subtask.blocked_events else "closed"
        events = f"{subtask.blocked_events:,}" if subtask.blocked_events and height >= _ROW else ""
        bar = _bar(kind, closed, closed + subtask.blocked_seconds, scale, events)
    return Lane(
        kind="subtask",
        label=str(subtask.subtask) if opened is not None else f"{subtask.subtask}, not passed",
        y=0.0,
        height=height,
        text=_subtask_text(subtask, closed),
        bar=bar,
        waits=None if closed is None else scale.at(closed),
        acknowledged=None if acknowledged is None else scale.at(acknowledged),
        opened=None if opened is None else scale.at(opened),
        is_missing=opened is None,
    )


def _subtask_text(subtask: SubtaskRecord, closed: float | None) -> str:
    ack, opened = subtask.ack_seconds, subtask.passed_seconds
    parts = [f"gateway closed after {human_seconds(closed)}"] if subtask.blocked_seconds else []
    parts += [] if ack is None else [f"acknowledged after {human_seconds(ack)}"]
    parts.append("has not passed the boundary" if opened is None else f"opened after {human_seconds(opened)}")
    parts.append(f"{subtask.blocked_events:,} events waited")
    return f"subtask {subtask.subtask}: {', '.join(parts)}"


def _bar(kind: str, start: float, end: float, scale: Scale, label: str) -> Bar:
    x = scale.at(start)
    width = round(max(scale.at(end) - x, _LEAST_BAR), 1)
    return Bar(kind, x, width, label if width > _DIGIT * (len(label) + 2) else "")


def _description(subtasks: Sequence[SubtaskRecord]) -> str:
    if not subtasks:
        return "No subtask took part; the bars show how long each query's files took."
    passed = [subtask for subtask in subtasks if subtask.passed_seconds is not None]
    missing = [subtask for subtask in subtasks if subtask.passed_seconds is None]
    blocked = sum(subtask.blocked_events for subtask in subtasks)
    longest = max(subtasks, key=lambda each: each.blocked_seconds)
    if passed:
        last = max(passed, key=lambda each: each.passed_seconds or 0.0)
        text = (
            f"{len(passed):,} of {len(subtasks):,} subtasks passed the boundary, the last one {_named(last)} after "
            f"{human_seconds(last.passed_seconds)}."
        )
    else:
        text = f"None of {len(subtasks):,} subtasks has passed its boundary."
    if passed and missing:
        more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        text += f" Not passed: {', '.join(_named(each) for each in missing[:_NAMED])}{more}."
    if longest.blocked_seconds:
        text += (
            f" {blocked:,} events waited behind closed gateways; that of {_named(longest)} was closed longest, for "
            f"{human_seconds(longest.blocked_seconds)}."
        )
    return text


def _named(subtask: SubtaskRecord) -> str:
    return f"subtask {subtask.subtask} of {subtask.operator}"
