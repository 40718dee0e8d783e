"""The work on one checkpoint or savepoint: its steps on the storage, in the core, and on threads.

Which step follows from what is decided by :class:`CheckpointRun` (``protocol/scheduler/checkpoint_run.py``); here the
steps are done, and reported back. A step that raises is reported as one that has failed: every checkpoint must
end, because the requests behind it wait for that.

Threads: everything runs on the checkpoint service's thread, except the pinning of one query and the writing of the
metadata. Each of these has a thread that only touches what it was given, and posts its result.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, assert_never

from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore, Written
from coord_control.durable.checkpoints.metadata_file import QuerySnapshot
from coord_control.durable.checkpoints.query_snapshot import offsets_by_source
from coord_control.ids import QueryName
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import CheckpointFailed, QueryCaptured
from coord_control.protocol.scheduler.checkpoint_run import (
    MEASURED_SECONDS,
    Abort,
    CheckpointRun,
    Claim,
    Confirm,
    Cut,
    Discard,
    Effect,
    Ended,
    Pin,
    Report,
    Withdraw,
    Write,
)
from coord_control.protocol.scheduler.scheduler import Start
from coord_control.protocol.scheduler.tickets import Outcome
from coord_control.protocol.statistics import CheckpointStatistics, QueryStatistics
from coord_control.spark.checkpoints.checkpoint_contents import CheckpointContents, JobDescription, Position
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.query import ManagedQuery

__all__ = ["CheckpointWork"]

_log = logging.getLogger("coord_control.checkpoints")

# A tenth of the share of an ordinary thread, when all processors are busy.
_NICENESS: Final = 10

Result = TypeVar("Result")


class CheckpointWork:
    """A checkpoint that has started.

    Args:
        start: of the checkpoint, just now.
        store: where it is written.
        runtime: the way to the core.
        queries: what it contains.
        job: what its metadata says about the job.
        post: runs a call on the service's thread.
        changed: called on the service's thread when more is known of it.
        ended: called once, on the service's thread, with how it ended.
    """

    def __init__(
        self,
        start: Start,
        store: CheckpointStore,
        runtime: JobRuntime,
        queries: Sequence[ManagedQuery],
        job: JobDescription,
        *,
        post: Callable[[Callable[[], None]], None],
        changed: Callable[[CheckpointStatistics], None],
        ended: Callable[[CheckpointWork, Outcome], None],
    ) -> None:
        self.checkpoint = start.checkpoint
        self.request = start.ticket.request
        self._store = store
        self._runtime = runtime
        self._queries = {query.name: query for query in queries}
        self._spark_version = job.spark_version
        self._post = post
        self._changed = changed
        self._ended = ended
        self._run = CheckpointRun()
        self._contents = CheckpointContents(start, job)

    # From any thread.

    def progress(self) -> Progress | None:
        """Return how far its subtasks are, or None if the core does not cut it."""
        return self._runtime.call(lambda core, now: core.checkpoint_progress(self.checkpoint))

    # On the service's thread.

    @property
    def waits(self) -> bool:
        """Whether :meth:`look` has something to look for."""
        return self._run.needs_look

    def statistics(self, outcome: Outcome | None = None) -> CheckpointStatistics:
        """What is known of it.

        Args:
            outcome: how it has ended; None if it has not.
        """
        return self._contents.statistics(outcome)

    def begin(self) -> None:
        """Claim its id, and cut."""
        self._run.begin()
        self._apply()

    def look(self) -> None:
        """See whether Spark has committed the epochs that are waited for, or the core was waited for long enough.

        Raises:
            StoreError: Spark's commits cannot be read; look again later.
        """
        for name in self._run.awaited:
            self._queries[name].look_for_next()
        if self._run.tick(time.monotonic()):
            _log.info(
                "= checkpoint %d: the job has not answered within %.0f s after it failed; statistics are incomplete",
                self.checkpoint,
                MEASURED_SECONDS,
            )
        self._apply()

    def captured(self, captured: QueryCaptured) -> None:
        """The core has captured a query."""
        if self._run.captured(captured.query, captured.barrier):
            self._contents.reached(captured.query, Position(captured.boundary, None, captured.cuts))
        self._apply()

    def abandoned(self, failed: CheckpointFailed) -> None:
        """The core has aborted it, and reports what it had measured of it."""
        if self._run.abandoned(failed.barrier, Outcome(failed.reason, failed.detail), time.monotonic()):
            self._contents.measured(failed.queries)
        self._apply()

    def fail(self, reason: FailureReason, detail: str) -> None:
        """Abort it, unless its metadata is being written."""
        self._run.fail(Outcome(reason, detail), time.monotonic())
        self._apply()

    # What the run orders.

    def _apply(self) -> None:
        while self._run.has_output:
            for effect in self._run.take():
                try:
                    self._carry_out(effect)
                except Exception as error:
                    self._not_carried_out(effect, error)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Claim():
                self._claim()
            case Cut():
                self._cut()
            case Pin():
                self._pin(effect.query)
            case Report():
                self._changed(self.statistics())
            case Withdraw():
                self._runtime.post(lambda core, now: core.abort_checkpoint(self.checkpoint, now))
            case Write():
                metadata = self._contents.metadata()
                self._spawn(lambda: self._store.complete(metadata), self._written, self._not_written)
            case Confirm():
                self._runtime.post(lambda core, now: core.checkpoint_stored(self.checkpoint))
            case Abort():
                self._runtime.post(self._abort)
            case Discard():
                self._store.discard(self.checkpoint)
            case Ended():
                assert self._run.outcome is not None, "it has ended"
                self._ended(self, self._run.outcome)
            case _:
                assert_never(effect)

    def _not_carried_out(self, effect: Effect, error: Exception) -> None:
        match effect:
            case Claim() | Cut():
                self._run.fail_with(error, time.monotonic())
            case Pin():
                self._run.not_pinned(effect.query, error, time.monotonic())
            case Write():
                self._run.not_written(error, time.monotonic())
            case Discard():  # the next driver removes it
                _log.warning("= checkpoint %d: what it has left could not be removed: %s", self.checkpoint, error)
            case _:
                bug = "x checkpoint %d met an error of the product; please report it"
                _log.error(bug, self.checkpoint, exc_info=error)

    def _claim(self) -> None:
        self._store.verify()  # a driver that stood still and was replaced leaves its successor the id
        request = self.request
        self._store.claim(self.checkpoint, request.kind.value, target=request.target, label=request.label)
        self._run.claimed()

    def _cut(self) -> None:
        self._contents.clear()
        queries = self._queries.values()
        for query in queries:
            query.look()
        awaited = [query.name for query in queries if query.has_operators and query.is_active]
        # Also without any: a restore tells coordinators of queries that have ended what they are reset to.
        barrier = self._runtime.call(lambda core, now: core.trigger_checkpoint(self.checkpoint, awaited, now))
        self._contents.barrier = barrier
        at_rest = [query for query in queries if query.name not in awaited]
        for query in at_rest:
            self._contents.reached(query.name, _position(query))
        self._run.cut(barrier, awaited, [query.name for query in at_rest])

    def _abort(self, core: JobCore, now: float) -> None:
        # On the core's loop, which the service does not wait for.
        measured = core.abort_checkpoint(self.checkpoint, now)
        self._post(lambda: self._measured(measured))

    def _measured(self, queries: Sequence[QueryStatistics]) -> None:
        self._contents.measured(queries)
        self._run.measured()
        self._apply()

    # Threads.

    def _pin(self, name: QueryName) -> None:
        began = time.monotonic()
        query, (position, statistics) = self._queries[name], self._contents.position(name)

        def pin() -> tuple[QuerySnapshot, QueryStatistics]:
            lineage = query.lineage
            pinned = self._store.pin(
                self.checkpoint, name, lineage.name, lineage.checkpoint, position.boundary, position.planned
            )
            snapshot = pinned.snapshot(
                query_id=lineage.query_id, spark_version=self._spark_version, earlier=lineage.earlier
            )
            return snapshot, replace(
                statistics,
                pin_seconds=time.monotonic() - began,
                files=len(snapshot.files),
                file_bytes=snapshot.size,
                linked_bytes=pinned.linked_bytes,
                copied_bytes=pinned.copied_bytes,
                offsets=offsets_by_source(snapshot),
            )

        self._spawn(pin, self._pinned, partial(self._not_pinned, name))

    def _pinned(self, result: tuple[QuerySnapshot, QueryStatistics]) -> None:
        snapshot, statistics = result
        if self._run.pinned(statistics.query):
            self._contents.pinned(snapshot, statistics)
        self._apply()

    def _not_pinned(self, name: QueryName, error: Exception) -> None:
        if self._run.not_pinned(name, error, time.monotonic()):
            _log.info("= checkpoint %d: %s; it is cut again", self.checkpoint, error)
        self._apply()

    def _written(self, written: Written) -> None:
        self._contents.metadata_bytes = written.metadata_bytes
        self._run.written(written.path)
        self._apply()

    def _not_written(self, error: Exception) -> None:
        self._run.not_written(error, time.monotonic())
        self._apply()

    def _spawn(
        self, action: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        def run() -> None:
            # What may have to be copied takes long enough.
            if self.request.target is None:
                _let_the_query_go_first()
            try:
                result = action()
            except Exception as error:
                self._post(partial(failed, error))
            else:
                self._post(partial(done, result))

        threading.Thread(target=run, name=f"coord-checkpoint-{self.checkpoint}", daemon=True).start()


def _position(query: ManagedQuery) -> Position:
    """Where a query is cut that the core does not cut: at its last commit."""
    if query.is_active:
        boundary = query.look()
        return Position(boundary, boundary)
    return Position(*query.offline_cuts())


def _let_the_query_go_first() -> None:
    """Lower this thread's priority, or every savepoint would slow down the epoch that runs at the same time."""
    if sys.platform == "linux":  # elsewhere it would be the whole process
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
