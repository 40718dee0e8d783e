"""One operator's coordinator in the driver: notices of the core become callbacks, events from outside too.

Notices arrive in the order in which the core decided them and are run in that order on the thread of all coordinators.
Events from outside (:mod:`coord_control.protocol.control_events`) come between them, one at a time, once the
coordinator has started; a reset goes back behind some of them, and they come again.

Requests from outside (:mod:`.request_queue`) come between the callbacks as well, once the coordinator has started and
while a run of its query exists; those that come between two runs wait for the next one, behind its reset.

An event whose callback raises is refused: its sender is notified, it keeps its number, and it is never given to the
coordinator again. That it was refused is recorded with the state until its outcome is durable. The query is not failed
because of it, since the same event would fail it again after each restart. What the callback did before it raised, it
has done; so a coordinator checks first and acts then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import JsonValue

from coord_control.coordinators.contract import OperatorCoordinator
from coord_control.coordinators.requests import Request
from coord_control.errors import CoordinatorNotStarted, StateNotPutBack
from coord_control.ids import BarrierId, OperatorUid, SubtaskIndex
from coord_control.protocol.job_facts import JobListener
from coord_control.protocol.records import EventBatch
from coord_control.spark.loop.control_feed import ControlFeed, WaitingEvent
from coord_control.spark.loop.coordinator_context import Context, ContextGateway, Post, Result
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.loop.request_queue import RequestQueue, failure_of
from coord_control.spark.loop.request_types import RequestTypes
from coord_control.spark.worker.model_codec import EventTypes

__all__ = ["BoundCoordinator", "DeclaredCoordinator"]

_log = logging.getLogger("coord_control.coordinators")


@dataclass(frozen=True, slots=True)
class DeclaredCoordinator:
    """A coordinator as the program has declared it, for the subtasks of one operator.

    Attributes:
        down: the events that it may send them.
        up: the events that they may send it.
        requests: from outside, which it answers.
    """

    uid: OperatorUid
    coordinator: OperatorCoordinator
    parallelism: int
    down: EventTypes
    up: EventTypes
    requests: RequestTypes


class BoundCoordinator:
    """One operator's coordinator.

    Args:
        news: notified of the outcomes of events from outside.
    """

    def __init__(
        self, declared: DeclaredCoordinator, thread: CoordinatorThread, post: Post, *, news: JobListener
    ) -> None:
        uid, coordinator = declared.uid, declared.coordinator
        self.uid = uid
        self.coordinator = coordinator
        self.parallelism = declared.parallelism
        self.down = declared.down
        self.requests = declared.requests
        self._up = declared.up
        self.thread = thread
        self.post = post
        self._is_open = False  # a run of the query exists that can take what is sent
        self._has_started = False  # both are written on the coordinator thread only
        self._must_close = False
        self.feed = ControlFeed(uid, news)
        self._asked = RequestQueue(uid)
        self._context = Context(self, 1)
        self._current = self._context  # that of the callbacks now, on the coordinator thread only
        coordinator.context = self._context

    @property
    def observes_attempts(self) -> bool:
        """Whether the coordinator overrides a callback about attempts; each costs one call per hello."""
        names = ("execution_attempt_ready", "execution_attempt_failed", "subtask_reset")
        return any(getattr(type(self.coordinator), name) is not getattr(OperatorCoordinator, name) for name in names)

    # Called on the loop, run on the coordinator thread.

    def start(self) -> None:
        """Start the coordinator when its query starts or restarts; a start that failed, or was overtaken by a reset, is
        repeated."""

        def start() -> None:
            if not self._has_started:
                self._must_close = True
                self.coordinator.start()
                self._has_started = True
            if self.feed.is_open:
                self._apply_soon()
            else:
                self._recovered(0)

        self._is_open = True
        self._submit("start", start)
        self._look_at_requests()  # those that have waited for the run

    def check_open(self) -> None:
        """Refuse to send before the query's first run exists: the event would be lost without notice.

        Raises:
            CoordinatorNotStarted: it does not exist yet.
        """
        if not self._is_open:
            raise CoordinatorNotStarted(self.uid)

    def reset(
        self,
        incarnation: int,
        barrier: BarrierId,
        state: bytes | None,
        applied: int = 0,
        refused: Collection[int] = (),
    ) -> None:
        self._is_open = True
        self._context.close()
        context = self._context = Context(self, incarnation)

        def reset() -> None:
            self._current = self.coordinator.context = context
            self.coordinator.reset_to_checkpoint(barrier, state)
            self._recovered(applied, refused)

        self._submit("reset_to_checkpoint", reset)

    def ask(self, barrier: BarrierId) -> None:
        result = Result(self._context, barrier)
        self._submit("checkpoint_coordinator", lambda: self.coordinator.checkpoint_coordinator(barrier, result))

    def deliver(self, subtask: SubtaskIndex, attempt: int, batches: Sequence[EventBatch]) -> None:
        if not self._has_started:  # a recovery delivers before the query starts; to start once too often does nothing
            self.start()

        def deliver() -> None:
            for event in self._up.decode(batches):
                self.coordinator.handle_event_from_operator(subtask, attempt, event)

        self._submit("handle_event_from_operator", deliver)

    def complete(self, barrier: BarrierId) -> None:
        self._submit("notify_checkpoint_complete", lambda: self.coordinator.notify_checkpoint_complete(barrier))

    def aborted(self, barrier: BarrierId) -> None:
        self._submit("notify_checkpoint_aborted", lambda: self.coordinator.notify_checkpoint_aborted(barrier))

    def attempt_ready(self, subtask: SubtaskIndex, attempt: int) -> None:
        gateway = ContextGateway(self._context, subtask)
        self._submit(
            "execution_attempt_ready", lambda: self.coordinator.execution_attempt_ready(subtask, attempt, gateway)
        )

    def attempt_failed(self, subtask: SubtaskIndex, attempt: int, reason: str) -> None:
        self._submit(
            "execution_attempt_failed", lambda: self.coordinator.execution_attempt_failed(subtask, attempt, reason)
        )

    def subtask_reset(self, subtask: SubtaskIndex, barrier: BarrierId) -> None:
        self._submit("subtask_reset", lambda: self.coordinator.subtask_reset(subtask, barrier))

    def close(self) -> None:
        context = self._context

        def close() -> None:
            try:
                if self._must_close:
                    self.coordinator.close()
            except Exception:
                _log.exception("the coordinator of operator %r failed in close", self.uid)
            context.close()

        self.thread.submit(self.uid, "close", close)

    # Events from outside.

    def accept(self, number: int, event: WaitingEvent) -> bool:
        """Take an event that was accepted under this number; from any thread. False: it is here or applied already."""
        is_new = self.feed.accept(number, event)
        if is_new:
            self._apply_soon()
        return is_new

    def durable(self, number: int) -> None:
        """Record that nothing can undo the events up to this one; called on the loop."""
        if self.feed.recorded(number):
            self._apply_soon()  # what has waited for that

    def forget_refusals(self, numbers: Collection[int]) -> None:
        """Stop recording these refused events, whose outcomes are durable; from any thread."""
        self.feed.forget(numbers)
        self._apply_soon()  # what has waited for that

    # Requests from outside.

    def request(self, request: Request[Any]) -> Future[JsonValue]:
        """Let the coordinator handle a request; from any thread. The future has the answer, or what is wrong with it;
        to cancel it withdraws the request.

        Raises:
            NotAnswered: too many requests wait.
        """
        found = self._asked.add(request)
        self._look_at_requests()
        return found

    def handle_requests(self) -> None:
        """Answer the requests that wait: a run exists, and the reset before it was submitted; called on the loop."""
        if self._asked:
            self.thread.submit(self.uid, "handle_request", self._answer_next)

    def _look_at_requests(self) -> None:
        if self._asked:
            self.post(lambda core, now: core.requested(self.uid))

    def _answer_next(self) -> None:
        context = self._current
        # Otherwise the next run's start comes back to it.
        if self._has_started and context.is_usable and (taken := self._asked.take()) is not None:
            self._answer(context, *taken)
            self.handle_requests()  # one at a time: other coordinators have callbacks too

    def _answer(self, context: Context, request: Request[Any], future: Future[JsonValue]) -> None:
        try:
            answer = context.answer(lambda: self.coordinator.answer_request(request))
            future.set_result(self.requests.answer(request, answer))
        except BaseException as error:
            future.set_exception(failure_of(self.uid, request, error))
            if isinstance(error, StateNotPutBack):
                context.fail("handle_request", error)

    def _recovered(self, number: int, refused: Collection[int] = ()) -> None:
        self.feed.recovered(number, refused)
        self._apply_soon()

    def _apply_soon(self) -> None:
        self.thread.submit(self.uid, "handle_control_event", self._apply_next)

    def _apply_next(self) -> None:
        context = self._current
        if not self._has_started or not context.is_usable or (taken := self.feed.take()) is None:
            return
        context.run("handle_control_event", lambda: self._apply(context, taken.number, taken.event))
        self._apply_soon()  # one at a time: other coordinators have callbacks too

    def _apply(self, context: Context, number: int, waiting: WaitingEvent) -> None:
        [event] = self.down.decode([waiting.batch])
        refused = self.feed.refused()
        call = partial(self.coordinator.handle_control_event, event, waiting.subtask)
        error, subtasks = context.apply(number, refused, call)
        if context.is_usable:  # otherwise it has not happened, and comes again
            self.feed.applied(number, error, subtasks)

    def _submit(self, callback: str, call: Callable[[], object]) -> None:
        context = self._context
        self.thread.submit(self.uid, callback, lambda: context.run(callback, call))
