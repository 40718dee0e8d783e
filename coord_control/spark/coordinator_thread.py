"""The one thread on which every callback of a job's coordinators runs, one at a time (rule C1).

What coordinators do (send, complete, fail) is posted to the job's first-in-first-out inbox, from whatever thread it
comes: that queue is the order of the protocol (rule C2). Callbacks arrive here in the order in which the core decided
them.

A callback that raises fails its query and silences the coordinator until its next reset (C16, C17). One that takes
long is reported while it runs, with its name, because everything else waits for it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from coord_control.coordinators.contract import OperatorCoordinator
from coord_control.errors import CoordinatorFailed, CoordinatorNotStarted, NoSuchSubtask
from coord_control.ids import BarrierId, OperatorUid, SubtaskIndex
from coord_control.protocol.job import JobCore
from coord_control.protocol.records import EventBatch
from coord_control.spark.models import EventTypes

__all__ = ["BoundCoordinator", "CoordinatorThread", "Post", "SlowCallback"]

_log = logging.getLogger("coord_control.coordinators")

#: Posts a call on the core: ``post(function of the core and now)``. First in, first out, from any thread.
Post: TypeAlias = Callable[[Callable[[JobCore, float], None]], None]

_BACKGROUND_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class SlowCallback:
    """A callback that has been running for too long."""

    operator: str
    callback: str
    seconds: float


class CoordinatorThread:
    """Runs callbacks one at a time, in order."""

    def __init__(self, slow_seconds: float = 1.0) -> None:
        self._slow_seconds = slow_seconds
        self._calls: queue.SimpleQueue[tuple[str, str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._current: tuple[str, str, float] | None = None
        self._reported: float | None = None
        self.slow_callbacks = 0
        self._thread = threading.Thread(target=self._run, name="coord-coordinators", daemon=True)
        # Not an executor: the interpreter's exit waits for the threads of one, whatever hangs in them.
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._background = [
            threading.Thread(target=self._run_background, name=f"coord-background_{number}", daemon=True)
            for number in range(_BACKGROUND_THREADS)
        ]

    def start(self) -> None:
        for thread in (self._thread, *self._background):
            thread.start()

    def is_current(self) -> bool:
        """Whether the caller is a callback."""
        return threading.current_thread() is self._thread

    def submit(self, operator: str, callback: str, call: Callable[[], None]) -> None:
        """Run ``call`` after everything that was submitted before."""
        self._calls.put((operator, callback, call))

    def submit_background(self, work: Callable[[], None]) -> None:
        """Run ``work``, which does not raise, on one of a few other threads; after :meth:`close` not any more."""
        self._work.put(work)

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until everything submitted so far has run. False: it has not within the time."""
        done = threading.Event()
        self.submit("", "drain", done.set)
        return done.wait(timeout_seconds)

    def close(self, timeout_seconds: float) -> None:
        """Run the callbacks that wait, then end the threads; whatever hangs is left behind."""
        self._calls.put(None)
        self._thread.join(timeout_seconds)
        self._is_closed = True
        for _ in self._background:
            self._work.put(None)

    def slow(self) -> SlowCallback | None:
        """A callback that runs too long now, each of them once; to be asked now and then from another thread."""
        current = self._current
        if current is None or self._reported == current[2]:
            return None
        operator, callback, since = current
        seconds = time.monotonic() - since
        if seconds < self._slow_seconds:
            return None
        self._reported = since
        self.slow_callbacks += 1
        return SlowCallback(operator, callback, seconds)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            operator, callback, function = call
            self._current = (operator, callback, time.monotonic())
            function()
            self._current = None

    def _run_background(self) -> None:
        while (work := self._work.get()) is not None and not self._is_closed:
            work()


class BoundCoordinator:
    """One operator's coordinator: turns the core's notices into callbacks, and the coordinator's acts into posts."""

    def __init__(
        self,
        uid: OperatorUid,
        coordinator: OperatorCoordinator,
        parallelism: int,
        down: EventTypes,
        up: EventTypes,
        thread: CoordinatorThread,
        post: Post,
    ) -> None:
        self.uid = uid
        self.coordinator = coordinator
        self.parallelism = parallelism
        self.down = down
        self._up = up
        self.thread = thread
        self.post = post
        self._is_open = False  # a run of the query exists that can take what is sent
        self._has_started = False  # both are written on the coordinator thread only
        self._must_close = False
        self._context = _Context(self, incarnation=1)
        coordinator.context = self._context

    @property
    def observes_attempts(self) -> bool:
        """Whether the coordinator overrides a callback about attempts; each costs one call per hello."""
        names = ("execution_attempt_ready", "execution_attempt_failed", "subtask_reset")
        return any(getattr(type(self.coordinator), name) is not getattr(OperatorCoordinator, name) for name in names)

    # Called on the loop, run on the coordinator thread.

    def start(self) -> None:
        """The query starts, or starts again: a start that failed, or that a reset has overtaken, is made up for."""

        def start() -> None:
            if not self._has_started:
                self._must_close = True
                self.coordinator.start()
                self._has_started = True

        self._is_open = True
        self._submit("start", start)

    def check_open(self) -> None:
        """Nothing may be sent before the query's first run exists: it would be lost without a word.

        Raises:
            CoordinatorNotStarted: it does not exist yet.
        """
        if not self._is_open:
            raise CoordinatorNotStarted(self.uid)

    def reset(self, incarnation: int, barrier: BarrierId, state: bytes | None) -> None:
        self._is_open = True
        self._context.close()
        context = self._context = _Context(self, incarnation)

        def reset() -> None:
            self.coordinator.context = context
            self.coordinator.reset_to_checkpoint(barrier, state)

        self._submit("reset_to_checkpoint", reset)

    def ask(self, barrier: BarrierId) -> None:
        result = _Result(self._context, barrier)
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
        gateway = _Gateway(self._context, subtask)
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

    def _submit(self, callback: str, call: Callable[[], object]) -> None:
        context = self._context
        self.thread.submit(self.uid, callback, lambda: context.run(callback, call))


