"""The checkpoints and savepoints of a running job, from the request to a directory that can be restored.

The scheduler decides when a checkpoint starts (``protocol/scheduler/scheduler.py``), the core cuts the channels
(``protocol/cut.py``), the run decides on the next step (``protocol/scheduler/checkpoint_run.py``), and
:mod:`.checkpoint_work` executes the steps. The service connects them:

1. a checkpoint starts: its id is claimed on the storage, Spark's newest commits are looked up;
2. the core cuts the operators and announces each query once it is captured; a query that has ended or has no operators
   is captured at its last commit;
3. the files that Spark needs from that commit are pinned, query by query, while the query keeps running;
4. the generation is verified and ``_metadata`` is written: now the checkpoint exists, and its coordinators are
   notified.

A failure before the last step ends the checkpoint, opens its gateways and leaves no files; the job keeps running. If
Spark removes a file before it is pinned, the checkpoint is cut again at a newer epoch, a few times. An unreadable
storage does not fail a checkpoint that waits for a commit: polling continues, less often, until the checkpoint times
out.

Threads: everything runs on the service's own thread, except what may wait for the storage of a savepoint, which need
not be the job's: see :mod:`.checkpoint_work`; savepoints are removed on separate threads, too. Public methods and
callbacks of the core may be called from any thread.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Final, Protocol, TypeVar, assert_never

from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.durable.job_folder.restore_log import RestoreRecord
from coord_control.errors import CoordControlError, JobClosed, StoreUnavailable
from coord_control.ids import CheckpointId
from coord_control.protocol.failures import FailureReason, reason_of
from coord_control.protocol.job_facts import JobListener
from coord_control.protocol.messages import CheckpointFailed, QueryCaptured
from coord_control.protocol.outage import Outage
from coord_control.protocol.query_state import QueryState
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.rest import Resting
from coord_control.protocol.scheduler.scheduler import (
    AbortCheckpoint,
    CheckpointScheduler,
    FailJob,
    Finished,
    StartCheckpoint,
    State,
)
from coord_control.protocol.scheduler.statistics_history import Overview, Restored, StatisticsHistory
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest, Ticket, TicketId
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.spark.checkpoints.checkpoint_contents import JobDescription
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle
from coord_control.spark.checkpoints.checkpoint_work import CheckpointWork
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.query import ManagedQuery

__all__ = ["CheckpointOwner", "CheckpointService"]

_log = logging.getLogger("coord_control.checkpoints")

# Removing a large savepoint from a slow storage takes long.
_DISPOSE_SECONDS: Final = 600.0
# For an answer that reads the storage once.
_ANSWER_SECONDS: Final = 10.0
# How soon a waiting caller notices that the service has ended.
_ALIVE_SECONDS: Final = 0.2
# Longest pause between two reads of a failing storage; short compared with a checkpoint's timeout.
_LONGEST_LOOK_SECONDS: Final = 2.0

Result = TypeVar("Result")


class CheckpointOwner(Protocol):
    """The job, for its checkpoints. Called on the service's thread."""

    def started_queries(self) -> Sequence[ManagedQuery]:
        """Return the job's queries at the moment."""

    def newest_restore(self) -> RestoreRecord | None:
        """Return the newest restore of the job.

        Raises:
            StoreError: it cannot be read.
        """

    def fail_job(self, error: CoordControlError) -> None:
        """Fail the job: too many checkpoints in a row have failed."""


