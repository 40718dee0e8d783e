"""The driver's side of the protocol at work: one inbox into the core, its batches executed in order.

Threads:

* The endpoint's loop owns the core. Messages of subtasks arrive on it; everything else (what coordinators send, what
  the job wants) is posted to one first-in-first-out inbox that the same loop drains (rule C2).
* A batch with records goes through the writer thread and comes back to be answered. One without goes directly, unless
  others are being written (the order of batches never changes) or the last check of the generation is too old to answer
  on.
* Notices become callbacks on the coordinator thread.

Where a write is a request to another machine, the acks of subtasks that run at once become one: the first waits a
moment for the others. An epoch ends with its last ack, so that costs it nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, assert_never

from coord_control.errors import CoordControlError, EndpointClosed, Fenced, InvalidTransition
from coord_control.ids import OperatorUid, QueryName
from coord_control.protocol import messages
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import Acknowledge, AttemptEnded, Batch, Hello, Notice
from coord_control.spark.loop.bound_coordinator import BoundCoordinator
from coord_control.spark.loop.group_writer import EpochLog, GroupWriter, Work
from coord_control.spark.wire.endpoint import Endpoint

__all__ = ["JobRuntime", "RuntimeOwner"]

_log = logging.getLogger("coord_control.runtime")

Result = TypeVar("Result")
_Args = TypeVarTuple("_Args")

_TICK_SECONDS: Final = 0.5
# What a storage may take for a write before it counts as one that hangs.
_CALL_SECONDS: Final = 60.0
# The loop's finest wait: some hundred events of a coordinator that sends as fast as it can.
_BURST_SECONDS: Final = 0.001


class RuntimeOwner(EpochLog, Protocol):
    """The job, for its runtime. The loop calls it, and it must not block there; the writer calls EpochLog."""

    def may_answer(self) -> bool:
        """Return whether ``verify`` has succeeded so recently that answers may rest on it."""

    def query_failed(self, query: QueryName, error: CoordControlError) -> None:
        """Restart or end a query."""

    def fenced(self, error: Fenced) -> None:
        """End this driver: a newer one owns the job."""

    def settled(self, epoch: messages.EpochSettled) -> None:
        """An epoch has settled."""

    def captured(self, captured: messages.QueryCaptured) -> None:
        """A query has been cut for a checkpoint."""

    def checkpoint_failed(self, failed: messages.CheckpointFailed) -> None:
        """The core has aborted a checkpoint."""

    def events_wait(self, operator: OperatorUid) -> None:
        """An epoch is to be planned for events that wait."""


class JobRuntime:
    """Connects the core with the endpoint (to be started before this), the writer and the coordinators.

    Args:
        core: the protocol core; owned by the endpoint's loop from :meth:`start` on.
        coordinators: by operator uid; operators may be added before their query starts.
        owner: the job.
        tls: whether subtasks connect with TLS.
        gather_seconds: how long an ack waits for the acks of other subtasks that run; 0 for none.
    """

    def __init__(
        self,
        core: JobCore,
        coordinators: Mapping[OperatorUid, BoundCoordinator],
        owner: RuntimeOwner,
        *,
        tls: bool,
        gather_seconds: float = 0.0,
    ) -> None:
        self._core = core
        self._gather_seconds = gather_seconds
        self.generation = core.generation
        self.endpoint = self._endpoint = Endpoint(self, core.generation, tls=tls)
        self._coordinators = coordinators
        self._owner = owner
        self._inbox: deque[Callable[[JobCore, float], object]] = deque()
        self._wake = threading.Lock()  # held: the loop will drain the inbox
        self._closed: Future[Any] = Future()  # raises the reason
        self._flush_scheduled = False
        self._under_way = 0
        self._era = 0
        self.writer = GroupWriter(owner, self._on_written, self._on_failed)

    def start(self) -> None:
        self.writer.start()
        self._endpoint.call_soon_threadsafe(self._tick)

    def close(self, reason: CoordControlError) -> None:
        """Close the endpoint; callers of :meth:`call`, waiting or later, get ``reason``. May be repeated."""
        self._endpoint.close()
        if not self._closed.done():
            self._closed.set_exception(reason)

    # From any thread.

    def post(self, call: Callable[[JobCore, float], object]) -> None:
        """Run ``call(core, now)`` on the loop, after everything posted before. Never blocks; nothing after the end."""
        if self._closed.done():
            return
        self._inbox.append(call)
        if self._wake.acquire(blocking=False):
            self._to_loop(self._drain)

    def call(self, call: Callable[[JobCore, float], Result], *, is_answer: bool = False) -> Result:
        """Run ``call(core, now)`` on the loop and wait until all that follows from it has been executed.

        That is: its records are durable, its answers are sent, its callbacks are submitted.

        Args:
            is_answer: what it returns decides what an epoch does, so it rests on a check of the generation.

        Raises:
            TimeoutError: the storage hangs; what was called may still take place.
            StoreError, Fenced: its records could not be made durable.
            JobClosed: the job has ended, before or meanwhile.
        """
        future = self.begin(call, is_answer=is_answer)
        wait((future, self._closed), _CALL_SECONDS, FIRST_COMPLETED)
        if future.done():
            return future.result()
        if self._closed.done():
            self._closed.result()
        raise TimeoutError(f"the driver was not done within {_CALL_SECONDS:g} s; check that the job's storage answers")

    def begin(self, call: Callable[[JobCore, float], Result], *, is_answer: bool = False) -> Future[Result]:
        """Do the same as :meth:`call`, without waiting; after the end of the job the future is never done."""
        future: Future[Result] = Future()

        def run(core: JobCore, now: float) -> None:
            try:
                result = call(core, now)
            except BaseException as error:
                future.set_exception(error)
                return
            self._submit(
                core.take(),
                lambda lost: future.set_exception(lost) if lost else future.set_result(result),
                is_answer=is_answer,
            )

        self.post(run)
        return future

    def read(self, call: Callable[[JobCore, float], Result], timeout_seconds: float) -> Result:
        """Run ``call(core, now)``, which changes nothing, on the loop, and wait for what it returns.

        Unlike :meth:`call` it does not wait for the storage: what is read may not be durable yet.

        Raises:
            TimeoutError: the loop has not come to it within the time.
            JobClosed: the job has ended, before or meanwhile.
        """
        future: Future[Result] = Future()

        def run(core: JobCore, now: float) -> None:
            try:
                future.set_result(call(core, now))
            except BaseException as error:
                future.set_exception(error)

        self.post(run)
        wait((future, self._closed), timeout_seconds, FIRST_COMPLETED)
        if future.done():
            return future.result()
        if self._closed.done():
            self._closed.result()
        raise TimeoutError(f"the driver's loop has not answered within {timeout_seconds:g} s")

    def _to_loop(self, function: Callable[[*_Args], None], *args: *_Args) -> None:
        with contextlib.suppress(EndpointClosed):  # then no recipient is left
            self._endpoint.call_soon_threadsafe(function, *args)

    # On the loop: the endpoint's handler.

    def received(self, message: Hello | Acknowledge | AttemptEnded, token: object) -> None:
        now = time.monotonic()
        match message:
            case Hello():
                self._core.hello(message, token, now)
            case Acknowledge():
                self._core.acknowledge(message, token, now)
                if self._gather_seconds and self._core.expects_acks:
                    # Whatever is flushed sooner takes it along; the flush that finds nothing does nothing.
                    asyncio.get_running_loop().call_later(self._gather_seconds, self._flush)
                    return
            case AttemptEnded():
                self._core.attempt_ended(message)
            case _:
                assert_never(message)
        self._flush_soon()

    def disconnected(self, token: object) -> None:
        self._core.disconnected(token)
        self._flush_soon()

    def crashed(self, error: BaseException) -> None:
        # A bug in the core or here: continuing could expose something inconsistent, so every query ends.
        _log.error("the protocol core failed", exc_info=error)
        self._lose_everything([], _internal(error))

    # On the loop: parts.

    def _drain(self) -> None:
        if len(self._inbox) > 1:
            # A burst: until it is over, look again by ourselves, for to be woken costs more than a call does.
            asyncio.get_running_loop().call_later(_BURST_SECONDS, self._drain)
        else:
            # Released first: what is posted from here on wakes the loop again, so nothing can be left behind.
            self._wake.release()
        now = time.monotonic()
        inbox, core = self._inbox, self._core
        for _ in range(len(inbox)):
            try:
                inbox.popleft()(core, now)
            except Exception as error:
                self.crashed(error)
        self._flush()

    def _flush_soon(self) -> None:
        # Once per turn of the loop: what arrives together is answered together.
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._core.has_output:
            self._submit(self._core.take(), None)

    def _submit(
        self, batch: Batch, executed: Callable[[CoordControlError | None], None] | None, *, is_answer: bool = False
    ) -> None:
        work = Work(self._era, batch, executed, is_answer)
        # An answer without a write rests on the last check of the generation; an old one is done again, by the writer.
        answers = is_answer or bool(batch.answers)
        if batch.persist or self._under_way or (answers and not self._owner.may_answer()):
            self._under_way += 1
            self.writer.submit(work)
        else:
            self._execute([work])

    def _execute(self, group: Sequence[Work]) -> None:
        for position, work in enumerate(group):
            try:
                self._show(work)
            except Exception as error:
                # What is durable may be shown or not, as after a crash; but waiting requests must get an answer.
                self._lose(group[position:], _internal(error))
                self.crashed(error)
                return

    def _show(self, work: Work) -> None:
        for answered in work.batch.answers:
            self._endpoint.answer(answered.token, answered.answer)
        for notice in work.batch.notices:
            self._notify(notice)
        if work.executed is not None:
            work.executed(None)

    def _notify(self, notice: Notice) -> None:
        match notice:
            case messages.FailQuery():
                self._owner.query_failed(notice.query, notice.error)
            case messages.EpochSettled():
                self._owner.settled(notice)
            case messages.QueryCaptured():
                self._owner.captured(notice)
            case messages.CheckpointFailed():
                self._owner.checkpoint_failed(notice)
            case messages.AskSnapshot():
                self._coordinators[notice.operator].ask(notice.barrier)
            case messages.DeliverEvents():
                self._coordinators[notice.operator].deliver(notice.subtask, notice.attempt, notice.events)
            case messages.CheckpointComplete():
                self._coordinators[notice.operator].complete(notice.barrier)
            case messages.CheckpointAborted():
                self._coordinators[notice.operator].aborted(notice.barrier)
            case messages.ResetCoordinator():
                self._coordinators[notice.operator].reset(
                    notice.incarnation, notice.barrier, notice.state, notice.applied, notice.refused
                )
            case messages.HandleRequests():
                self._coordinators[notice.operator].handle_requests()
            case messages.EventsWait():
                self._owner.events_wait(notice.operator)
            case messages.EventsDurable():
                self._coordinators[notice.operator].durable(notice.number)
            case messages.AttemptReady():
                self._coordinators[notice.operator].attempt_ready(notice.subtask, notice.attempt)
            case messages.AttemptFailed():
                self._coordinators[notice.operator].attempt_failed(notice.subtask, notice.attempt, notice.reason)
            case messages.SubtaskReset():
                self._coordinators[notice.operator].subtask_reset(notice.subtask, notice.barrier)
            case _:
                assert_never(notice)

    def _tick(self) -> None:
        # Before anything that can fail: one error must not end all time limits.
        asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        self._core.tick(time.monotonic())
        self._flush()

    # From the writer thread.

    def _on_written(self, group: list[Work]) -> None:
        self._to_loop(self._written, group)

    def _on_failed(self, group: list[Work], error: CoordControlError) -> None:
        self._to_loop(self._lose_everything, group, error)

    def _written(self, group: list[Work]) -> None:
        self._under_way -= len(group)
        self._execute(group)

    def _lose_everything(self, group: list[Work], error: CoordControlError) -> None:
        # Nothing that rests on the lost records may become visible (I4, I7): waiting requests are refused, every query
        # ends.
        self._under_way -= len(group)
        self._lose(group, error)
        if not group or any(work.era == self._era for work in group):
            self._era += 1
            if isinstance(error, Fenced):
                self._owner.fenced(error)
            self._core.fail_all(error, time.monotonic())
        self._flush()

    def _lose(self, group: Sequence[Work], error: CoordControlError) -> None:
        for work in group:
            for notice in work.batch.told_anyway():
                self._notify(notice)
            for answered in work.batch.answers:
                with contextlib.suppress(InvalidTransition):  # answered before the error
                    self._endpoint.answer(answered.token, messages.Refused(f"the driver could not continue: {error}"))
            if work.executed is not None:
                work.executed(error)


def _internal(error: BaseException) -> CoordControlError:
    if isinstance(error, CoordControlError):
        return error
    failure = CoordControlError(f"the protocol core failed: {error!r}; please report this with the driver's log")
    failure.__cause__ = error
    return failure
