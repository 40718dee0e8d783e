"""Everything that runs inside a job, opened and closed as one: its claim, its threads, its queries.

:class:`~coord_control.spark.job.job.Job` is what users see of it. What a job does is in its parts; here is what
connects them, and what the loop, the writer, the queries and the checkpoints ask of their job. Opening claims the next
generation before anything else; closing happens in the reverse order, also when opening fails half way: queries have
ended, coordinators are closed, the writer has written, the endpoint closes, the generation is released.

Threads: those of :mod:`coord_control.spark.loop.runtime`, one per query (:mod:`coord_control.spark.queries.query`),
that of the checkpoints, and one that watches the generation and slow callbacks.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import SparkSession

from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.generations import NO_GENERATION, WATCH_SECONDS
from coord_control.durable.job_folder.restore_log import RestoreRecord, newest_restore
from coord_control.durable.restore.live_log import LiveLog
from coord_control.durable.restore.prepared_restore import remove_unborn
from coord_control.errors import (
    CoordControlError,
    Fenced,
    OlderDriverAlive,
    StoreError,
)
from coord_control.ids import OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.job import JobCore
from coord_control.protocol.job_facts import JobFacts
from coord_control.protocol.messages import CheckpointFailed, EpochSettled, QueryCaptured
from coord_control.protocol.operator import OperatorStates
from coord_control.protocol.outage import Outage
from coord_control.protocol.records import Record
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.status import JobStatus, OperatorStatus, operator_statuses
from coord_control.spark.checkpoints.checkpoint_contents import JobDescription
from coord_control.spark.checkpoints.checkpoint_service import CheckpointService
from coord_control.spark.checkpoints.stop_first import CLOSE_SECONDS
from coord_control.spark.job.declarations import Declarations
from coord_control.spark.job.driver_takeover import cause_of, take_over
from coord_control.spark.job.job_life import JobLife
from coord_control.spark.job.job_place import JobPlace
from coord_control.spark.job.job_restore import JobRestore
from coord_control.spark.job.news import News
from coord_control.spark.job.program_check import program_check
from coord_control.spark.job.query_launch import QueryLaunch
from coord_control.spark.job.query_starts import QueryStarts
from coord_control.spark.job.running_queries import RunningQueries
from coord_control.spark.live.live_values import LiveValues
from coord_control.spark.loop.bound_coordinator import BoundCoordinator, DeclaredCoordinator
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.process import shutdown, start_notice
from coord_control.spark.queries.progress_listener import ProgressListener
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.queries.recovery_log import RecoveryLog
from coord_control.spark.queries.restart_policy import RestartPolicy
from coord_control.spark.session import advertised_host, is_local
from coord_control.spark.session import bind_address as spark_address
from coord_control.spark.wake.waker import Waker
from coord_control.spark.wake.waking_rows import WakingRows
from coord_control.spark.worker.model_codec import EventTypes, StateType
from coord_control.spark.worker.subtask import TaskPlan

__all__ = ["DriverSettings", "JobDriver"]

_log = logging.getLogger("coord_control.job")

_DRAIN_SECONDS: Final = 10.0
_STATUS_TRIES: Final = 5
# To look for a commit takes some microseconds on a local disk, and a request elsewhere.
_LOCAL_LOOK_SECONDS: Final = 0.01
_REMOTE_LOOK_SECONDS: Final = 0.25
# About what a request to an object store takes.
_GATHER_SECONDS: Final = 0.05

_Ask: TypeAlias = Callable[[JobCore, float], tuple[OperatorStatus, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """How a job runs in its driver; the values are those of :class:`coord_control.Job`."""

    port: int | range
    bind_address: str | None
    advertised_port: int | None
    tls: bool | None
    restart: RestartPolicy
    snapshot_timeout_seconds: float
    slow_callback_seconds: float
    checkpoints: CheckpointOptions


class JobDriver:
    """The inside of one job in one driver; the arguments are those of the job.

    Its parts are handed to the modules that use them, each the ones that it needs.

    Args:
        stop: ends the job within a number of seconds, or its own; called when another driver has taken over.
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        root: str,
        settings: DriverSettings,
        *,
        restore: JobRestore | None,
        stop: Callable[..., None],
    ) -> None:
        self._name = name
        self._spark = spark
        self._stop = stop
        self._restore = restore
        self._started_at_seconds = time.time()
        self._is_registered = False
        self.place = JobPlace(name, root, spark)
        self.life = JobLife(name)
        self.queries = RunningQueries()
        above = NO_GENERATION if restore is None else restore.above
        self.claim = take_over(self.place.files, self.place.folder, spark, above=above)
        self.generation = self.claim.generation
        self.news = News()
        self.recoveries = RecoveryLog(self.generation, cause_of(self.claim), self.news)
        self._waker = Waker()
        self.declared = Declarations(self._bind, self._plan, self._waking, settings.snapshot_timeout_seconds)
        with contextlib.ExitStack() as opened:
            opened.callback(self._release)
            if restore is not None:
                restore.prepare(self.place.files, self.generation, spark, self.verify)
            self.runtime = JobRuntime(
                JobCore(self.generation, name),
                self.declared.coordinators,
                self,
                tls=not is_local(str(spark.sparkContext.master)) if settings.tls is None else settings.tls,
                gather_seconds=0.0 if isinstance(self.place.files, LocalFiles) else _GATHER_SECONDS,
            )
            opened.callback(lambda: self.runtime.close(self.life.closed_error()))
            bind, host = settings.bind_address or spark_address(spark), advertised_host(spark)
            # A check of the program runs in parallel with the driver that has the port.
            port, advertised = (settings.port, settings.advertised_port) if program_check() is None else (0, None)
            self.runtime.endpoint.start(bind, port, advertise=host, advertised_port=advertised)
            self.runtime.start()
            opened.callback(self._waker.close, CLOSE_SECONDS)
            opened.callback(self.runtime.writer.close, CLOSE_SECONDS)
            self.thread = CoordinatorThread(settings.slow_callback_seconds)
            self.thread.start()
            opened.callback(self.thread.close, CLOSE_SECONDS)
            opened.callback(ProgressListener(spark, self.queries.heard, self.queries.idle).close)
            self.live = LiveValues(
                name,
                spark,
                lambda: LiveLog(self.place.files, self.place.folder, self.generation),
                self.runtime,
                verify=self.verify,
                closed=self.life.closed_error,
            )
            opened.callback(self.live.close, CLOSE_SECONDS)
            self.checkpoints = self._checkpoint_service(settings.checkpoints)
            self.checkpoints.start()
            opened.callback(self.checkpoints.close, CLOSE_SECONDS)
            self._opened = opened.pop_all()
        self.starts = QueryStarts(self._query_launch(settings.restart), self.life, restore)
        threading.Thread(target=self._watch, name="coord-watch", daemon=True).start()
        _log.info("= job %s generation %d", name, self.generation, extra={"action": "job_started", "job": name})

    def facts(self) -> JobFacts:
        """Return what does not change while this driver runs."""
        address = self.runtime.endpoint.address
        return JobFacts(
            name=self._name,
            root=self.place.root,
            folder=self.place.folder,
            generation=self.generation,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at_seconds=self._started_at_seconds,
            process_started=start_notice.PROCESS_STARTED,
            version=importlib.metadata.version("coord-control"),
            python_version=platform.python_version(),
            spark_version=self._spark.version,
            master=str(self._spark.sparkContext.master),
            address=address.host,
            port=address.port,
            tls=address.certificate is not None,
            spark_ui=self._spark.sparkContext.uiWebUrl or "",
        )

    def registered(self) -> None:
        """Note that the control database is about to learn of this driver: its generation may not be taken back."""
        self._is_registered = True

    def end_on_command(self, grace_seconds: float, *, restart: bool) -> None:
        """End the job and wait for it; with ``restart`` the process then asks its supervisor for a new driver."""
        self.life.is_ended_by_command = True
        if restart:
            shutdown.request_restart()
        self._stop(grace_seconds)

    def tell(self, text: str) -> None:
        """Log what the job does for its program."""
        _log.info("= job %s: %s", self._name, text)

    def status(self) -> JobStatus:
        """Return what the job does now: nothing that is not durable.

        Raises:
            JobClosed: it has ended.
            StoreError: the storage has failed so often meanwhile that no durable state was seen.
            TimeoutError: the storage hangs.
        """
        for _ in range(_STATUS_TRIES - 1):
            # A failed write takes back what was seen together with it. What the core says next has nothing of it.
            with contextlib.suppress(StoreError):
                return self._status(self.runtime.call)
        return self._status(self.runtime.call)

    def status_now(self, timeout_seconds: float) -> JobStatus:
        """As :meth:`status`, without waiting for the storage.

        Raises:
            JobClosed: it has ended.
            TimeoutError: the loop has not answered within the time.
        """
        return self._status(lambda call: self.runtime.read(call, timeout_seconds))

    def _status(self, ask: Callable[[_Ask], tuple[OperatorStatus, ...]]) -> JobStatus:
        self.life.check_open()
        owner = dict(self.declared.owner)
        operators = ask(lambda core, now: operator_statuses(core, owner, now))
        queries = tuple(query.status() for query in self.queries.all())
        slow, writes = self.thread.slow_callbacks, self.runtime.writer.writes
        return JobStatus(self._name, self.generation, queries, operators, slow, writes)

    def committed_states(
        self, operator: OperatorUid, subtasks: Sequence[SubtaskIndex]
    ) -> Future[OperatorStates | None]:
        """Read states that are durable, without waiting; the future has None while the operator does not run."""
        return self.runtime.begin(lambda core, now: core.committed_states(operator, subtasks))

    def has_ended(self) -> bool:
        """Return whether nothing runs any more, or something has failed for good."""
        return (
            self.life.is_closed
            or self.first_error() is not None
            or not (self.life.is_paused or self.queries.is_any_active)
        )

    def first_error(self) -> CoordControlError | None:
        """Return what has ended the job, or a query for good."""
        return self.life.error or self.queries.first_error()

    def close(self) -> None:
        """Close everything; the queries have ended."""
        self.life.close()
        self.recoveries.close()
        for coordinator in self.declared.coordinators.values():
            coordinator.close()
        try:
            self._opened.close()
        except StoreError as error:  # the claim's release; the next driver then looks for our processes instead
            _log.warning("= job %s: %s", self._name, error)
        _log.info(
            "x job %s generation %d", self._name, self.generation, extra={"action": "job_ended", "job": self._name}
        )

    # Parts.

    def _checkpoint_service(self, options: CheckpointOptions) -> CheckpointService:
        job = JobDescription(self._name, self.generation, self._spark.version, self.declared.record, self.live.values)
        return CheckpointService(
            CheckpointStore(
                self.place.files, self.place.folder, self.generation, self.verify, storage=self.place.storage
            ),
            self.runtime,
            options,
            job=job,
            owner=self,
            news=self.news,
            look_seconds=_LOCAL_LOOK_SECONDS if isinstance(self.place.files, LocalFiles) else _REMOTE_LOOK_SECONDS,
        )

    def _query_launch(self, policy: RestartPolicy) -> QueryLaunch:
        return QueryLaunch(
            job=self._name,
            spark=self._spark,
            place=self.place,
            generation=self.generation,
            declared=self.declared,
            queries=self.queries,
            runtime=self.runtime,
            recoveries=self.recoveries,
            policy=policy,
            owner=self,
            live=self.live,
        )

    def _bind(self, declared: DeclaredCoordinator) -> BoundCoordinator:
        return BoundCoordinator(declared, self.thread, self.runtime.post, news=self.news)

    def _plan(
        self, uid: OperatorUid, parallelism: int, state: StateType[Any], down: EventTypes, up: EventTypes
    ) -> TaskPlan:
        return TaskPlan(self.runtime.endpoint.address, self.generation, uid, parallelism, state, down, up)

    def _waking(self, uid: OperatorUid, parallelism: int) -> WakingRows:
        return self._waker.declare(uid, parallelism, self.runtime)

    def _release(self) -> None:
        # A query that has not ended may still commit an epoch, which a driver that recovers meanwhile would not see.
        if self.queries.is_any_active:
            _log.warning(
                "= job %s: a query has not ended in time; the next driver waits for this one's end", self._name
            )
            return
        if self._is_unborn() and remove_unborn(self.place.files, self.place.folder):
            _log.info("= job %s was not restored, and has never run: nothing of it is left", self._name)
            return
        self.claim.release(is_fenced=isinstance(self.life.error, Fenced))

    def _is_unborn(self) -> bool:
        # The control database remembers generations, and would refuse lower ones. A driver that waits for the job finds
        # its own claim gone as well, and is fenced.
        is_pending = self._restore is not None and not self._restore.is_committed and not self._is_registered
        return is_pending and self.claim.previous is None and self.claim.is_current()

    # Called by the runtime, its writer, queries and checkpoints.

    def drain_coordinators(self, operators: Sequence[OperatorUid]) -> None:
        if operators and not self.thread.drain(_DRAIN_SECONDS):
            _log.warning("a coordinator has not seen the last events of its query within %g s", _DRAIN_SECONDS)

    def start_coordinators(self, operators: Sequence[OperatorUid]) -> None:
        if self.life.error is not None:  # fenced while the query was between two runs
            raise self.life.error
        for uid in operators:
            self.declared.coordinators[uid].start()

    def query_changed(self) -> None:
        self.checkpoints.queries_changed()
        self.news.on_query_changed()
        self.life.changed()

    def may_answer(self) -> bool:
        return self.claim.is_fresh()

    def append(self, query: QueryName, records: Sequence[Record]) -> None:
        self.queries.append(query, records)

    def verify(self) -> None:
        self._verified(self.claim.verify)

    def verify_recent(self) -> None:
        self._verified(self.claim.verify_recent)

    def verify_alone(self) -> None:
        if (older := self.claim.alive_before()) is not None:
            raise OlderDriverAlive(*older)

    def _verified(self, check: Callable[[str], None]) -> None:
        try:
            check(self._name)
        except Fenced as error:
            self.fenced(error)
            raise

    def query_failed(self, query: QueryName, error: CoordControlError) -> None:
        self.queries.fail(query, error)

    def fence(self, error: Fenced) -> None:
        """End at once, on a separate thread, because a newer driver owns the job."""
        self.fenced(error)
        threading.Thread(target=self._stop, name="coord-fenced", daemon=True).start()

    def fenced(self, error: Fenced) -> None:
        if self.life.error is None:
            _log.error("x %s", error, extra={"action": "fenced", "job": self._name})
        self.fail_job(error)

    def fail_job(self, error: CoordControlError) -> None:
        self.life.fail(error)
        self.queries.fail_all(error)
        self.life.changed()

    def started_queries(self) -> list[ManagedQuery]:
        return self.queries.all()

    def newest_restore(self) -> RestoreRecord | None:
        return newest_restore(self.place.files, self.place.folder)

    def settled(self, epoch: EpochSettled) -> None:
        if epoch.nondeterministic_subtasks:
            _log.warning(
                "operator %s: %d subtasks gave different results for the same input in epoch %d; exactly-once needs "
                "functions that depend on their rows, state and events only",
                epoch.operator,
                epoch.nondeterministic_subtasks,
                epoch.epoch,
            )

    def captured(self, captured: QueryCaptured) -> None:
        self.checkpoints.captured(captured)

    def checkpoint_failed(self, failed: CheckpointFailed) -> None:
        self.checkpoints.core_failed(failed)

    def events_wait(self, operator: OperatorUid) -> None:
        self._waker.events_wait(operator)

    def _watch(self) -> None:
        outage = Outage(WATCH_SECONDS, WATCH_SECONDS)
        while not self.life.wait_closed(WATCH_SECONDS):
            if (slow := self.thread.slow()) is not None:
                _log.warning(
                    "the coordinator of operator %s has been in %s for %.1f s; every coordinator of the job waits "
                    "for it: move slow work to context.run_in_background",
                    slow.operator,
                    slow.callback,
                    slow.seconds,
                )
            try:
                current = self.claim.is_current()
            except Exception as error:  # whatever it is: without this thread nothing would notice a newer driver
                if outage.failed(time.monotonic()):
                    _log.warning("x the generation cannot be checked: %s", error)
                continue
            if outage.worked():
                _log.info("= the generation can be checked again")
            if not current:
                self.fenced(self.claim.fenced(self._name))
                self._stop()  # now: the driver after us waits until we say that we have ended
                return
