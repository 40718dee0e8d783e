"""What a coordinator acts with: its acts become posts in the job's first-in-first-out inbox (rule C2).

A context belongs to one incarnation of its coordinator: after a reset there is a new one, and the old one does nothing.

Threads: a coordinator uses it from any thread; what is posted runs on the loop. Which events from outside a snapshot
contains is decided by the order of these posts, see :mod:`coord_control.protocol.control_events`.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel

from coord_control.errors import CoordinatorFailed, EffectOfRequest, NoSuchSubtask
from coord_control.ids import BarrierId, OperatorUid, SubtaskIndex
from coord_control.protocol.job import JobCore
from coord_control.protocol.records import EventBatch
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.worker.model_codec import EventTypes

__all__ = ["Context", "ContextGateway", "Post", "Result"]

_log = logging.getLogger("coord_control.coordinators")

Value = TypeVar("Value")

#: Posts a call on the core: ``post(function of the core and now)``. First in, first out, from any thread.
Post: TypeAlias = Callable[[Callable[[JobCore, float], None]], None]


class Owner(Protocol):
    """The operator whose coordinator a context serves."""

    uid: OperatorUid
    parallelism: int
    down: EventTypes
    thread: CoordinatorThread
    post: Post

    def check_open(self) -> None:
        """Raise CoordinatorNotStarted when nothing can be sent yet."""


@dataclass(slots=True)
class _Run:
    """Events of one type that a coordinator sends one after the other, by subtask; one post for all of them.

    It is open until the loop comes to it or anything else is posted. A post and three objects for every event would
    cost more than the event itself, and most of that would be the garbage collector's work.

    An event is added without the context's lock, which would be a sixth of the cost of sending it. The sender adds it
    and then reads ``is_taken``; the loop sets ``is_taken`` and then takes what is there. So an event that the loop has
    missed was added by a thread that reads True, and that thread sends it on.
    """

    type_index: int
    payloads: dict[int, list[bytes]] = field(default_factory=dict)
    is_taken: bool = False

    def take(self) -> list[tuple[int, list[bytes]]]:
        """Remove and return the events that were added, by subtask; with the context's lock."""
        self.is_taken = True
        taken = [(subtask, payloads[:]) for subtask, payloads in self.payloads.items()]
        for subtask, payloads in taken:
            del self.payloads[subtask][: len(payloads)]  # others may have added more behind them
        return [(subtask, payloads) for subtask, payloads in taken if payloads]


