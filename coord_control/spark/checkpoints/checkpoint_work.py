"""Executes the steps of one checkpoint or savepoint: on the storage, in the core, and on threads.

:class:`CheckpointRun` decides which step comes next (``protocol/scheduler/checkpoint_run.py``); this module executes
the steps and reports their results. A step that raises is reported as failed: every checkpoint must end, because queued
requests wait for it.

Threads: everything runs on the checkpoint service's thread, except what may wait for the storage of a savepoint, which
need not be the job's: claiming, pinning the files of a query, writing the metadata, and removing. Each of these runs on
a separate thread that only uses its arguments, and posts its result.
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
from typing import Final, Protocol, TypeVar, assert_never

from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore, Written
from coord_control.durable.checkpoints.metadata_file import QuerySnapshot
from coord_control.durable.checkpoints.query_snapshot import offsets_by_source, with_sink
from coord_control.ids import Epoch, QueryName
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.cut import cut_of
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job import JobCore
from coord_control.protocol.live_epochs import frozen_in
from coord_control.protocol.messages import CheckpointFailed, QueryCaptured
from coord_control.protocol.recovery import recover
from coord_control.protocol.scheduler.checkpoint_run import (
    MEASURED_SECONDS,
    REMOVED_SECONDS,
    AbortCut,
    CheckpointRun,
    ClaimNumber,
    Confirm,
    Cut,
    Discard,
    Effect,
    Ended,
    Input,
    Pin,
    Report,
    Withdraw,
    Write,
)
from coord_control.protocol.scheduler.scheduler import StartCheckpoint
from coord_control.protocol.scheduler.tickets import CheckpointOutcome
from coord_control.protocol.statistics import CheckpointStatistics, QueryStatistics
from coord_control.spark.checkpoints.checkpoint_contents import CheckpointContents, JobDescription, Position
from coord_control.spark.checkpoints.sink_position import sink_at
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.query import ManagedQuery

__all__ = ["CheckpointWork", "WorkOwner"]

_log = logging.getLogger("coord_control.checkpoints")

# A tenth of an ordinary thread's share of busy processors.
_NICENESS: Final = 10

Result = TypeVar("Result")


class WorkOwner(Protocol):
    """The checkpoint service, for a checkpoint that it has started."""

    def post(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the service's thread. Any thread."""

    def changed(self, statistics: CheckpointStatistics) -> None:
        """Take up new statistics. Called on the service's thread."""

    def ended(self, work: CheckpointWork, outcome: CheckpointOutcome) -> None:
        """Take up the outcome. Called once, on the service's thread."""


