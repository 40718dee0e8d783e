"""Another number of subtasks after a restore: a function of the user's gives the new ones what the old ones had.

Only the user knows what a state means: whether it is the same in all subtasks (take any), a part of a whole (merge and
split), or belongs to keys. A key belongs to another subtask when their number changes, and which one is Spark's
hash: a state that is kept by key is best merged and given to all; each subtask then meets its own keys.

Runs in the driver, once, before the query starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel

from coord_control.durable.restore.seeds import Redistribution, Rescale
from coord_control.errors import RescaleFailed
from coord_control.ids import SubtaskIndex
from coord_control.protocol.records import EventBatch, pack
from coord_control.spark.worker.model_codec import EventTypes, StateType

__all__ = ["RescaleFunction", "SubtaskSnapshot", "rescaling"]

State = TypeVar("State", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class SubtaskSnapshot(Generic[State]):
    """What one subtask had when the checkpoint was taken, or what a new one begins with.

    Attributes:
        state: its state.
        events: sent to it by the coordinator, in order, and not seen by it yet.
    """

    state: State
    events: Sequence[BaseModel] = ()


#: ``rescale(subtasks, parallelism)``: of the old subtasks, in order, and how many new ones there are; returns the new.
RescaleFunction: TypeAlias = Callable[[list[SubtaskSnapshot[Any]], int], Sequence[SubtaskSnapshot[Any]]]


def rescaling(
    operator: str, state: StateType[Any], down: EventTypes, parallelism: int, function: RescaleFunction
) -> Rescale:
    """Wrap a user's function: models instead of bytes.

    The result raises RescaleFailed when the function fails or does not give what the new subtasks need; StateInvalid,
    StateTooLarge, EventInvalid when what it is given, or gives, does not fit the models.
    """

    def rescale(old: Redistribution, old_parallelism: int) -> Redistribution:
        before = [
            SubtaskSnapshot(
                state.load(index, old.states.get(SubtaskIndex(index))),
                down.decode(old.events.get(SubtaskIndex(index), ())),
            )
            for index in range(old_parallelism)
        ]
        try:
            after = list(function(before, parallelism))
        except Exception as error:
            raise RescaleFailed(operator, f"raised {type(error).__name__}: {error}") from error
        if len(after) != parallelism or not all(isinstance(one, SubtaskSnapshot) for one in after):
            raise RescaleFailed(
                operator, f"returned {len(after)} values, and must return {parallelism} of SubtaskSnapshot"
            )
        states = {SubtaskIndex(index): state.dump(index, one.state) for index, one in enumerate(after)}
        return Redistribution(states, _encoded(down, after))

    return rescale


def _encoded(
    down: EventTypes, subtasks: Sequence[SubtaskSnapshot[Any]]
) -> Mapping[SubtaskIndex, tuple[EventBatch, ...]]:
    return {
        SubtaskIndex(index): pack(down.encode(event) for event in one.events)
        for index, one in enumerate(subtasks)
        if one.events
    }
