"""A configuration that every subtask of an operator sees, and that changes for all of them in the same epoch."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from coord_control.coordinators.contract import CoordinatorContext, SnapshotResult
from coord_control.coordinators.stateful import StatefulCoordinator
from coord_control.errors import SubtaskNotAllowed

__all__ = ["BroadcastConfig"]

Config = TypeVar("Config", bound=BaseModel)


class BroadcastConfig(StatefulCoordinator[Config], Generic[Config]):
    """Holds a pydantic model and gives every subtask the new version in the same epoch.

    Declare the model among the operator's ``down`` events and keep it in the subtask's state::

        limits = cc.BroadcastConfig(Limits(minutes=30))
        operator = job.operator("alerts", limits, parallelism=4, state=AlertState, down=[Limits])
        ...
        limits.update(Limits(minutes=45))      # from any thread

    A subtask without rows in that epoch sees the version in its next one, before any of its rows.

    Args:
        initial: the first version; subtasks get it in their first epoch.
    """

    def __init__(self, initial: Config) -> None:
        super().__init__(initial)
        # Reentrant: handle_request may use what takes it.
        self._lock = threading.RLock()  # orders updates of other threads against snapshots and resets
        # Renewed together with the state: a reset renews ``context`` before it can take the lock, and an update in
        # between must go the way of the state that it changed.
        self._channel: CoordinatorContext | None = None
        self._announced = False  # the subtasks have been given a version, in this run or before it

    @property
    def current(self) -> Config:
        """The newest version."""
        with self._lock:
            return self.state.model_copy(deep=True)

    def update(self, config: Config) -> None:
        """Give every subtask ``config`` from its next epoch on. A version equal to the current one is not sent.

        An update is durable once the next epoch has begun; one made just before a crash, a failed batch or a stop may
        have to be made again. Before the job has started the query, it only replaces the first version.

        Raises:
            EventInvalid, EventTooLarge, UndeclaredEvent: the version cannot be sent; nothing changes.
        """
        with self._lock:
            if config != self.state:
                if self._channel is not None:
                    self._channel.broadcast(config)
                else:  # what a reset to the beginning goes back to
                    self._initial = config.model_copy(deep=True)
                self.state = config.model_copy(deep=True)

    def start(self) -> None:
        """Send the first version, unless the job resumes from an earlier one."""
        with self._lock:
            self._channel = self.context
            if not self._announced:
                self._announce()

    def check_control_event(self, event: BaseModel, subtask: int | None) -> None:
        """Refuse a version for a single subtask.

        Raises:
            SubtaskNotAllowed: ``event`` addresses a single subtask.
        """
        if subtask is not None and isinstance(event, type(self._initial)):
            raise SubtaskNotAllowed(self.context.operator, type(event).__name__)

    def handle_control_event(self, event: BaseModel, subtask: int | None) -> None:
        """Treat a new version from outside as an :meth:`update`; pass on events of other types."""
        self.check_control_event(event, subtask)
        if isinstance(event, type(self._initial)):
            self.update(event)
        else:
            super().handle_control_event(event, subtask)

    def answer_request(self, request: Any) -> BaseModel:
        """Do the same as that of the base class; an update of another thread waits, because it would look like one of
        the request."""
        with self._lock:
            return super().answer_request(request)

    def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
        # The lock spans the answer: an update between reading the state and the snapshot point would be sent before the
        # checkpoint without being part of it.
        with self._lock:
            result.complete(self.snapshot())

    def restore(self, data: bytes | None) -> None:
        with self._lock:
            super().restore(data)
            self._channel = self.context
            self._announced = True
            if data is None:
                self._announce()

    def _announce(self) -> None:
        self.context.broadcast(self.state)
        self._announced = True