class CheckpointWork:
    """A checkpoint that has started.

    Args:
        start: the scheduler's order to start it.
        store: writes the checkpoint.
        runtime: gives access to the core.
        queries: the queries that it contains.
        job: what its metadata records about the job.
        owner: the service.
    """

    def __init__(
        self,
        start: StartCheckpoint,
        store: CheckpointStore,
        runtime: JobRuntime,
        queries: Sequence[ManagedQuery],
        job: JobDescription,
        owner: WorkOwner,
    ) -> None:
        self.checkpoint = start.checkpoint
        self.request = start.ticket.request
        self._store = store
        self._runtime = runtime
        self._queries = {query.name: query for query in queries}
        self._spark_version = job.spark_version
        self._owner = owner
        self._run = CheckpointRun()
        self._contents = CheckpointContents(start, job)

    # From any thread.

    def progress(self) -> Progress | None:
        """Return the progress of its subtasks, or None if the core does not cut it."""
        return self._runtime.call(lambda core, now: core.checkpoint_progress(self.checkpoint))

    # On the service's thread.

    @property
    def waits(self) -> bool:
        """Whether :meth:`look` must be called again."""
        return self._run.needs_look

    def statistics(self, outcome: CheckpointOutcome | None = None) -> CheckpointStatistics:
        """Return its statistics so far.

        Args:
            outcome: None while it is in progress.
        """
        return self._contents.statistics(outcome)

    def begin(self) -> None:
        """Claim its id; what follows comes with the answer."""
        self._run.begin()
        self._apply()

    def look(self) -> None:
        """Check for the awaited commits of Spark, and for what was waited for long enough.

        Raises:
            StoreError: Spark's commits cannot be read; look again later.
        """
        for name in self._run.awaited:
            self._queries[name].look_for_next()
        match self._run.tick(time.monotonic()):
            case Input.MEASURED:
                late = "= checkpoint %d: the job did not answer within %.0f s after it failed; measurements are missing"
                _log.info(late, self.checkpoint, MEASURED_SECONDS)
            case Input.OVERDUE:
                hangs = "= checkpoint %d failed; its storage has not answered for %.0f s, its files are removed later"
                _log.warning(hangs, self.checkpoint, REMOVED_SECONDS)
        self._apply()

    def captured(self, captured: QueryCaptured) -> None:
        """Handle that the core has captured a query."""
        if self._run.captured(captured.query, captured.barrier):
            self._contents.reached(captured.query, Position(captured.boundary, None, captured.cuts))
        self._apply()

    def abandoned(self, failed: CheckpointFailed) -> None:
        """Handle that the core has aborted it, with the core's measurements."""
        if self._run.abandoned(failed.barrier, CheckpointOutcome(failed.reason, failed.detail), time.monotonic()):
            self._contents.measured(failed.queries)
        self._apply()

    def fail(self, reason: FailureReason, detail: str) -> None:
        """Abort it, unless its metadata is being written."""
        self._run.fail(CheckpointOutcome(reason, detail), time.monotonic())
        self._apply()

    # The run's effects.

    def _apply(self) -> None:
        while self._run.has_output:
            for effect in self._run.take():
                try:
                    self._carry_out(effect)
                except Exception as error:
                    self._not_carried_out(effect, error)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ClaimNumber():
                self._claim()
            case Cut():
                self._cut()
            case Pin():
                self._pin(effect.query)
            case Report():
                self._owner.changed(self.statistics())
            case Withdraw():
                self._runtime.post(lambda core, now: core.abort_checkpoint(self.checkpoint, now))
            case Write():
                metadata = self._contents.metadata()
                self._spawn(lambda: self._store.complete(metadata), self._written, self._not_written)
            case Confirm():
                self._runtime.post(lambda core, now: core.checkpoint_stored(self.checkpoint))
            case AbortCut():
                self._runtime.post(self._abort)
            case Discard():
                self._spawn(lambda: self._store.discard(self.checkpoint), self._removed, self._not_removed)
            case Ended():
                assert self._run.outcome is not None, "it has ended"
                self._owner.ended(self, self._run.outcome)
            case _:
                assert_never(effect)

    def _not_carried_out(self, effect: Effect, error: Exception) -> None:
        match effect:
            case ClaimNumber():
                self._run.not_claimed(error, time.monotonic())
            case Cut():
                self._run.fail_with(error, time.monotonic())
            case Pin():
                self._run.not_pinned(effect.query, error, time.monotonic())
            case Write():
                self._run.not_written(error, time.monotonic())
            case Discard():
                self._not_removed(error)
            case _:
                bug = "x internal error in checkpoint %d; please report it"
                _log.error(bug, self.checkpoint, exc_info=error)

    def _claim(self) -> None:
        request = self.request

        def claim() -> None:
            self._store.verify()  # a driver that hung and was replaced must not take the id of its successor
            self._store.claim(self.checkpoint, request.kind.value, target=request.target, label=request.label)

        if request.target is not None:
            self._spawn(claim, self._claimed, self._not_claimed)
            return
        claim()  # checkpoints on the job's storage are cut in the order of their ids
        self._run.claimed()

    def _claimed(self, _: None) -> None:
        self._run.claimed()
        self._apply()

    def _not_claimed(self, error: Exception) -> None:
        self._run.not_claimed(error, time.monotonic())
        self._apply()

    def _cut(self) -> None:
        self._contents.clear()
        queries = self._queries.values()
        committed = {query.name: query.look() for query in queries}
        awaited = [query.name for query in queries if query.has_operators and query.is_active]
        # Even if none is awaited: a restore resets the coordinators of ended queries to this barrier.
        barrier = self._runtime.call(lambda core, now: core.trigger_checkpoint(self.checkpoint, awaited, now))
        self._contents.barrier = barrier
        at_rest = [query for query in queries if query.name not in awaited]
        for query in at_rest:
            self._contents.reached(query.name, _position(query, committed[query.name]))
        self._run.cut(barrier, awaited, [query.name for query in at_rest])

    def _abort(self, core: JobCore, now: float) -> None:
        # On the core's loop; the service does not wait for it.
        measured = core.abort_checkpoint(self.checkpoint, now)
        self._owner.post(lambda: self._measured(measured))

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
            snapshot = with_sink(snapshot, *sink_at(self._store, self.checkpoint, query, snapshot.planned))
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

    def _removed(self, _: None) -> None:
        self._run.removed()
        self._apply()

    def _not_removed(self, error: Exception) -> None:  # the next driver removes it
        _log.warning("= checkpoint %d: its files could not be removed: %s", self.checkpoint, error)
        self._removed(None)

    def _spawn(
        self, action: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        def run() -> None:
            # Not for a savepoint elsewhere: its copies take long anyway.
            if self.request.target is None:
                _let_the_query_go_first()
            try:
                result = action()
            except Exception as error:
                self._owner.post(partial(failed, error))
            else:
                self._owner.post(partial(done, result))

        threading.Thread(target=run, name=f"coord-checkpoint-{self.checkpoint}", daemon=True).start()


def _position(query: ManagedQuery, committed: Epoch) -> Position:
    """Return where to cut a query that the core does not cut: at its last commit."""
    if query.is_active:
        return Position(committed, committed)
    facts = query.facts()
    cuts = tuple(cut_of(recover(facts, uid), uid) for uid in query.operators)
    return Position(facts.committed, facts.planned, cuts, frozen_in(facts))


def _let_the_query_go_first() -> None:
    """Lower this thread's priority, so that a savepoint does not slow down the running epoch."""
    if sys.platform == "linux":  # elsewhere it would affect the whole process
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