class Context:
    """A coordinator's context for one incarnation; after a reset it does nothing."""

    def __init__(self, owner: Owner, incarnation: int) -> None:
        self._owner = owner
        self._dump, self._parallelism = (
            owner.down.dump,
            owner.parallelism,
        )  # looked up once: for every event that is sent
        self._incarnation = incarnation
        self._unmarked: int | None = None  # of the event from outside that is being applied, until it counts
        self._refused: tuple[int, ...] = ()  # before it, and not known to be durable
        self._is_asked = False  # a request is being handled: nothing may be done on the coordinator thread
        self._sent_to: set[int] | None = None  # because of the event from outside that is being applied
        self._looks_at_sends = False  # one of these two is being handled
        self._closed = False
        self._failed = False
        self._lock = threading.Lock()
        self._run: _Run | None = None  # the one that is open

    @property
    def operator(self) -> str:
        return self._owner.uid

    @property
    def parallelism(self) -> int:
        return self._owner.parallelism

    def send(self, subtask: int, event: BaseModel) -> None:
        if not 0 <= subtask < self._parallelism:
            raise NoSuchSubtask(self._owner.uid, subtask, self._parallelism)
        if self._run is None:  # otherwise it was open before
            self._owner.check_open()
        type_index, payload = self._dump(event)
        if self._closed:
            return
        run = self._run
        if run is None or run.type_index != type_index or self._looks_at_sends or subtask not in run.payloads:
            self._look_at_send(subtask)
            with self._lock:
                run = self._open_run(type_index, subtask)
        run.payloads[subtask].append(payload)
        if run.is_taken:
            self._send_missed(run)

    def _open_run(self, type_index: int, subtask: int) -> _Run:
        """Return the run that the next event belongs to; with the lock."""
        self._mark_here()
        run = self._run
        if run is None or run.type_index != type_index:
            run = self._run = _Run(type_index)
            self._owner.post(partial(self._deliver, run))
        run.payloads.setdefault(subtask, [])
        return run

    def _send_missed(self, run: _Run) -> None:
        """Send on what was added to a run that the loop had taken."""
        with self._lock:
            for subtask, payloads in run.take():
                self._open_run(run.type_index, subtask).payloads[subtask] += payloads

    def broadcast(self, event: BaseModel) -> None:
        self._look_at_send(*range(self._parallelism))
        self._owner.check_open()
        batch = self._owner.down.encode(event)
        if self._closed:
            return
        uid, incarnation, parallelism = self._owner.uid, self._incarnation, self._owner.parallelism

        def send(core: JobCore, now: float) -> None:
            for subtask in range(parallelism):
                core.send(uid, incarnation, SubtaskIndex(subtask), batch, now)

        with self._lock:
            self._mark_here()
            self._run = None
            self._owner.post(send)

    def control_event_applied(self) -> None:
        with self._lock:
            self._mark_here()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self._check_may("have something done later")
        self._owner.thread.submit(self._owner.uid, "call_soon", lambda: self.run("call_soon", lambda: function(*args)))

    def run_in_background(self, function: Callable[[], Any], then: Callable[[Any], object] | None = None) -> None:
        def work() -> None:
            try:
                result = function()
            except BaseException as error:
                self.fail("run_in_background", error)
                return
            if then is not None:
                self.call_soon(then, result)

        self._check_may("have something done later")
        if not self._closed:
            self._owner.thread.submit_background(work)

    def fail_job(self, error: BaseException) -> None:
        self._check_may("fail the query")
        self.fail("fail_job", error)

    def run(self, callback: str, call: Callable[[], object]) -> None:
        """Run a callback, unless this incarnation is over or has failed already."""
        if self._closed or self._failed:
            return
        try:
            call()
        except BaseException as error:
            self.fail(callback, error)

    @property
    def is_usable(self) -> bool:
        """Whether this incarnation is neither over nor failed."""
        return not (self._closed or self._failed)

    def apply(
        self, number: int, refused: tuple[int, ...], call: Callable[[], object]
    ) -> tuple[Exception | None, tuple[int, ...]]:
        """Let the coordinator handle an event from outside, on its thread.

        It counts from the first thing that is sent because of it, at the latest when the call has ended. Then it also
        counts as refused, if the call raised.

        Args:
            refused: the numbers of earlier events that are to be recorded as refused.

        Returns:
            What it raised, and the subtasks to which it sent something.
        """
        self._unmarked, self._refused = number, refused
        self._sent_to, self._looks_at_sends = set(), True
        try:
            error = self._applied(number, refused, call)
            return error, tuple(sorted(self._sent_to))
        finally:
            self._sent_to, self._looks_at_sends = None, False

    def _applied(self, number: int, refused: tuple[int, ...], call: Callable[[], object]) -> Exception | None:
        try:
            call()
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            _log.warning("= operator %r refuses control event %d:\n%s", self._owner.uid, number, trace)
            with self._lock:
                self._unmarked = None
                self._mark(number, (*refused, number))
            return error
        finally:
            self.control_event_applied()
        return None

    def answer(self, call: Callable[[], Value]) -> Value:
        """Let the coordinator handle a request, on its thread; what it does through this context meanwhile raises
        EffectOfRequest."""
        self._is_asked = self._looks_at_sends = True
        try:
            return call()
        finally:
            self._is_asked = self._looks_at_sends = False

    def complete(self, barrier: BarrierId, data: bytes) -> None:
        uid, incarnation = self._owner.uid, self._incarnation
        self._post(lambda core, now: core.snapshot_completed(uid, incarnation, barrier, data, now))

    def fail_snapshot(self, barrier: BarrierId, error: BaseException) -> None:
        uid, incarnation = self._owner.uid, self._incarnation
        failure = self._failure("checkpoint_coordinator", error)
        self._post(lambda core, now: core.snapshot_failed(uid, incarnation, barrier, failure, now))

    def close(self) -> None:
        self._closed = True

    def _look_at_send(self, *subtasks: int) -> None:
        self._check_may("send events")
        if self._sent_to is not None and self._owner.thread.is_current():
            self._sent_to.update(subtasks)

    def _check_may(self, what: str) -> None:
        # Other threads act for reasons that have nothing to do with the request.
        if self._is_asked and self._owner.thread.is_current():
            raise EffectOfRequest(self._owner.uid, what)

    def _post(self, call: Callable[[JobCore, float], None]) -> None:
        # Whatever is sent from here on comes after the call, so the run ends (C2).
        with self._lock:
            self._run = None
            self._owner.post(call)

    def _mark_here(self) -> None:
        # With the lock: nothing can be posted between the mark and what is posted next. Other threads send for
        # unrelated reasons.
        if self._unmarked is None or not self._owner.thread.is_current():
            return
        number, self._unmarked = self._unmarked, None
        self._mark(number, self._refused)

    def _mark(self, number: int, refused: tuple[int, ...]) -> None:
        self._run = None
        uid, incarnation = self._owner.uid, self._incarnation
        self._owner.post(lambda core, now: core.control_event(uid, incarnation, number, refused))

    def _deliver(self, run: _Run, core: JobCore, now: float) -> None:
        with self._lock:
            if self._run is run:
                self._run = None
            taken = run.take()
        uid, incarnation = self._owner.uid, self._incarnation
        for subtask, payloads in taken:
            batch = EventBatch(run.type_index, len(payloads), b",".join(payloads))
            core.send(uid, incarnation, SubtaskIndex(subtask), batch, now)

    def fail(self, callback: str, error: BaseException) -> None:
        """Fail the operator's query because of a callback, once."""
        if self._closed or self._failed:
            return
        self._failed = True
        uid, incarnation = self._owner.uid, self._incarnation
        failure = self._failure(callback, error)
        self._post(lambda core, now: core.coordinator_failed(uid, incarnation, failure))

    def _failure(self, callback: str, error: BaseException) -> CoordinatorFailed:
        # Also logged, because there may be no run left that could fail: the last epoch's events come after its end.
        _log.error("the coordinator of operator %r failed in %s", self._owner.uid, callback, exc_info=error)
        trace = "".join(traceback.format_exception(error))
        failure = CoordinatorFailed(self._owner.uid, callback, trace)
        failure.__cause__ = error
        return failure


class Result:
    """The answer to one ``checkpoint_coordinator`` call; the first one counts."""

    def __init__(self, context: Context, barrier: BarrierId) -> None:
        self._context = context
        self._barrier = barrier

    def complete(self, data: bytes) -> None:
        self._context.complete(self._barrier, bytes(data))

    def fail(self, error: BaseException) -> None:
        self._context.fail_snapshot(self._barrier, error)


class ContextGateway:
    def __init__(self, context: Context, subtask: SubtaskIndex) -> None:
        self._context = context
        self.subtask: int = subtask

    def send(self, event: BaseModel) -> None:
        self._context.send(self.subtask, event)