class CheckpointService:
    """The checkpoints of one job in one driver.

    Args:
        store: writes and removes checkpoints.
        runtime: gives access to the core.
        options: interval, timeout and retention.
        job: what the metadata of a checkpoint records about the job.
        owner: the job.
        news: told whenever the statistics of a checkpoint change, and when one was removed, whichever driver made it.
        look_seconds: how often to look for a commit that a checkpoint waits for; Spark reports commits later.
    """

    def __init__(
        self,
        store: CheckpointStore,
        runtime: JobRuntime,
        options: CheckpointOptions,
        *,
        job: JobDescription,
        owner: CheckpointOwner,
        news: JobListener,
        look_seconds: float,
    ) -> None:
        self._store = store
        self._catalog = store.catalog
        self._look_seconds = look_seconds
        self._outage = Outage(look_seconds, _LONGEST_LOOK_SECONDS)  # of the storage, where commits are looked for
        self._runtime = runtime
        self._options = options
        self._job = job
        self._owner = owner
        self._news = news
        period = options.period_seconds
        # Jobs that start together must not checkpoint together.
        first_delay_seconds = period and random.uniform(options.min_pause_seconds, period)
        self._scheduler = CheckpointScheduler(options, first_delay_seconds=first_delay_seconds)
        self._resting = Resting()
        self._history = StatisticsHistory(options.history_size)
        self._works: dict[CheckpointId, CheckpointWork] = {}
        self._handles: dict[TicketId, list[CheckpointHandle]] = {}
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_wanted = False
        self._is_retaining_elsewhere = False
        self._closing = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="coord-checkpoints", daemon=True)

    # From any thread.

    def start(self) -> None:
        """Start the service's thread, which first reads the checkpoints of earlier drivers."""
        self._thread.start()

    def submit(
        self, request: CheckpointRequest, job_error: Callable[[], CoordControlError | None] = lambda: None
    ) -> CheckpointHandle:
        """Request a checkpoint; the handle reports refusals.

        Args:
            job_error: see :class:`CheckpointHandle`.
        """
        handle = CheckpointHandle(request, self._abort_request, job_error)
        if self._is_closed:
            handle.finish(CheckpointOutcome(FailureReason.JOB_ENDING))
        else:
            self.post(lambda: self._try_submit(request, handle))
        return handle

    @property
    def is_wanted(self) -> bool:
        """Whether checkpoints may start: all queries of the job have been started."""
        return self._is_wanted

    def begin(self) -> None:
        """Allow checkpoints to start, because all queries of the job have been started. Idempotent."""
        self._is_wanted = True
        self.queries_changed()

    def queries_changed(self) -> None:
        """Handle that a query was started, has failed, is running again or has ended."""
        self.post(self._follow_queries)

    def captured(self, captured: QueryCaptured) -> None:
        """Handle that the core has cut all operators of a query."""
        self.post(lambda: self._with(captured.checkpoint, lambda work: work.captured(captured)))

    def core_failed(self, failed: CheckpointFailed) -> None:
        """Handle that the core has aborted a checkpoint."""
        self.post(lambda: self._with(failed.checkpoint, lambda work: work.abandoned(failed)))

    def overview(self) -> Overview:
        """Return statistics of the job's checkpoints.

        Raises:
            JobClosed: the job has ended.
            StoreUnavailable: the storage hangs, which blocks the service.
        """
        return self._answered(self._overview, _ANSWER_SECONDS)

    def abort(self, checkpoint: CheckpointId) -> bool:
        """Abort a checkpoint; return False if none of that number is in progress.

        Raises:
            JobClosed: the job has ended.
            StoreUnavailable: the storage hangs; the checkpoint may still be aborted later.
        """
        return self._answered(lambda: self._abort_running(checkpoint), _ANSWER_SECONDS)

    def dispose(self, checkpoint: CheckpointId) -> None:
        """Remove a checkpoint or savepoint of the job, and wait until it is removed.

        Raises:
            CheckpointNotFound, CheckpointInUse: it cannot be removed.
            Fenced, StoreUnavailable: some files may remain.
            JobClosed: the job has ended.
        """
        self._answered(lambda: self._dispose(checkpoint), _DISPOSE_SECONDS, _in_thread)

    def close(self, timeout_seconds: float) -> None:
        """Refuse waiting requests, abort running checkpoints, finish all handles and end the thread."""
        self.post(lambda: self._scheduler.shutdown(time.monotonic()))
        self._inbox.put(None)
        self._closing.set()
        self._thread.join(timeout_seconds)
        self._is_closed = True
        for handles in list(self._handles.values()):
            for handle in handles:
                handle.finish(CheckpointOutcome(FailureReason.JOB_ENDING))

    def post(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the service's thread, after everything posted before."""
        self._inbox.put(call)

    def _answered(
        self,
        call: Callable[[], Result],
        timeout_seconds: float,
        post: Callable[[Callable[[], None]], None] | None = None,
    ) -> Result:
        """Call on the service's thread, or where ``post`` does, and wait for the result."""
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)

        (post or self.post)(run)
        deadline = time.monotonic() + timeout_seconds
        while not wait([future], min(_ALIVE_SECONDS, timeout_seconds)).done:
            if not self._thread.is_alive() and not future.done():
                raise JobClosed(self._job.job)
            if time.monotonic() >= deadline:
                late = f"no answer within {timeout_seconds:g} s; the request may still be executed"
                raise StoreUnavailable(self._job.job, "read or write the checkpoints of", late)
        return future.result()

    def _abort_request(self, handle: CheckpointHandle) -> None:
        self.post(lambda: self._abort_handle(handle))

    # On the service's thread.

    def _run(self) -> None:
        self._take_up()
        is_closing = False
        while not (is_closing and self._scheduler.is_idle):
            try:
                call = self._inbox.get(timeout=self._wait_seconds())
            except queue.Empty:
                call = self._look
            if call is None:
                is_closing = True
                continue
            for step in (call, self._tick):  # tick even if the call fails
                try:
                    step()
                except Exception:  # one checkpoint must not fail the others
                    _log.exception("x internal error in the checkpoint service; please report it")

    def _tick(self) -> None:
        self._scheduler.tick(time.monotonic())
        self._apply()

    def _wait_seconds(self) -> float | None:
        now, waits = time.monotonic(), []
        if any(work.waits for work in self._works.values()):
            waits.append(max(self._look_seconds, self._outage.seconds_until_due(now)))
        if (wakeup := self._scheduler.next_wakeup()) is not None:
            waits.append(max(0.0, wakeup - now))
        return min(waits, default=None)

    def _look(self) -> None:
        if self._outage.seconds_until_due(time.monotonic()) > 0.0:
            return  # woken for the scheduler only
        errors = [error for work in list(self._works.values()) if (error := _error_of(work.look)) is not None]
        if errors:
            self._storage_failed(errors[0])
        elif self._outage.worked():
            _log.info("= checkpoints: the storage can be read again")

    def _storage_failed(self, error: Exception) -> None:
        if self._outage.failed(time.monotonic()):
            bug = None if isinstance(error, CoordControlError) else error
            _log.warning(
                "x checkpoints wait for the storage: %s; they fail when their timeout expires", error, exc_info=bug
            )

    def _take_up(self) -> None:
        # Before any request: those that an earlier driver executed must be known, and their ids must not be used again.
        while not self._closing.is_set():
            try:
                known, newest = list(self._store.completed_requests()), self._store.newest_id()
            except Exception as error:
                self._storage_failed(error)
                self._closing.wait(self._outage.seconds_until_due(time.monotonic()))
                continue
            self._outage.worked()
            for request, checkpoint, path in known:
                self._scheduler.remember(request, checkpoint, time.monotonic(), path)
            self._scheduler.skip(newest)
            return

    def _follow_queries(self) -> None:
        states = [query.state for query in self._owner.started_queries()]
        # A restarting query will run again or end permanently. All others can be cut now: running and paused ones at
        # their operators, ended ones at their durable state.
        can_be_cut = bool(states) and QueryState.RESTARTING not in states
        state, now = self._scheduler.state, time.monotonic()
        if can_be_cut and self._is_wanted and state in (State.STARTING, State.SUSPENDED):
            self._scheduler.resume(now)
        elif not can_be_cut and state is State.ACTIVE:
            self._scheduler.suspend(now)

    def _try_submit(self, request: CheckpointRequest, handle: CheckpointHandle) -> None:
        try:
            self._submit(request, handle)
        except Exception as error:
            handle.finish(CheckpointOutcome(reason_of(error), str(error)))

    def _submit(self, request: CheckpointRequest, handle: CheckpointHandle) -> None:
        if self._is_label_taken(request):
            handle.finish(CheckpointOutcome(FailureReason.LABEL_TAKEN, f"label {request.label!r}"))
            return
        ticket = self._scheduler.submit(request, time.monotonic())
        handle.ticket = ticket.id
        if (outcome := ticket.outcome) is None:
            self._handles.setdefault(ticket.id, []).append(handle)
        elif outcome.reason is None:  # its statistics may be in a savepoint elsewhere
            _in_thread(lambda: handle.finish(outcome, ticket.checkpoint, self._statistics_of(ticket)))
        else:
            handle.finish(outcome, ticket.checkpoint)

    def _is_label_taken(self, request: CheckpointRequest) -> bool:
        if request.label is None or (request.key is not None and self._scheduler.by_key(request.key) is not None):
            return False  # a repeated request returns the checkpoint of the first
        pending = (*self._scheduler.queued, *self._scheduler.running)
        return request.label in {ticket.request.label for ticket in pending} | self._catalog.labels()

    def _overview(self) -> Overview:
        if (
            newest := self._owner.newest_restore()
        ) is not None and newest.path:  # no path: the job's only restore was undone
            at = newest.committed_at.timestamp()
            self._history.restored(Restored(newest.checkpoint, newest.path, at, newest.is_fork), newest.number)
        return self._history.overview()

    def _abort_running(self, checkpoint: CheckpointId) -> bool:
        ticket = next((ticket for ticket in self._scheduler.running if ticket.checkpoint == checkpoint), None)
        if ticket is not None:
            self._scheduler.abort(ticket.id, time.monotonic())
        return ticket is not None

    def _dispose(self, checkpoint: CheckpointId) -> None:
        self._store.dispose(checkpoint)
        self.post(lambda: self._discarded(checkpoint))

    def _abort_handle(self, handle: CheckpointHandle) -> None:
        if handle.ticket is not None:
            self._scheduler.abort(handle.ticket, time.monotonic())

    def _apply(self) -> None:
        while self._scheduler.has_output:
            for effect in self._scheduler.take():
                match effect:
                    case StartCheckpoint():
                        self._begin(effect)
                    case AbortCheckpoint():
                        self._abort(effect)
                    case Finished():
                        self._finished(effect.ticket)
                    case FailJob():
                        self._owner.fail_job(effect.error)
                    case _:
                        assert_never(effect)

    def _begin(self, start: StartCheckpoint) -> None:
        work = CheckpointWork(
            start,
            self._store,
            self._runtime,
            self._owner.started_queries(),
            self._job,
            self,
        )
        self._works[work.checkpoint] = work
        self.changed(work.statistics())
        for handle in self._handles.get(start.ticket.id, ()):
            handle.started(work.checkpoint, work.progress)
        work.begin()

    def ended(self, work: CheckpointWork, outcome: CheckpointOutcome) -> None:
        """Take up how a checkpoint has ended."""
        del self._works[work.checkpoint]
        now, rest_seconds = time.monotonic(), 0.0
        try:
            statistics = work.statistics(outcome)
            self.changed(statistics)
            if outcome.reason is None:
                rest_seconds = self._resting.after(statistics, now)
        except Exception:  # those who requested the checkpoint wait for its end, not for its statistics
            bug = "x the statistics of checkpoint %d met an error of the product; please report it"
            _log.exception(bug, work.checkpoint)
        if outcome.reason is None:
            _log.info("= %s %d is complete: %s", work.request.kind.value, work.checkpoint, outcome.path)
            self._scheduler.completed(work.checkpoint, now, outcome.path, rest_seconds=rest_seconds)
            self._retain()
        else:
            _log.warning("x %s %d failed: %s", work.request.kind.value, work.checkpoint, outcome.message)
            self._scheduler.failed(work.checkpoint, outcome.reason, now, outcome.detail)

    def _retain(self) -> None:
        try:
            for checkpoint in self._store.retain(self._options.retained):
                self._discarded(checkpoint)
        except CoordControlError as error:  # retried after the next checkpoint
            _log.warning("= old checkpoints could not be removed: %s", error)
        if self._store.has_rest_elsewhere and not self._is_retaining_elsewhere:
            self._is_retaining_elsewhere = True
            _in_thread(self._retain_elsewhere)

    def _retain_elsewhere(self) -> None:
        try:
            self._store.retain_elsewhere()
        except CoordControlError as error:  # retried after the next checkpoint
            _log.warning("= what is left of savepoints that failed could not be removed: %s", error)
        finally:
            self._is_retaining_elsewhere = False

    def changed(self, statistics: CheckpointStatistics) -> None:
        """Take up what is known of a checkpoint now."""
        self._history.update(statistics)
        self._news.on_checkpoint(statistics)

    def _discarded(self, checkpoint: CheckpointId) -> None:
        self._scheduler.forget(checkpoint)
        self._history.discarded(checkpoint)
        self._news.on_checkpoint_discarded(checkpoint)

    def _finished(self, ticket: Ticket) -> None:
        assert ticket.outcome is not None, "it has finished"
        statistics = self._statistics_of(ticket)
        for handle in self._handles.pop(ticket.id, ()):
            handle.finish(ticket.outcome, ticket.checkpoint, statistics)

    def _statistics_of(self, ticket: Ticket) -> CheckpointStatistics | None:
        if ticket.checkpoint is None or not ticket.is_completed:
            return None
        return self._history.get(ticket.checkpoint) or self._stored_statistics(ticket.checkpoint)

    def _stored_statistics(self, checkpoint: CheckpointId) -> CheckpointStatistics | None:
        # An earlier driver took it for a request with the same key.
        try:
            entry = self._catalog.resolve(str(checkpoint))
            return stored_statistics(self._catalog.read(entry), entry.path)
        except Exception as error:  # it is complete nevertheless
            _log.warning("= the statistics of checkpoint %d cannot be read: %s", checkpoint, error)
            return None

    def _abort(self, abort: AbortCheckpoint) -> None:
        self._with(abort.checkpoint, lambda work: work.fail(abort.reason, abort.detail))

    def _with(self, checkpoint: CheckpointId, call: Callable[[CheckpointWork], None]) -> None:
        if (work := self._works.get(checkpoint)) is not None:
            try:
                call(work)
            except Exception as error:
                work.fail(reason_of(error), str(error))


def _in_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="coord-removal", daemon=True).start()


def _error_of(call: Callable[[], None]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
