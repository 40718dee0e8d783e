"""Base classes for the common case: a coordinator without threads of its own."""

from __future__ import annotations

import abc
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from coord_control.coordinators.contract import OperatorCoordinator, SnapshotResult
from coord_control.errors import StateInvalid

__all__ = ["SnapshotCoordinator", "StatefulCoordinator"]

State = TypeVar("State", bound=BaseModel)


class SnapshotCoordinator(OperatorCoordinator):
    """A coordinator that can give its state at once, as bytes."""

    @abc.abstractmethod
    def snapshot(self) -> bytes:
        """The state, now."""

    @abc.abstractmethod
    def restore(self, data: bytes | None) -> None:
        """Go back to ``data``; None: begin empty."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
        result.complete(self.snapshot())

    def reset_to_checkpoint(self, checkpoint_id: int, data: bytes | None) -> None:
        self.restore(data)


class StatefulCoordinator(SnapshotCoordinator, Generic[State]):
    """A coordinator whose whole state is one pydantic model, saved and restored by itself.

    Args:
        initial: the state of a job that has not run before.
    """

    state: State  #: read and written in place; saved whenever a checkpoint asks for it

    def __init__(self, initial: State) -> None:
        self._initial = initial.model_copy(deep=True)
        self.state = initial

    def snapshot(self) -> bytes:
        return self.state.model_dump_json().encode()

    def restore(self, data: bytes | None) -> None:
        """Go back to ``data``.

        Raises:
            StateInvalid: what was saved does not fit the model any more.
        """
        if data is None:
            self.state = self._initial.model_copy(deep=True)
            return
        model = type(self._initial)
        try:
            self.state = model.model_validate_json(data)
        except ValidationError as error:
            raise StateInvalid(self.context.operator, "the coordinator", model.__name__, str(error)) from error
