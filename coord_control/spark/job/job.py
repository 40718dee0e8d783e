"""The job: one driver's generation, its operators and its queries. This is where everything is put together.

Starting a job claims the next generation before anything else, waits for a predecessor that may still be alive, and
opens the endpoint; starting a query recovers its operators from durable facts and hands over to Spark.

Threads: the job's methods may be called from any thread; starting a query and stopping the job take turns. What runs
inside is :mod:`coord_control.spark.job.job_driver`'s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.control.settings import ControlSettings
from coord_control.coordinators.contract import OperatorCoordinator
from coord_control.errors import (
    DuplicateOperator,
    InvalidName,
    JobClosed,
    OperatorUnused,
)
from coord_control.ids import CheckpointKind, QueryName, is_valid_name
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.statistics_history import Overview
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.status import JobStatus
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
from coord_control.spark.checkpoints.stop import stop_queries
from coord_control.spark.hadoop_files import absolute
from coord_control.spark.job.agent_port import AgentPort
from coord_control.spark.job.job_driver import CLOSE_SECONDS, JobDriver
from coord_control.spark.job.job_metrics import JobMetrics
from coord_control.spark.job.job_restore import JobRestore, restore_settings
from coord_control.spark.job.operator_handle import Operator
from coord_control.spark.job.query_starts import QueryStart, QueryStarts
from coord_control.spark.job.rescale import RescaleFunction
from coord_control.spark.process import shutdown, start_notice
from coord_control.spark.queries.restart_policy import RestartPolicy
from coord_control.spark.session import use_this_interpreter

if TYPE_CHECKING:
    from coord_control.spark.job.control_plane import ControlPlane

__all__ = ["Job"]

_log = logging.getLogger("coord_control.job")

_STOP_SECONDS: Final = 30.0


class Job:
    """A long-running job: a name, operators, queries.

    It is open from the first line of its block to the last; used after its end it raises JobClosed. If the end was
    requested (a command, SIGTERM) that is a JobEndRequested, which ends the program without an error.

        with cc.Job("flights", spark, root=".../jobs") as job:
            operator = job.operator("delay-threshold", AdaptiveThreshold(), parallelism=4,
                                    state=CarrierState, down=[Threshold], up=[Report])
            scored = operator.apply(flights, score, schema="...", partition_by=["carrier"])
            job.start("alerts", scored.writeStream.format("parquet").option("path", ...))
            job.await_termination()

    Args:
        name: of the job, for ever: its state is found by it.
        spark: a classic session (not Spark Connect); the coordinators live in its driver.
        root: folder for the state of all jobs, on any file system that Spark can write.
        port: where subtasks reach the driver: 0 for any free port, a number, or a range to choose from.
        bind_address: local address to listen at; by default that of ``spark.driver.bindAddress``.
        advertised_port: the port under which executors reach it at ``spark.driver.host``, when that is another one:
            behind a port mapping or a proxy.
        tls: encrypt the connections of subtasks; by default unless the master is local.
        restart: how failed queries are restarted in place.
        snapshot_timeout_seconds: how long a coordinator may take to give its state.
        slow_callback_seconds: a callback of a coordinator that takes longer is reported.
        checkpoints: when checkpoints are taken by themselves, how long they may take, how many are kept; by default
            only on request.
        restore_from: a checkpoint or savepoint to go on from: an id, a label, ``latest``, or a path; of another job, or
            of this one. By default what ``coordctl run --restore-from`` says, in ``COORD_RESTORE_FROM``. It is applied
            once: after that the job resumes where it stands, also when it was restored to something else since and
            when the checkpoint is gone (``latest`` is applied once, too); ``coordctl restore`` goes back to it again.
            It takes place when every query of the checkpoint has been started by the program and fits; until then
            nothing has changed, and no query runs.
        allow_non_restored_state: let the program leave queries and operators of the checkpoint out, or add some, which
            begin empty. If queries are left out, the restore takes place when the program waits for the job's end or
            asks for a checkpoint.
        allow_missing_input: restore although files that a source would read again are gone; their rows are lost.
        control: the control database: ``sqlite:///path`` or ``postgresql://user@host/name``; ``none``: there is none.
            By default what ``COORD_CONTROL`` says, and otherwise the user's embedded database. A database that cannot
            be reached never keeps a job from running.
        metrics: where Prometheus finds the job's metrics (docs/metrics.md): ``HOST:PORT``, or ``none``. By default what
            ``COORD_METRICS`` says, and otherwise port 9404 of the loopback interface, or a free one when that is taken.

    Raises:
        CheckpointNotFound: ``restore_from`` means no checkpoint, or several.
        RestoreRefused: the checkpoint cannot be restored; nothing was changed.
        InvalidName: ``name`` cannot be used.
        Fenced: another driver was faster.
        StoreUnavailable: ``root`` cannot be written.
        EndpointNotBound: no port is free.
        ControlSettingsInvalid, DatabaseUrlInvalid, DatabaseDriverMissing: ``control`` cannot be used at all.
        MetricsAddressInvalid: ``metrics`` is no address.
        JobStopRequested: the job was asked to stop, and its last driver died before it had; it is stopped now.
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        *,
        root: str,
        port: int | range = 0,
        bind_address: str | None = None,
        advertised_port: int | None = None,
        tls: bool | None = None,
        restart: RestartPolicy | None = None,
        snapshot_timeout_seconds: float = 60.0,
        slow_callback_seconds: float = 1.0,
        checkpoints: CheckpointOptions | None = None,
        restore_from: str | None = None,
        allow_non_restored_state: bool = False,
        allow_missing_input: bool = False,
        control: str | None = None,
        metrics: str | None = None,
    ) -> None:
        if not is_valid_name(name):
            raise InvalidName("job", name)
        self.name = name
        self._plane = _control_plane(control)
        self._metrics = JobMetrics.of(metrics)
        use_this_interpreter(spark)
        self._spark = spark
        root = absolute(root)
        restore_from, allow_state, allow_input = restore_settings(
            restore_from, allow_non_restored_state, allow_missing_input
        )
        restore = None
        if restore_from is not None:
            ref = absolute(restore_from) if "/" in restore_from else restore_from
            restore = JobRestore.wanted(
                name, spark, root, ref, allow_non_restored_state=allow_state, allow_missing_input=allow_input
            )
        self._driver = JobDriver(
            name,
            spark,
            root,
            port=port,
            bind_address=bind_address,
            advertised_port=advertised_port,
            tls=tls,
            restart=restart or RestartPolicy(),
            snapshot_timeout_seconds=snapshot_timeout_seconds,
            slow_callback_seconds=slow_callback_seconds,
            checkpoints=checkpoints or CheckpointOptions(),
            restore=restore,
            stop=self.stop,
        )
        self._starts = QueryStarts(self._driver)
        self._port = AgentPort(self._driver)
        self.generation = self._driver.generation
        shutdown.register(self.stop)
        if self._metrics is not None:
            self._metrics.start(self._driver, self._port, self._plane)
        if self._plane is not None:
            self._driver.is_registered = True
            requested = self._plane.start(self._port)
            if requested is not None:
                self._driver.is_ended_by_command = True
                self.stop()
                raise requested
            if self._driver.closed.is_set():  # fenced already
                self._plane.close(self._driver)
        if not self._driver.closed.is_set():
            start_notice.announce(name, self.generation, is_visible=self._plane is not None)
        elif self._metrics is not None:
            self._metrics.close()

    def operator(
        self,
        uid: str,
        coordinator: OperatorCoordinator,
        *,
        parallelism: int,
        state: type[BaseModel],
        down: Sequence[type[BaseModel]] = (),
        up: Sequence[type[BaseModel]] = (),
        rescale: RescaleFunction | None = None,
    ) -> Operator:
        """Declare an operator.

        Args:
            uid: its name in this job, for ever: state is found by it.
            coordinator: its coordinator; one object serves one operator.
            parallelism: number of subtasks; fixed once the operator has run, but for a restore with ``rescale``.
            state: pydantic model of a subtask's state, default constructible, at most 1 MiB as JSON.
            down: models of the events coordinator -> subtask. New ones go behind the ones that have been used.
            up: models of the events subtask -> coordinator, likewise.
            rescale: ``rescale(subtasks, parallelism)`` gives the subtasks of a restored operator that had another
                parallelism their states: it takes a list of :class:`SubtaskSnapshot` (state, waiting events) of the old
                subtasks and returns one of ``parallelism`` new ones. Events of old subtasks that were on their way
                to the coordinator arrive as of subtask ``old % parallelism``.

        Raises:
            DeclarationError: the declaration cannot be used (InvalidName, DuplicateOperator, InvalidModel).
            JobClosed: the job has ended.
        """
        self._check_open()
        return self._driver.declared.operator(uid, coordinator, parallelism, state, down, up, rescale)

    def start(self, name: str, writer: DataStreamWriter, *, checkpoint_location: str | None = None) -> StreamingQuery:
        """Start a query, with any operators that are part of it, where it stood when it ended.

        While a stop with savepoint is under way it waits: the query starts if there is no savepoint in the end.

        Args:
            name: its name in this job, for ever. Spark's name of it is ``JOB.NAME``, with a memory sink ``NAME``.
            writer: a configured ``df.writeStream``; the checkpoint location is set here.
            checkpoint_location: an existing Spark checkpoint directory to adopt, on the same storage as the job's
                root; managed under the root when left out. The query that has run there must have ended.

        Returns:
            Spark's handle of the query's current run; after a restart in place it is another one. While a restored job
            waits for other queries, its use raises QueryNotStarted.

        Raises:
            InvalidName, DuplicateOperator, OperatorReused: the declaration cannot be used.
            OperatorsChanged, ParallelismChanged, EventTypesChanged, LineageMismatch: it does not fit what has run.
            RestoreRefused, NonRestoredState, RescaleFailed: it does not fit what is to be restored, or was; no query of
                the job has run, and the restore has not taken place or can be undone.
            PlanRefused: Spark refuses its plan in a restored job of which other queries have run.
            QueryNotRestored: the job was just restored from a checkpoint that does not have it.
            CheckpointLocationConflict: the writer, or the session, has a checkpoint location that is not used.
            NotACheckpoint, AdoptedQueryRunning: ``checkpoint_location`` cannot be adopted.
            DamagedRecord, MissingRecord, UnsupportedFormat: what is stored cannot be used; nothing was started.
            JobClosed: the job has ended.
        """
        with self._driver.turn_to_start():
            return self._start(name, writer, checkpoint_location)

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all queries have ended. False: they have not within the time.

        Raises:
            QueryFailed: a query failed for good; the others are stopped.
            Fenced: a newer driver owns the job.
            OperatorUnused: an operator was declared and is part of no started query.
            RestoredQueryUnused: a query is to be restored, or was, and was not started; nothing has run.
        """
        if not self._driver.closed.is_set():
            if unused := self._driver.declared.unused():
                raise OperatorUnused(unused[0])
            self._all_declared()
        self._driver.checkpoints.begin()
        with self._driver.changed:
            ended = self._driver.changed.wait_for(self._driver.has_ended, timeout_seconds)
        if error := self._driver.first_error():
            self.stop(_STOP_SECONDS)
            raise error
        return ended

    def trigger_checkpoint(self, *, key: str | None = None, label: str | None = None) -> CheckpointHandle:
        """Ask for a checkpoint of all queries: consistent, incremental, subject to retention. Returns at once.

        Its boundary in each query is the end of the running epoch, or the last commit when none runs.

        Args:
            key: makes the request idempotent: the same key returns the same checkpoint, also after a restart.
            label: a name to find it by.

        Raises:
            InvalidName: ``label`` cannot be used.
        """
        return self._submit(CheckpointRequest(key=key, label=label, cause="api"))

    def trigger_savepoint(
        self, *, target: str | None = None, key: str | None = None, label: str | None = None
    ) -> CheckpointHandle:
        """Ask for a savepoint of all queries: self-contained, portable, the user's own. Returns at once.

        Args:
            target: its folder, which must not exist or be empty; by default one in the job's folder.
            key, label: as in :meth:`trigger_checkpoint`.

        Raises:
            InvalidName: ``label`` cannot be used.
        """
        target = target if target is None else absolute(target)
        return self._submit(
            CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target=target, key=key, label=label, cause="api")
        )

    def stop_with_savepoint(
        self,
        *,
        target: str | None = None,
        key: str | None = None,
        label: str | None = None,
        timeout_seconds: float = 600.0,
    ) -> CompletedCheckpoint:
        """Take a savepoint after which nothing is processed, exactly, and end the job.

        Every query pauses at the end of its running epoch while the savepoint is taken.

        Args:
            target, key, label: as in :meth:`trigger_savepoint`. The key of an earlier savepoint is refused if anything
                was processed since.
            timeout_seconds: for the running epochs and the savepoint together.

        Raises:
            CheckpointNotCompleted: there is no savepoint; the job runs on.
            TimeoutError: there was none within the time; the job runs on.
        """
        target = target if target is None else absolute(target)
        request = CheckpointRequest(
            kind=CheckpointKind.SAVEPOINT, target=target, key=key, label=label, cause="stop with savepoint"
        )
        self._check_open()
        self._all_declared()
        completed = self._port.savepoint_and_pause(request, timeout_seconds=timeout_seconds)
        self.stop()
        return completed

    def checkpoint_statistics(self) -> Overview:
        """What is known of the job's checkpoints: counts, summaries, and the newest ones in all detail.

        Raises:
            JobClosed: the job has ended.
            StoreUnavailable: the storage hangs.
        """
        self._check_open()
        try:
            return self._driver.checkpoints.overview()
        except JobClosed:
            raise self._driver.closed_error() from None

    def stop(self, grace_seconds: float = _STOP_SECONDS) -> None:
        """Stop every query at the end of its running epoch, after ``grace_seconds`` in the middle of it; then end the
        job.

        Either way nothing is lost or done twice: an epoch that was cut off is run again by the next driver. May be
        called more than once and from any thread; every call returns when the job has ended, but in a coordinator's
        callback at once: the job cannot end before the callback does.
        """
        if self._driver.thread.is_current():
            threading.Thread(target=self.stop, args=(grace_seconds,), name="coord-stop", daemon=True).start()
            return
        deadline = time.monotonic() + grace_seconds
        with self._driver.turns:  # a query that is just being started is stopped as well
            if self._driver.closed.is_set():
                return
            self._driver.lost_supervisor = shutdown.lost_supervisor()
            self._driver.checkpoints.close(CLOSE_SECONDS)
            stop_queries(list(self._driver.queries.values()), deadline)
            try:
                self._driver.close()
                if self._plane is not None:
                    self._plane.close(self._driver)
                if self._metrics is not None:
                    self._metrics.close()
            finally:
                # Last: a SIGTERM would end the process at once, without the last records and the command's outcome.
                shutdown.unregister(self.stop, on_command=self._driver.is_ended_by_command)
        with self._driver.changed:
            self._driver.changed.notify_all()

    def status(self) -> JobStatus:
        """What the job does now.

        Raises:
            JobClosed: the job has ended.
        """
        return self._driver.status()

    @property
    def metrics_address(self) -> str | None:
        """Where its metrics are served, as ``host:port``; None: nowhere."""
        return None if self._metrics is None else self._metrics.address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An exit or an interrupt is a request to stop.
        if isinstance(error, Exception) and not isinstance(error, SystemExit):
            self._driver.program_error = error
        self.stop()

    # Parts.

    def _all_declared(self) -> None:
        with self._driver.turns:
            if not self._driver.closed.is_set():
                self._starts.all_declared()

    def _submit(self, request: CheckpointRequest) -> CheckpointHandle:
        self._check_open()
        self._all_declared()
        self._driver.checkpoints.begin()
        return self._driver.checkpoints.submit(request)

    def _check_open(self) -> None:
        self._driver.check_open()

    def _start(self, name: str, writer: DataStreamWriter, checkpoint_location: str | None) -> StreamingQuery:
        self._check_open()
        query_name = QueryName(name)
        if not is_valid_name(name):
            raise InvalidName("query", name)
        if self._starts.is_known(query_name):
            raise DuplicateOperator("query", name)
        operators = self._driver.declared.in_query(writer, query_name)
        if checkpoint_location is not None:
            checkpoint_location = self._driver.reachable(checkpoint_location)
        return self._starts.start(QueryStart(query_name, writer, operators, checkpoint_location))


def _control_plane(url: str | None) -> ControlPlane | None:
    settings = ControlSettings.load(url)
    if settings.is_off:
        return None
    # It imports SQLAlchemy, which takes half a second, so a job without a control plane does not import it.
    from coord_control.spark.job.control_plane import ControlPlane

    return ControlPlane.of(settings)
