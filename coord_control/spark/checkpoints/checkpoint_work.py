"""One checkpoint or savepoint while it is being made: what has been cut, what is pinned, and how it ends.

It ends once: completed when its ``_metadata`` is written, failed otherwise, and then nothing of it is left on the
storage. A failure that comes while the metadata is being written comes too late.

Threads: everything runs on the checkpoint service's thread, but for the pinning of one query and the writing of the
metadata, each on a thread of its own that only touches what it was given and posts its result.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore, Written
from coord_control.durable.checkpoints.metadata import CheckpointMetadata, OperatorSnapshot, QuerySnapshot, Trigger
from coord_control.durable.checkpoints.query_snapshot import offsets_by_source
from coord_control.durable.job_folder.lineage import OperatorRecord
from coord_control.errors import CoordControlError, StateFileMissing
from coord_control.ids import NO_CHECKPOINT, BarrierId, CheckpointId, Epoch, Generation, OperatorUid, QueryName
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.failures import FailureReason, reason_of
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import CheckpointFailed, QueryCaptured
from coord_control.protocol.scheduler.tickets import CheckpointRequest, Outcome
from coord_control.protocol.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    QueryStatistics,
    offsets_within_limit,
    operator_statistics,
    to_json,
)
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.query import ManagedQuery

__all__ = ["CheckpointWork", "JobDescription"]

_log = logging.getLogger("coord_control.checkpoints")

# How often a checkpoint is cut again when Spark has removed its files before they were pinned.
_CUTS: Final = 3
# A tenth of the share of an ordinary thread, when all processors are busy.
_NICENESS: Final = 10
# What the core has measured of a failed checkpoint is a step of its loop away, but that may have ended.
_MEASURED_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class JobDescription:
    """What a checkpoint's metadata says about its job."""

    job: str
    generation: Generation
    spark_version: str
    operator: Callable[[OperatorUid], OperatorRecord]


@dataclass(frozen=True, slots=True)
class _Part:
    """One query of the checkpoint, pinned."""

    snapshot: QuerySnapshot
    cuts: tuple[OperatorCut, ...]


