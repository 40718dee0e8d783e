"""Everything that runs inside a job, opened and closed as one: its claim, its threads, its queries.

:class:`~coord_control.spark.job.job.Job` is what users see of it. Opening claims the next generation before anything
else; closing happens in the reverse order, also when opening fails half way: queries have ended, coordinators are
closed, the writer has written, the endpoint closes, the generation is released.

Threads: those of :mod:`coord_control.spark.loop.runtime`, one per query (:mod:`coord_control.spark.queries.query`),
that of the checkpoints, and one that watches the generation and slow callbacks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.generations import NO_GENERATION, WATCH_SECONDS
from coord_control.durable.job_folder.lineage import Lineage, seeded
from coord_control.durable.job_folder.restore_log import RestoreRecord, newest_restore
from coord_control.durable.restore.prepared_restore import remove_unborn
from coord_control.durable.restore.seeds import seed_lineage
from coord_control.errors import (
    CheckpointNotCompleted,
    CoordControlError,
    Fenced,
    JobClosed,
    JobEndRequested,
    StoreError,
    SupervisorLost,
)
from coord_control.ids import Epoch, OperatorUid, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job import JobCore
from coord_control.protocol.job_facts import JobFacts
from coord_control.protocol.messages import CheckpointFailed, EpochSettled, QueryCaptured
from coord_control.protocol.outage import Outage
from coord_control.protocol.records import Record
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.status import JobStatus, OperatorStatus, operator_statuses
from coord_control.spark.checkpoints.checkpoint_contents import JobDescription
from coord_control.spark.checkpoints.checkpoint_service import CheckpointService
from coord_control.spark.checkpoints.stop import CLOSE_SECONDS
from coord_control.spark.job.declarations import Declarations
from coord_control.spark.job.driver_takeover import cause_of, take_over
from coord_control.spark.job.job_place import JobPlace
from coord_control.spark.job.job_restore import JobRestore
from coord_control.spark.job.news import News
from coord_control.spark.loop.bound_coordinator import BoundCoordinator, DeclaredCoordinator
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.process import shutdown
from coord_control.spark.queries.progress_listener import ProgressListener
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.queries.query_spec import QuerySpec
from coord_control.spark.queries.recovery_log import Recoveries
from coord_control.spark.queries.restart_policy import RestartPolicy
from coord_control.spark.queries.writers import place, spark_name
from coord_control.spark.session import advertised_host, is_local, retained_epochs
from coord_control.spark.session import bind_address as spark_address
from coord_control.spark.worker.model_codec import EventTypes, StateType
from coord_control.spark.worker.subtask import TaskPlan

__all__ = ["DriverSettings", "JobDriver"]

_log = logging.getLogger("coord_control.job")

_DRAIN_SECONDS: Final = 10.0
_STATUS_TRIES: Final = 5
# To look for a commit takes some microseconds on a local disk, and a request elsewhere.
_LOCAL_LOOK_SECONDS: Final = 0.01
_REMOTE_LOOK_SECONDS: Final = 0.25

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
        self.name = name
        self.place = JobPlace(name, root, spark)
        self.spark = spark
        self._policy = settings.restart
        self.stop = stop
        self.restore = restore
        above = NO_GENERATION if restore is None else restore.above
        self.started_at_seconds = time.time()
        self.claim = take_over(self.place.files, self.place.folder, spark, above=above)
        self.generation = self.claim.generation
        self.news = News()
        self.recoveries = Recoveries(self.generation, cause_of(self.claim), self.news)
        self.declared = Declarations(self._bind, self._plan, settings.snapshot_timeout_seconds)
        self.queries: dict[QueryName, ManagedQuery] = {}
        #: Where the metrics are served, as other machines see it; set when their server is bound.
        self.metrics_address: Callable[[], str | None] = lambda: None
        self.last_start: float | None = None  #: of a query, monotonic seconds
        self.error: CoordControlError | None = None  #: ends the whole job
        self.program_error: Exception | None = None  #: what the program raised, where it shows that to the job
        self.lost_supervisor: SupervisorLost | None = None  #: the job's end began because of that
        self.is_ended_by_command = False  #: stop, restart, restore
        self.changed = threading.Condition()
        self.is_registered = False  #: in the control database
        self.is_pausing = False  #: queries have been stopped for a savepoint: they resume, or the job is closed
        self.turns = threading.RLock()  #: starting a query, beginning a pause, stopping the job; before ``changed``
        self.closed = threading.Event()
        with contextlib.ExitStack() as opened:
            opened.callback(self._release)
            if restore is not None:
                restore.prepare(self.place.files, self.generation, spark, self.verify)
            self.runtime = JobRuntime(
                JobCore(self.generation, name),
                self.declared.coordinators,
                self,
                tls=not is_local(str(spark.sparkContext.master)) if settings.tls is None else settings.tls,
            )
            opened.callback(lambda: self.runtime.close(self.closed_error()))
            self.endpoint = self.runtime.endpoint
            bind, host = settings.bind_address or spark_address(spark), advertised_host(spark)
            self.endpoint.start(bind, settings.port, advertise=host, advertised_port=settings.advertised_port)
            self.runtime.start()
            opened.callback(self.runtime.writer.close, CLOSE_SECONDS)
            self.thread = CoordinatorThread(settings.slow_callback_seconds)
            self.thread.start()
            opened.callback(self.thread.close, CLOSE_SECONDS)
            opened.callback(ProgressListener(spark, self._heard).close)
            self.checkpoints = self._checkpoint_service(settings.checkpoints)
            self.checkpoints.start()
            opened.callback(self.checkpoints.close, CLOSE_SECONDS)
            self._opened = opened.pop_all()
        threading.Thread(target=self._watch, name="coord-watch", daemon=True).start()
        _log.info("= job %s generation %d", name, self.generation, extra={"action": "job_started", "job": name})

    def start_query(
        self, name: QueryName, writer: DataStreamWriter, operators: Sequence[OperatorUid], lineage: Lineage
    ) -> ManagedQuery:
        """Start a query in its lineage; one that cannot be started may be corrected and started again."""
        writer = place(writer, spark_name(self.name, name, writer), lineage.checkpoint)
        query = self._managed(name, writer, lineage, operators)
        specs = [self.declared.spec(uid) for uid in operators]
        self.runtime.call(lambda core, now: core.add_query(name, lineage.query_id, specs))
        self.queries[name] = query
        for uid in operators:
            self.declared.owner[uid] = name
        try:
            seeded(self.place.files, lineage)  # not before: until here a restore can be undone
            query.start()
        except BaseException:
            del self.queries[name]
            self.declared.disown(operators)
            raise
        self.last_start = time.monotonic()
        self.query_changed()
        return query

    def seed(self, lineage: Lineage, operators: Sequence[OperatorUid]) -> None:
        """Put the states of a restored lineage's operators into place, before anything runs in it.

        Raises:
            RescaleFailed: a user's function did not redistribute them.
        """
        seeds = {uid: (self.declared.spec(uid).parallelism, self.declared.rescales.get(uid)) for uid in operators}
        seed_lineage(self.place.files, lineage, self.generation, seeds)

    @contextlib.contextmanager
    def turn_to_start(self) -> Iterator[None]:
        """Take the turn of starting queries: not while the job is being stopped, nor in a pause.

        A query that was started in a pause would process rows behind the savepoint that the pause is for."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed.is_set() or not self.is_pausing)
            with self.turns:
                if self.closed.is_set() or not self.is_pausing:
                    yield
                    return

    def facts(self) -> JobFacts:
        """Return what does not change while this driver runs."""
        address = self.endpoint.address
        return JobFacts(
            name=self.name,
            root=self.place.root,
            folder=self.place.folder,
            generation=self.generation,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at_seconds=self.started_at_seconds,
            version=importlib.metadata.version("coord-control"),
            python_version=platform.python_version(),
            spark_version=self.spark.version,
            master=str(self.spark.sparkContext.master),
            address=address.host,
            port=address.port,
            tls=address.certificate is not None,
        )

    def begin_pause(self) -> list[ManagedQuery]:
        """Let nothing start until :meth:`end_pause`, or the job's end; returns all queries there are.

        Raises:
            CheckpointNotCompleted: they pause already.
            JobClosed: the job has ended.
        """
        with self.turns, self.changed:
            self.check_open()
            if self.is_pausing:
                why = "another stop with savepoint is in progress; wait for it to end"
                raise CheckpointNotCompleted("savepoint", FailureReason.JOB_ENDING.code, why)
            # await_termination must not take the pause for the job's end, and close the job under the savepoint.
            self.is_pausing = True
            return list(self.queries.values())

    def end_pause(self) -> None:
        """End the pause: there is no savepoint, and the job keeps running."""
        with self.changed:
            self.is_pausing = False
            self.changed.notify_all()

    def end_on_command(self, grace_seconds: float, *, restart: bool) -> None:
        """End the job and wait for it; with ``restart`` the process then asks its supervisor for a new driver."""
        self.is_ended_by_command = True
        if restart:
            shutdown.request_restart()
        self.stop(grace_seconds)

    def check_open(self) -> None:
        """Raise what has ended the job: JobClosed, or a failure."""
        if self.error is not None:
            raise self.error
        if self.closed.is_set():
            raise self.closed_error()

    def closed_error(self) -> JobClosed:
        """The error of a program that uses the job after its end: it ends quietly if the end was requested."""
        if self.is_ended_by_command or shutdown.is_requested():
            return JobEndRequested(self.name)
        return JobClosed(self.name)

    def end_error(self) -> CoordControlError | None:
        """Return the error for a program that waits for a checkpoint; None if the program itself has ended the job."""
        closed = self.error or self.closed_error()
        return None if type(closed) is JobClosed else closed

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
        self.check_open()
        owner = dict(self.declared.owner)
        operators = ask(lambda core, now: operator_statuses(core, owner, now))
        queries = tuple(query.status() for query in list(self.queries.values()))
        slow, writes = self.thread.slow_callbacks, self.runtime.writer.writes
        return JobStatus(self.name, self.generation, queries, operators, slow, writes)

    def has_ended(self) -> bool:
        """Return whether nothing runs any more, or something has failed for good."""
        return (
            self.closed.is_set()
            or self.first_error() is not None
            or not (self.is_pausing or any(query.is_active for query in list(self.queries.values())))
        )

    def first_error(self) -> CoordControlError | None:
        """Return what has ended the job, or a query for good."""
        return self.error or next((query.error for query in list(self.queries.values()) if query.error), None)

    def close(self) -> None:
        """Close everything; the queries have ended."""
        self.closed.set()
        self.recoveries.close()
        for coordinator in self.declared.coordinators.values():
            coordinator.close()
        try:
            self._opened.close()
        except StoreError as error:  # the claim's release; the next driver then looks for our processes instead
            _log.warning("= job %s: %s", self.name, error)
        _log.info("x job %s generation %d", self.name, self.generation, extra={"action": "job_ended", "job": self.name})

    # Parts.

    def _checkpoint_service(self, options: CheckpointOptions) -> CheckpointService:
        job = JobDescription(self.name, self.generation, self.spark.version, self.declared.record)
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

    def _bind(self, declared: DeclaredCoordinator) -> BoundCoordinator:
        return BoundCoordinator(declared, self.thread, self.runtime.post, news=self.news)

    def _plan(
        self, uid: OperatorUid, parallelism: int, state: StateType[Any], down: EventTypes, up: EventTypes
    ) -> TaskPlan:
        return TaskPlan(self.endpoint.address, self.generation, uid, parallelism, state, down, up)

    def _managed(
        self, name: QueryName, writer: DataStreamWriter, lineage: Lineage, operators: Sequence[OperatorUid]
    ) -> ManagedQuery:
        store = None
        if operators:
            store = EpochStore(self.place.files, lineage.epochs, self.generation, retained_epochs(self.spark))
        spec = QuerySpec(name, writer, lineage, operators, store, self._policy)
        return ManagedQuery(spec, self, files=self.place.files, runtime=self.runtime, recoveries=self.recoveries)

    def drain_coordinators(self, operators: Sequence[OperatorUid]) -> None:
        if operators and not self.thread.drain(_DRAIN_SECONDS):
            _log.warning("a coordinator has not seen the last events of its query within %g s", _DRAIN_SECONDS)

    def start_coordinators(self, operators: Sequence[OperatorUid]) -> None:
        if self.error is not None:  # fenced while the query was between two runs
            raise self.error
        for uid in operators:
            self.declared.coordinators[uid].start()

    def query_changed(self) -> None:
        self.checkpoints.queries_changed()
        self.news.on_query_changed()
        with self.changed:
            self.changed.notify_all()

    def _release(self) -> None:
        # A query that has not ended may still commit an epoch, which a driver that recovers meanwhile would not see.
        if any(query.is_active for query in self.queries.values()):
            _log.warning("= job %s: a query has not ended in time; the next driver waits for this one's end", self.name)
            return
        if self._is_unborn() and remove_unborn(self.place.files, self.place.folder):
            _log.info("= job %s was not restored, and has never run: nothing of it is left", self.name)
            return
        self.claim.release()

    def _is_unborn(self) -> bool:
        # The control database remembers generations, and would refuse lower ones. A driver that waits for the job finds
        # its own claim gone as well, and is fenced.
        is_pending = self.restore is not None and not self.restore.is_committed and not self.is_registered
        return is_pending and self.claim.previous is None and self.claim.is_current()

    # Called by the runtime, its writer, queries and checkpoints.

    def may_answer(self) -> bool:
        return self.claim.is_fresh()

    def append(self, query: QueryName, records: Sequence[Record]) -> None:
        store = self.queries[query].store
        assert store is not None, "only queries with operators have records"
        store.append(records)

    def verify(self) -> None:
        try:
            self.claim.verify(self.name)
        except Fenced as error:
            self.fenced(error)
            raise

    def query_failed(self, query: QueryName, error: CoordControlError) -> None:
        if (managed := self.queries.get(query)) is not None:
            managed.fail(error)

    def fence(self, error: Fenced) -> None:
        """End at once, on a separate thread, because a newer driver owns the job."""
        self.fenced(error)
        threading.Thread(target=self.stop, name="coord-fenced", daemon=True).start()

    def fenced(self, error: Fenced) -> None:
        if self.error is None:
            _log.error("x %s", error, extra={"action": "fenced", "job": self.name})
        self.fail_job(error)

    def fail_job(self, error: CoordControlError) -> None:
        if self.error is None:
            self.error = error
        for query in list(self.queries.values()):
            query.fail(error)
        with self.changed:
            self.changed.notify_all()

    def started_queries(self) -> list[ManagedQuery]:
        return list(self.queries.values())

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

    def _heard(self, query_id: str, epoch: int, progress: dict[str, Any]) -> None:
        for query in list(self.queries.values()):
            if query.lineage.query_id == query_id:
                query.committed(Epoch(epoch), progress)

    def _watch(self) -> None:
        outage = Outage(WATCH_SECONDS, WATCH_SECONDS)
        while not self.closed.wait(WATCH_SECONDS):
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
                self.fenced(self.claim.fenced(self.name))
                self.stop()  # now: the driver after us waits until we say that we have ended
                return
