"""Base classes for the common case: a coordinator that starts no threads."""

from __future__ import annotations

import abc
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from coord_control.coordinators.contract import OperatorCoordinator, SnapshotResult
from coord_control.coordinators.saved_state import lost_numbers, parse_saved, problems_of
from coord_control.errors import EffectOfRequest, StateInvalid, StateNotPutBack

__all__ = ["SnapshotCoordinator", "StatefulCoordinator"]

State = TypeVar("State", bound=BaseModel)


class SnapshotCoordinator(OperatorCoordinator):
    """A coordinator that can return its state immediately, as bytes."""

    @abc.abstractmethod
    def snapshot(self) -> bytes:
        """Return the current state."""

    @abc.abstractmethod
    def restore(self, data: bytes | None) -> None:
        """Restore the state from ``data``, or start empty if it is None."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
        result.complete(self.snapshot())

    def reset_to_checkpoint(self, checkpoint_id: int, data: bytes | None) -> None:
        self.restore(data)

    def answer_request(self, request: Any) -> BaseModel:
        """Call :meth:`handle_request`, and compare the state before it with the one after it.

        Raises:
            EffectOfRequest: they differ; the one before it is in force again.
            StateNotPutBack: they differ, and :meth:`restore` raised.
        """
        before = self.snapshot()
        try:
            return self.handle_request(request)
        finally:
            if self._differs(before):
                try:
                    self.restore(before)
                except Exception as error:
                    raise StateNotPutBack(self.context.operator) from error
                raise EffectOfRequest(self.context.operator, "change the state")

    def _differs(self, before: bytes) -> bool:
        try:
            return self.snapshot() != before
        except Exception:  # a state that cannot be saved
            return True


class StatefulCoordinator(SnapshotCoordinator, Generic[State]):
    """A coordinator whose whole state is one pydantic model, which is saved and restored automatically.

    Args:
        initial: the state of a job that has not run before.
    """

    state: State  #: read and written in place; saved whenever a checkpoint asks for it

    def __init__(self, initial: State) -> None:
        self._initial = initial.model_copy(deep=True)
        self._saved: bytes | None = None  # what was given last: known to be readable
        self.state = initial

    def snapshot(self) -> bytes:
        """Return the state as JSON, which can be restored: what is durable and cannot be read would fail every run.

        Raises:
            StateInvalid: a field holds a value that its type does not allow, or that JSON has no form for (infinity).
        """
        try:
            # Fields go by their names, whatever aliases the model has for other uses.
            data = self.state.model_dump_json(by_alias=False, warnings="error").encode()
        except PydanticSerializationError as error:
            raise self._invalid(str(error)) from error
        if data != self._saved:
            if lost := lost_numbers(self.state, self._parse(data)):
                raise self._invalid(lost)
            self._saved = data
        return data

    def restore(self, data: bytes | None) -> None:
        """Restore the state from ``data``, or the initial state if it is None.

        Raises:
            StateInvalid: what was saved does not fit the model any more, or has a field that it would drop.
        """
        self.state = self._initial.model_copy(deep=True) if data is None else self._parse(data)

    def check_saved_state(self, data: bytes) -> None:
        """Raise ValueError if the model does not accept a saved state, or would drop a field of it."""
        try:
            parse_saved(type(self._initial), data)
        except ValidationError as error:
            raise ValueError(f"it is not valid for {type(self._initial).__name__}: {problems_of(error)}") from error

    def _parse(self, data: bytes) -> State:
        try:
            return parse_saved(type(self._initial), data)
        except ValidationError as error:
            raise self._invalid(problems_of(error)) from error

    def _invalid(self, problems: str) -> StateInvalid:
        return StateInvalid(self.context.operator, "the coordinator", type(self._initial).__name__, problems)