@dataclass(frozen=True, slots=True)
class _Run:
    """Events of one type that a coordinator sends one after the other, by subtask; one post for all of them.

    It is open until the loop comes to it or anything else is posted. A post and three objects for every event would
    cost more than the event itself, and most of that would be the garbage collector's work.
    """

    type_index: int
    payloads: defaultdict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))


class _Context:
    """A coordinator's context for one incarnation; after a reset it does nothing."""

    def __init__(self, bound: BoundCoordinator, incarnation: int) -> None:
        self._bound = bound
        self._incarnation = incarnation
        self._closed = False
        self._failed = False
        self._lock = threading.Lock()
        self._run: _Run | None = None  # the one that is open

    @property
    def operator(self) -> str:
        return self._bound.uid

    @property
    def parallelism(self) -> int:
        return self._bound.parallelism

    def send(self, subtask: int, event: BaseModel) -> None:
        if not 0 <= subtask < self._bound.parallelism:
            raise NoSuchSubtask(self._bound.uid, subtask, self._bound.parallelism)
        self._bound.check_open()
        type_index, _, payload = self._bound.down.encode(event)
        if self._closed:
            return
        with self._lock:
            run = self._run
            if run is None or run.type_index != type_index:
                run = self._run = _Run(type_index)
                self._bound.post(partial(self._deliver, run))
            run.payloads[subtask].append(payload)

    def broadcast(self, event: BaseModel) -> None:
        self._bound.check_open()
        batch = self._bound.down.encode(event)
        if self._closed:
            return
        uid, incarnation, parallelism = self._bound.uid, self._incarnation, self._bound.parallelism

        def send(core: JobCore, now: float) -> None:
            for subtask in range(parallelism):
                core.send(uid, incarnation, SubtaskIndex(subtask), batch, now)

        self._post(send)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self._bound.thread.submit(self._bound.uid, "call_soon", lambda: self.run("call_soon", lambda: function(*args)))

    def run_in_background(self, function: Callable[[], Any], then: Callable[[Any], object] | None = None) -> None:
        def work() -> None:
            try:
                result = function()
            except BaseException as error:
                self._fail("run_in_background", error)
                return
            if then is not None:
                self.call_soon(then, result)

        if not self._closed:
            self._bound.thread.submit_background(work)

    def fail_job(self, error: BaseException) -> None:
        self._fail("fail_job", error)

    def run(self, callback: str, call: Callable[[], object]) -> None:
        """Run a callback, unless this incarnation is over or has failed already."""
        if self._closed or self._failed:
            return
        try:
            call()
        except BaseException as error:
            self._fail(callback, error)

    def complete(self, barrier: BarrierId, data: bytes) -> None:
        uid, incarnation = self._bound.uid, self._incarnation
        self._post(lambda core, now: core.snapshot_completed(uid, incarnation, barrier, data, now))

    def fail_snapshot(self, barrier: BarrierId, error: BaseException) -> None:
        uid, incarnation = self._bound.uid, self._incarnation
        failure = self._failure("checkpoint_coordinator", error)
        self._post(lambda core, now: core.snapshot_failed(uid, incarnation, barrier, failure, now))

    def close(self) -> None:
        self._closed = True

    def _post(self, call: Callable[[JobCore, float], None]) -> None:
        # Whatever is sent from here on comes after the call, so the run ends (C2).
        with self._lock:
            self._run = None
            self._bound.post(call)

    def _deliver(self, run: _Run, core: JobCore, now: float) -> None:
        with self._lock:
            if self._run is run:
                self._run = None
        uid, incarnation = self._bound.uid, self._incarnation
        for subtask, payloads in run.payloads.items():
            batch = EventBatch(run.type_index, len(payloads), b",".join(payloads))
            core.send(uid, incarnation, SubtaskIndex(subtask), batch, now)

    def _fail(self, callback: str, error: BaseException) -> None:
        if self._closed or self._failed:
            return
        self._failed = True
        uid, incarnation = self._bound.uid, self._incarnation
        failure = self._failure(callback, error)
        self._post(lambda core, now: core.coordinator_failed(uid, incarnation, failure))

    def _failure(self, callback: str, error: BaseException) -> CoordinatorFailed:
        # Also logged, because there may be no run left that could fail: the last epoch's events come after its end.
        _log.error("the coordinator of operator %r failed in %s", self._bound.uid, callback, exc_info=error)
        trace = "".join(traceback.format_exception(error))
        failure = CoordinatorFailed(self._bound.uid, callback, trace)
        failure.__cause__ = error
        return failure


class _Result:
    """The answer to one ``checkpoint_coordinator`` call; the first one counts."""

    def __init__(self, context: _Context, barrier: BarrierId) -> None:
        self._context = context
        self._barrier = barrier

    def complete(self, data: bytes) -> None:
        self._context.complete(self._barrier, bytes(data))

    def fail(self, error: BaseException) -> None:
        self._context.fail_snapshot(self._barrier, error)


class _Gateway:
    def __init__(self, context: _Context, subtask: SubtaskIndex) -> None:
        self._context = context
        self.subtask: int = subtask

    def send(self, event: BaseModel) -> None:
        self._context.send(self.subtask, event)
