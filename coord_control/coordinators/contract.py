"""What user code implements in the driver: Flink's operator coordinator, in Python (docs/protocol.md, section 8).

All callbacks of a job's coordinators come from one thread, one at a time (rule C1), and must not block: a slow one is
reported, and delays every coordinator of the job. ``context.run_in_background`` is for blocking work.

Order of the calls:

1. ``reset_to_checkpoint`` when there is something to restore, then ``start``;
2. ``handle_event_from_operator``, ``checkpoint_coordinator``, ``notify_checkpoint_complete`` as epochs go by;
3. per attempt of a subtask: ``execution_attempt_ready`` -> ``execution_attempt_failed`` -> ``subtask_reset`` -> ready
   of the next one (C14), only for coordinators that override these;
4. after a failed batch ``reset_to_checkpoint`` again, on the same object, and everything continues (C12);
5. ``close``.

``handle_control_event`` and ``handle_request`` come between any of these, once the coordinator has started.

An exception in any callback fails the query of the operator (C17): it is restarted from durable facts, with back-off.
Only an event or a request from outside that cannot be handled fails alone.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel

__all__ = ["CoordinatorContext", "OperatorCoordinator", "SnapshotResult", "SubtaskGateway"]


class SubtaskGateway(Protocol):
    """Sends events to one subtask."""

    @property
    def subtask(self) -> int: ...

    def send(self, event: BaseModel) -> None:
        """Send an event to this subtask; see :meth:`CoordinatorContext.send`."""


class CoordinatorContext(Protocol):
    """The services of the job for a coordinator. Every method may be called from any thread (C1)."""

    @property
    def operator(self) -> str:
        """The operator's uid."""

    @property
    def parallelism(self) -> int:
        """How many subtasks there are: ``0 .. parallelism-1``."""

    def send(self, subtask: int, event: BaseModel) -> None:
        """Send an event to one subtask. It is seen in the subtask's next epoch, exactly once.

        Raises:
            NoSuchSubtask: there is no such subtask.
            UndeclaredEvent, EventInvalid, EventTooLarge: the event cannot be sent.
            CoordinatorNotStarted: the operator's query has not been started yet.
        """

    def broadcast(self, event: BaseModel) -> None:
        """Send an event to all subtasks; those with rows see it in the same epoch. Raises as :meth:`send` does."""

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run ``function(*args)`` on the coordinator thread, after the callbacks that already wait."""

    def run_in_background(self, function: Callable[[], Any], then: Callable[[Any], object] | None = None) -> None:
        """Run ``function()`` on another thread, then ``then(result)`` on the coordinator thread.

        An exception of either fails the query, like one of a callback. After a reset, work that was begun before it
        ends without ``then``.
        """

    def control_event_applied(self) -> None:
        """Mark the event of the current :meth:`OperatorCoordinator.handle_control_event` as applied from here on. By
        default it counts from the first thing that is sent because of it, or when the call ends.

        Only for coordinators that answer ``checkpoint_coordinator`` from their own threads, and change their state
        because of an event without sending anything: they call this under the lock under which they change it.
        """

    def fail_job(self, error: BaseException) -> None:
        """Fail the operator's query (global failover); counted once until the next reset (C16)."""


class SnapshotResult(Protocol):
    """The answer to ``checkpoint_coordinator``; may be given from any thread, once."""

    def complete(self, data: bytes) -> None:
        """Give the coordinator's state. **This call is the snapshot point** (C2).

        It and every ``context.send`` go through one first-in-first-out queue: what the same thread, or another under
        the same lock, sent before this call belongs to the checkpoint, what it sends afterwards does not.
        """

    def fail(self, error: BaseException) -> None:
        """Report that there is no state to give: the checkpoint fails, or at the start of an epoch, the epoch."""


class OperatorCoordinator(abc.ABC):
    """The coordinator of one operator. Implement it directly for full control; most coordinators extend a base class of
    :mod:`.stateful`."""

    context: CoordinatorContext  #: set before the first callback, renewed just before every reset

    def start(self) -> None:
        """Called before the operator's query starts."""

    def close(self) -> None:
        """Called when the job ends. Afterwards the context does nothing."""

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        """Handle an event of a subtask whose epoch is committed. Called exactly once per event, in subtask order, and
        in order within a subtask."""

    def handle_control_event(self, event: Any, subtask: int | None) -> None:
        """Handle an event from outside (``coordctl event send``, ``ControlClient``). Called exactly once per event, in
        the order of acceptance. By default the event is passed on to the subtasks.

        Whether a snapshot contains the event is found by the rule for everything that is sent (C2), so what the event
        changes and what is sent because of it go together. Nothing is done because of the event after this has
        returned.

        An exception refuses the event: its sender receives the traceback, and it is not delivered again. The query
        keeps running, because the same event would fail it after every restart; so validate first, then change state.

        Args:
            event: of one of the operator's ``down`` types.
            subtask: the only subtask it is for; None for all.
        """
        if subtask is None:
            self.context.broadcast(event)
        else:
            self.context.send(subtask, event)

    def check_saved_state(self, data: bytes) -> None:
        """Raise to refuse a saved state before a restore takes place; by default nothing is refused.

        Called before :meth:`start` and :meth:`reset_to_checkpoint`, from the thread that starts the queries, with what
        an earlier :meth:`checkpoint_coordinator` has given. It must not change anything.
        """

    def check_control_event(self, event: Any, subtask: int | None) -> None:
        """Raise to refuse an event from outside before it is accepted; by default nothing is refused.

        Called from any thread, also before :meth:`start`. It must not block or change anything.
        """

    def handle_request(self, request: Any) -> BaseModel:
        """Answer a request from outside (``coordctl ask``, ``ControlClient.ask``).

        It has no effect: what is sent through the context meanwhile raises ``EffectOfRequest``, and nothing of the
        state may be changed. The answer is of now: the state may be ahead of what is durable, and a recovery may take
        it back. While the query is being restarted, requests wait.

        An exception refuses the request: its sender receives the traceback, and nothing else fails.

        Args:
            request: of one of the operator's ``requests`` types.

        Returns:
            An instance of the model that the request's class names.
        """
        raise NotImplementedError(f"{type(self).__name__} has no handle_request")

    def answer_request(self, request: Any) -> BaseModel:
        """Call :meth:`handle_request`, and check that it has changed nothing, where that can be seen."""
        return self.handle_request(request)

    @abc.abstractmethod
    def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
        """Give the state with ``result.complete(data)``, now or later, from any thread."""

    @abc.abstractmethod
    def reset_to_checkpoint(self, checkpoint_id: int, data: bytes | None) -> None:
        """Go back to ``data``; with None (and id -1) there is no checkpoint: begin empty (C13).

        Whatever was done after that checkpoint has not happened for any subtask. Events sent from here on, through
        the renewed ``context``, are after the restored checkpoint.

        A coordinator with its own threads keeps a reference to ``context`` next to its state and replaces both here
        under one lock: ``context`` is new before this call can wait for the lock, so another thread would send what the
        old state says through the new context.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called when the epoch, or the checkpoint, is committed. The call may be missing after a crash."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Called when the checkpoint will not complete; its events are delivered as if it had not been requested."""

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Called when a subtask starts again from ``checkpoint_id`` (local failover); it gets the same inputs again."""

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: SubtaskGateway) -> None:
        """Called when an attempt of a subtask has begun."""

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str) -> None:
        """Called when an attempt of a subtask ended without acknowledging."""
