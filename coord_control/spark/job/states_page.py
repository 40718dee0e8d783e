"""The answer to :class:`~coord_control.coordinators.requests.CommittedStates`, for every operator.

Threads: pure functions; states are parsed where they are called.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from coord_control.coordinators.requests import MAX_ANSWER_BYTES, CommittedStates, StatesPage, SubtaskState
from coord_control.coordinators.saved_state import as_json
from coord_control.errors import NoSuchSubtask
from coord_control.ids import NO_EPOCH, SubtaskIndex
from coord_control.protocol import operator
from coord_control.spark.worker.model_codec import StateType

__all__ = ["states_page", "wanted_subtasks"]

# What a page holds besides the states themselves, for one subtask and for all.
_FRAME_BYTES = 64
_PAGE_BYTES = 1024


def wanted_subtasks(request: CommittedStates, uid: str, parallelism: int) -> list[SubtaskIndex]:
    """Return the subtasks of a request, in order; one more than a page, if there are more.

    Raises:
        NoSuchSubtask: it names one that the operator does not have.
    """
    for subtask in request.subtasks:
        if not 0 <= subtask < parallelism:
            raise NoSuchSubtask(uid, subtask, parallelism)
    numbers = sorted(set(request.subtasks)) if request.subtasks else range(parallelism)
    after = -1 if request.after is None else request.after
    return [SubtaskIndex(number) for number in numbers if number > after][: request.limit + 1]


def states_page(
    request: CommittedStates, found: operator.OperatorStates, state: StateType[Any], parallelism: int
) -> StatesPage:
    """Return a page of states as JSON, as many as an answer holds.

    Args:
        found: the states of :func:`wanted_subtasks`.

    Raises:
        StateInvalid: a state does not fit the model.
    """
    is_first = request.after is None
    coordinator = found.coordinator if request.coordinator and is_first else None
    shown = None if coordinator is None else _bounded(as_json(coordinator))
    room = MAX_ANSWER_BYTES - _PAGE_BYTES - _size(shown)
    rows: list[SubtaskState] = []
    for subtask, data in found.subtasks.items():
        if len(rows) == request.limit:
            break
        value = _bounded(state.load(subtask, data).model_dump(mode="json", by_alias=False))
        room -= _FRAME_BYTES + _size(value)
        if room < 0 and (rows or shown is not None):
            break
        waiting = found.waiting[subtask]
        rows.append(SubtaskState(subtask=subtask, state=value, size=len(data or b""), waiting=waiting))
    return StatesPage(
        epoch=None if found.epoch == NO_EPOCH else found.epoch,
        parallelism=parallelism,
        coordinator=shown,
        coordinator_size=len(found.coordinator or b""),
        subtasks=tuple(rows),
        next_after=_next_after(request, len(found.subtasks), rows),
    )


def _next_after(request: CommittedStates, wanted: int, rows: Sequence[SubtaskState]) -> int | None:
    if len(rows) == wanted or request.limit == 0:
        return None
    return rows[-1].subtask if rows else -1  # the coordinator's state has filled the first page


def _bounded(value: JsonValue) -> JsonValue:
    return value if _size(value) <= MAX_ANSWER_BYTES - _PAGE_BYTES - _FRAME_BYTES else None


def _size(value: JsonValue) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
