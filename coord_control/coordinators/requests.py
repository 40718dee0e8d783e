"""Requests from outside that an operator answers: a request's class names the class of its answer.

The program declares the requests (``requests=[...]`` of ``job.operator``), a client sends one, and both know from the
class what comes back. Every operator answers :class:`CommittedStates` without a declaration.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

__all__ = ["MAX_ANSWER_BYTES", "MAX_STATES", "CommittedStates", "Request", "StatesPage", "SubtaskState", "answer_model"]

#: What an answer takes as JSON at most.
MAX_ANSWER_BYTES: Final = 256 * 1024
MAX_STATES: Final = 1000  #: subtasks on one page

Answer = TypeVar("Answer", bound=BaseModel)


class Request(BaseModel, Generic[Answer]):
    """Base of the requests to an operator; ``Answer`` is the model of what its coordinator returns::

    class Current(cc.Request[Thresholds]):
        carrier: str | None = None
    """


class SubtaskState(BaseModel):
    """The committed state of one subtask.

    Attributes:
        state: as JSON, by the names of the fields; None if it alone is too large for an answer.
        size: bytes of the state as it is stored; 0: the subtask still has the default state.
        waiting: events of the coordinator that it gets with its next rows, or has in an epoch that is not committed.
    """

    subtask: int
    state: JsonValue
    size: int
    waiting: int = 0


class StatesPage(BaseModel):
    """The newest states that no recovery goes back behind.

    Attributes:
        epoch: the newest that is committed, or None if there is none.
        parallelism: how many subtasks there are.
        coordinator: its state as JSON, base64 where it is none; None if there is none, if it was not wanted, if it is
            too large for an answer, or behind the first page.
        coordinator_size: its bytes; 0 if there is none.
        subtasks: by number.
        next_after: ``after`` of the next page, or None if this is the last one.
    """

    epoch: int | None
    parallelism: int
    coordinator: JsonValue
    coordinator_size: int
    subtasks: tuple[SubtaskState, ...]
    next_after: int | None


class CommittedStates(Request[StatesPage]):
    """Asks any operator for its committed states, a page at a time; answered without the coordinator.

    Attributes:
        subtasks: only these, in the order of their numbers, or all if it is empty.
        after: only subtasks with a higher number, and not the coordinator; None for the first page.
        limit: how many subtasks at most; a page ends sooner when the answer would be too large.
        coordinator: whether its state is wanted too, on the first page.
    """

    model_config = ConfigDict(extra="forbid")

    subtasks: Annotated[tuple[int, ...], Field(max_length=MAX_STATES)] = ()
    after: int | None = None
    limit: Annotated[int, Field(ge=0, le=MAX_STATES)] = 20
    coordinator: bool = True


def answer_model(request: type[Request[Any]]) -> type[BaseModel]:
    """Return the model of a request's answer.

    Raises:
        TypeError: the class does not name it.
    """
    for base in request.__mro__:
        generic = getattr(base, "__pydantic_generic_metadata__", {})
        if generic.get("origin") is Request and isinstance(found := generic["args"][0], type):
            return found
    raise TypeError(f"{request.__name__} does not name its answer: class {request.__name__}(cc.Request[...])")