@dataclass(slots=True)
class CheckpointWork:
    """A checkpoint that has started.

    Attributes:
        post: runs a call on the service's thread.
        ended: told once, on the service's thread, how it ended.
        came_further: told, on the service's thread, that there is more to say of it.
    """

    checkpoint: CheckpointId
    request: CheckpointRequest
    requested_at: datetime.datetime
    store: CheckpointStore
    runtime: JobRuntime
    queries: Sequence[ManagedQuery]
    job: JobDescription
    post: Callable[[Callable[[], None]], None]
    ended: Callable[[CheckpointWork, Outcome], None]
    came_further: Callable[[CheckpointWork], None]
    _triggered_at: float = field(default_factory=time.monotonic)
    _triggered: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    _barrier: BarrierId = NO_CHECKPOINT
    _cuts: int = 0
    _missing: dict[QueryName, ManagedQuery] = field(default_factory=dict)
    _boundaries: set[QueryName] = field(default_factory=set)  # queries whose boundary is waited for
    _parts: dict[QueryName, _Part] = field(default_factory=dict)
    _statistics: dict[QueryName, QueryStatistics] = field(default_factory=dict)  # of those that have been captured
    _threads: int = 0
    _is_void: bool = False  # a file was gone before it was pinned: it is cut again when all that is pinned has ended
    _is_claimed: bool = False
    _is_finalising: bool = False
    _is_over: bool = False
    _failure: Outcome | None = None
    _measured_by: float | None = None  # until then what the core has measured is waited for
    _metadata_bytes: int = 0

    @property
    def waits(self) -> bool:
        """Whether it has to look whether it can go on."""
        return bool(self._boundaries) or self._measured_by is not None

    def begin(self) -> None:
        """Claim its place, and cut."""
        try:
            self.store.verify()  # a driver that stood still and was replaced leaves its successor the id
            self.store.claim(
                self.checkpoint, self.request.kind.value, target=self.request.target, label=self.request.label
            )
            self._is_claimed = True
            self._cut()
        except Exception as error:
            self.fail_with(error)

    def look(self) -> None:
        """See whether Spark has committed the epochs that are waited for, or no more is heard of one that failed."""
        for name in list(self._boundaries):
            self._missing[name].look_for_next()
        if self._measured_by is not None and time.monotonic() >= self._measured_by:
            _log.info(
                "= checkpoint %d: %.0f s after it failed the job has not told what it had measured; its statistics do "
                "without",
                self.checkpoint,
                _MEASURED_SECONDS,
            )
            self._measured(())

    def captured(self, captured: QueryCaptured) -> None:
        """The core has cut a query; of a checkpoint that has failed meanwhile it is still told."""
        query = self._missing.get(captured.query)
        if query is None or captured.barrier != self._barrier or self._is_void:
            return
        statistics = self._reached(query, captured.boundary, captured.cuts)
        if self._failure is None:
            self._boundaries.discard(captured.query)
            self._pin(query, captured.boundary, captured.cuts, statistics)

    def given_up(self, failed: CheckpointFailed) -> None:
        """The core has given it up, and says what it had measured of it."""
        if self._fails(failed.reason, failed.detail) or self._measured_by is not None:
            self._measured(failed.queries)

    def fail_with(self, error: BaseException) -> None:
        """Give it up because of an error."""
        self.fail(reason_of(error), str(error))

    def fail(self, reason: FailureReason, detail: str) -> None:
        """Give it up, unless its metadata is being written."""
        if self._fails(reason, detail):
            self._measured_by = time.monotonic() + _MEASURED_SECONDS
            self.runtime.post(self._abort)

    def _fails(self, reason: FailureReason, detail: str) -> bool:
        if self._failure is not None or self._is_finalising:
            return False
        self._failure = Outcome(reason, detail)
        self._boundaries.clear()
        return True

    def _abort(self, core: JobCore, now: float) -> None:
        # On the core's loop, which nobody here waits for.
        measured = core.abort_checkpoint(self.checkpoint, now)
        self.post(lambda: self._measured(measured))

    def _measured(self, queries: Sequence[QueryStatistics]) -> None:
        self._measured_by = None
        for query in queries:
            self._statistics.setdefault(query.query, query)
        self._end_if_quiet()

    def progress(self) -> Progress | None:
        """How far its subtasks are; from any thread."""
        return self.runtime.call(lambda core, now: core.checkpoint_progress(self.checkpoint))

    def statistics(self, outcome: Outcome | None = None) -> CheckpointStatistics:
        """What is known of it."""
        status = CheckpointStatus.IN_PROGRESS
        if outcome is not None:
            status = CheckpointStatus.COMPLETED if outcome.reason is None else CheckpointStatus.FAILED
        return CheckpointStatistics(
            checkpoint=self.checkpoint,
            kind=self.request.kind,
            triggered_at_seconds=self._triggered.timestamp(),
            periodic=self.request.periodic,
            label=self.request.label,
            key=self.request.key,
            cause=self.request.cause,
            requested_by=self.request.requested_by,
            status=status,
            duration_seconds=None if outcome is None else time.monotonic() - self._triggered_at,
            reason=outcome.reason if outcome is not None else None,
            message=outcome.message if outcome is not None else "",
            path=outcome.path if outcome is not None else None,
            metadata_bytes=self._metadata_bytes,
            queries=self._query_statistics(),
        )

    def _query_statistics(self) -> tuple[QueryStatistics, ...]:
        parts = self._statistics.values()
        offsets = offsets_within_limit({part.query: part.offsets for part in parts})
        return tuple(replace(part, offsets=offsets[part.query]) for part in parts)

    # Cutting and pinning.

    def _cut(self) -> None:
        self._cuts += 1
        self._is_void = False
        self._missing = {query.name: query for query in self.queries}
        self._parts = {}
        self._statistics = {}
        for query in self.queries:
            query.look()
        coordinated = [query.name for query in self.queries if query.has_operators and query.is_active]
        self._boundaries = set(coordinated)
        # Also without any: a restore tells coordinators of queries that have ended what they are reset to.
        self._barrier = self.runtime.call(lambda core, now: core.trigger_checkpoint(self.checkpoint, coordinated, now))
        for query in self.queries:
            if query.name not in coordinated:
                self._pin_at_last_commit(query)

    def _pin_at_last_commit(self, query: ManagedQuery) -> None:
        if query.is_active:
            boundary = planned = query.look()
            cuts: tuple[OperatorCut, ...] = ()
        else:
            boundary, planned, cuts = query.offline_cuts()
        self._pin(query, boundary, cuts, self._reached(query, boundary, cuts), planned)

    def _reached(self, query: ManagedQuery, boundary: Epoch, cuts: tuple[OperatorCut, ...]) -> QueryStatistics:
        statistics = self._statistics[query.name] = QueryStatistics(
            query=query.name,
            boundary=boundary,
            boundary_seconds=time.monotonic() - self._triggered_at,
            operators=tuple(operator_statistics(each) for each in cuts),
        )
        return statistics

    def _pin(
        self,
        query: ManagedQuery,
        boundary: Epoch,
        cuts: tuple[OperatorCut, ...],
        reached: QueryStatistics,
        planned: Epoch | None = None,
    ) -> None:
        began = time.monotonic()

        def pin() -> None:
            lineage = query.lineage
            pinned = self.store.pin(self.checkpoint, query.name, lineage.name, lineage.checkpoint, boundary, planned)
            snapshot = pinned.snapshot(
                query_id=lineage.query_id, spark_version=self.job.spark_version, earlier=lineage.earlier
            )
            statistics = replace(
                reached,
                pin_seconds=time.monotonic() - began,
                files=len(snapshot.files),
                file_bytes=snapshot.size,
                linked_bytes=pinned.linked_bytes,
                copied_bytes=pinned.copied_bytes,
                offsets=offsets_by_source(snapshot),
            )
            self.post(lambda: self._pinned(query, _Part(snapshot, cuts), statistics))

        self._spawn(pin, self._not_pinned)

    def _pinned(self, query: ManagedQuery, part: _Part, statistics: QueryStatistics) -> None:
        self._threads -= 1
        if self._failure is None and not self._is_void:
            self._parts[query.name] = part
            self._statistics[query.name] = statistics
            del self._missing[query.name]
            self.came_further(self)
            if not self._missing:
                self._finalise()
                return
        self._end_if_quiet()

    def _not_pinned(self, error: Exception) -> None:
        self._threads -= 1
        if self._failure is None and not self._is_void:
            if isinstance(error, StateFileMissing) and self._cuts < _CUTS:
                _log.info("= checkpoint %d: %s; it is cut again", self.checkpoint, error)
                self._is_void = True
                self._boundaries.clear()
                self.runtime.post(lambda core, now: core.abort_checkpoint(self.checkpoint, now))
            else:
                self.fail_with(error)
        self._end_if_quiet()

    def _cut_again(self) -> None:
        # Not before: what a pin of the cut before still does to the folder could not be told from what this one does.
        try:
            self._cut()
        except Exception as error:
            self.fail_with(error)

    # The end.

    def _finalise(self) -> None:
        self._is_finalising = True
        metadata = self._metadata()

        def write() -> None:
            written = self.store.complete(metadata)
            self.post(lambda: self._completed(written))

        self._spawn(write, self._not_written)

    def _metadata(self) -> CheckpointMetadata:
        now = datetime.datetime.now(datetime.UTC)
        operators = {cut.operator: self._operator(name, cut) for name, part in self._parts.items() for cut in part.cuts}
        return CheckpointMetadata(
            checkpoint=self.checkpoint,
            kind=self.request.kind.value,
            job=self.job.job,
            label=self.request.label,
            generation=self.job.generation,
            barrier=self._barrier,
            trigger=Trigger(
                cause=self.request.cause,
                key=self.request.key,
                requested_at=self.requested_at,
                details={"requested_by": self.request.requested_by} if self.request.requested_by else {},
            ),
            triggered_at=self._triggered,
            completed_at=now,
            queries={name: part.snapshot for name, part in self._parts.items()},
            operators=operators,
            statistics=to_json(self.statistics()),
        )

    def _operator(self, query: QueryName, cut: OperatorCut) -> OperatorSnapshot:
        record = self.job.operator(cut.operator)
        return OperatorSnapshot.of(
            query=query,
            parallelism=record.parallelism,
            state=record.state,
            down_types=record.down,
            up_types=record.up,
            cut=cut,
        )

    def _completed(self, written: Written) -> None:
        self._threads -= 1
        self._metadata_bytes = written.metadata_bytes
        self.runtime.post(lambda core, now: core.checkpoint_stored(self.checkpoint))
        self.ended(self, Outcome(path=written.path))

    def _not_written(self, error: Exception) -> None:
        self._threads -= 1
        self._is_finalising = False
        reason = reason_of(error)
        self.fail(FailureReason.FINALISE_FAILED if reason is FailureReason.STORAGE_ERROR else reason, str(error))

    def _end_if_quiet(self) -> None:
        if self._threads:
            return  # what is being pinned must be through before it can be removed, or pinned again
        if self._failure is None and self._is_void:
            self._cut_again()
        if self._failure is None or self._measured_by is not None or self._is_over:
            return
        self._is_over = True
        if self._is_claimed:
            try:
                self.store.discard(self.checkpoint)
            except CoordControlError as error:  # the next driver removes what is left
                _log.warning("= checkpoint %d: what it has left could not be removed: %s", self.checkpoint, error)
        self.ended(self, self._failure)

    def _spawn(self, action: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        def run() -> None:
            # What may have to be copied takes long enough.
            if self.request.target is None:
                _let_the_query_go_first()
            try:
                action()
            except Exception as error:
                self.post(functools.partial(failed, error))

        self._threads += 1
        threading.Thread(target=run, name=f"coord-checkpoint-{self.checkpoint}", daemon=True).start()


def _let_the_query_go_first() -> None:
    """Let this thread have less of a busy processor than Spark, or every savepoint would cost the epoch beside it."""
    if sys.platform == "linux":  # elsewhere it would be the whole process
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
