"""The job: its operators, its queries and the generation of this driver.

Starting a job first claims the next generation, then waits for a predecessor that may still be alive, and opens the
endpoint. Starting a query recovers its operators from durable facts and starts it in Spark.

Threads: the job's methods may be called from any thread; starting a query and stopping the job exclude each other. The
threads of a running job belong to :mod:`coord_control.spark.job.job_driver`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.coordinators.contract import OperatorCoordinator
from coord_control.coordinators.requests import Request
from coord_control.errors import (
    CheckpointNotCompleted,
    InvalidName,
    JobClosed,
    JobRootMismatch,
    JobStopRequested,
    OperatorUnused,
)
from coord_control.ids import CheckpointKind, QueryName, is_valid_name
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.statistics_history import Overview
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.status import JobStatus
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
from coord_control.spark.checkpoints.stop_first import STOP_SECONDS
from coord_control.spark.hadoop_files import absolute
from coord_control.spark.job.agent_port import AgentPort, PortParts
from coord_control.spark.job.control_plane_choice import control_plane
from coord_control.spark.job.job_driver import DriverSettings, JobDriver
from coord_control.spark.job.job_end import JobEnd, OnStop, check_on_stop
from coord_control.spark.job.job_metrics import JobMetrics
from coord_control.spark.job.job_outside import JobOutside
from coord_control.spark.job.job_restore import JobRestore, requested_restore
from coord_control.spark.job.operator_handle import Operator
from coord_control.spark.job.program_check import root_of
from coord_control.spark.job.query_starts import QueryStart
from coord_control.spark.job.rescale import RescaleFunction
from coord_control.spark.live.live_handle import Live, Model
from coord_control.spark.queries.restart_policy import RestartPolicy
from coord_control.spark.session import require_classic, require_operators, use_this_interpreter

__all__ = ["Job"]


class Job:
    """A long-running job: a name, operators, queries.

    Use it as a context manager; the job ends with the block. Then its methods raise JobClosed, or JobEndRequested if a
    command or SIGTERM ended the job, which ends the program without an error.

        with cc.Job("flights", spark, root=".../jobs") as job:
            operator = job.operator("delay-threshold", AdaptiveThreshold(), parallelism=4,
                                    state=CarrierState, down=[Threshold], up=[Report])
            scored = operator.apply(flights, score, schema="...", partition_by=["carrier"])
            job.start("alerts", scored.writeStream.format("parquet").option("path", ...))
            job.await_termination()

    Args:
        name: job name; identifies its state and cannot change.
        spark: a classic session (not Spark Connect); the coordinators live in its driver.
        root: folder for the state of all jobs, on any file system that Spark can write.
        port: where subtasks reach the driver: 0 for any free port, a number, or a range to choose from.
        bind_address: local address to listen at; by default ``spark.driver.bindAddress``.
        advertised_port: the port at which executors reach it on ``spark.driver.host``, if it differs from ``port``:
            behind a port mapping or a proxy.
        tls: encrypt the connections of subtasks; by default unless the master is local.
        restart: how failed queries are restarted in place.
        snapshot_timeout_seconds: how long a coordinator may take to give its state.
        slow_callback_seconds: log callbacks of coordinators that take longer.
        checkpoints: interval, timeout and retention of periodic checkpoints; by default none are taken unless
            requested.
        restore_from: the checkpoint or savepoint to restore, of this or another job: an id, a label, ``latest``, or a
            path. Default: ``COORD_RESTORE_FROM``, set by ``coordctl run --restore-from``. It is applied once (also
            ``latest``): later drivers resume where the job stands, even if the job was restored to another checkpoint
            since, or the checkpoint is gone; ``coordctl restore`` applies it again. The restore takes place once the
            program has started every query of the checkpoint and all of them match; until then nothing is changed and
            no query runs.
        allow_non_restored_state: let the program leave out queries and operators of the checkpoint, or add some, which
            begin empty. If queries are left out, the restore takes place when the program waits for the job's end or
            requests a checkpoint.
        allow_missing_input: restore although files that a source would read again are gone; their rows are lost.
        roll_back_sinks: set the sinks of all queries back to the checkpoint too, before a query starts
            (docs/operations/tables.md).
        accept_skipped_epochs: restore although a sink skips epochs that it has received; what they now produce
            differently is lost.
        control: the control database: ``sqlite:///path``, ``postgresql://user@host/name``, or ``none``. Default:
            ``COORD_CONTROL``, otherwise the user's embedded database. A job also runs while its database is
            unreachable.
        metrics: where to serve metrics for Prometheus (docs/metrics.md): ``HOST:PORT``, or ``none``. Default:
            ``COORD_METRICS``, otherwise port 9404 of the loopback interface, or a free port if that is in use.
        on_stop: with ``savepoint``, a SIGTERM, or the end of the supervisor, takes a savepoint (label
            ``stop-GENERATION``) before the job ends, and nothing is processed after it. If it is not complete within
            the grace period, the job ends without it, with a warning. A command, an error, and the end of the program
            take none.

    Raises:
        CheckpointNotFound: ``restore_from`` matches no checkpoint, or several.
        RestoreRefused: the checkpoint cannot be restored; nothing was changed.
        InvalidName: ``name`` is invalid.
        SparkConnectUnsupported: ``spark`` is not a classic session.
        Fenced: another driver was faster.
        StoreUnavailable: ``root`` is not writable.
        EndpointNotBound: no port is free.
        ControlSettingsInvalid, DatabaseUrlInvalid, DatabaseDriverMissing: ``control`` is invalid.
        MetricsAddressInvalid: ``metrics`` is not an address.
        JobStopRequested: a stop was requested, but the last driver died before it stopped; the job is stopped now.
        JobRootMismatch: ``root`` is new, but the control database has a history of ``name``; it is kept.
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
        roll_back_sinks: bool = False,
        accept_skipped_epochs: bool = False,
        control: str | None = None,
        metrics: str | None = None,
        on_stop: OnStop = "stop",
    ) -> None:
        if not is_valid_name(name):
            raise InvalidName("job", name)
        check_on_stop(on_stop)
        self.name = name
        plane = control_plane(control)
        self._metrics = JobMetrics.of(metrics)
        require_classic(spark)
        use_this_interpreter(spark)
        self._spark = spark
        root = root_of(name, root)
        request = requested_restore(
            restore_from,
            allow_non_restored_state=allow_non_restored_state,
            allow_missing_input=allow_missing_input,
            roll_back_sinks=roll_back_sinks,
            accept_skipped_epochs=accept_skipped_epochs,
        )
        restore = None if request is None else JobRestore.wanted(name, spark, root, request)
        self._driver = driver = JobDriver(
            name,
            spark,
            root,
            DriverSettings(
                port=port,
                bind_address=bind_address,
                advertised_port=advertised_port,
                tls=tls,
                restart=restart or RestartPolicy(),
                snapshot_timeout_seconds=snapshot_timeout_seconds,
                slow_callback_seconds=slow_callback_seconds,
                checkpoints=checkpoints or CheckpointOptions(),
            ),
            restore=restore,
            stop=self.stop,
        )
        self.generation = driver.generation
        self._life, self._declared, self._checkpoints = driver.life, driver.declared, driver.checkpoints
        self._port = AgentPort(
            driver.facts(),
            driver,
            PortParts(
                place=driver.place,
                claim=driver.claim,
                life=driver.life,
                queries=driver.queries,
                declared=driver.declared,
                checkpoints=driver.checkpoints,
                news=driver.news,
                metrics=self._metrics,
                live=driver.live,
            ),
        )
        outside = JobOutside(driver, self._port, plane=plane, metrics=self._metrics)
        self._end = JobEnd(driver, self._port, outside, on_stop)
        self._end.listen()
        try:
            outside.open()
        except (JobRootMismatch, JobStopRequested) as error:
            self._life.is_ended_by_command = isinstance(error, JobStopRequested)
            self.stop()
            raise

    def operator(
        self,
        uid: str,
        coordinator: OperatorCoordinator,
        *,
        parallelism: int,
        state: type[BaseModel],
        down: Sequence[type[BaseModel]] = (),
        up: Sequence[type[BaseModel]] = (),
        requests: Sequence[type[Request[Any]]] = (),
        rescale: RescaleFunction | None = None,
        wake: bool = False,
    ) -> Operator:
        """Declare an operator.

        Args:
            uid: its name in this job; identifies its state and cannot change.
            coordinator: its coordinator; use one object per operator.
            parallelism: number of subtasks; fixed once the operator has run, except by a restore with ``rescale``.
            state: pydantic model of a subtask's state, default constructible, at most 1 MiB as JSON.
            down: models of the events coordinator -> subtask. Append new ones; never reorder or remove used ones.
            up: models of the events subtask -> coordinator, likewise.
            requests: what the coordinator answers (``handle_request``), as subclasses of :class:`Request`; may change.
            rescale: ``rescale(subtasks, parallelism)`` makes a list of ``parallelism`` :class:`SubtaskSnapshot` (state,
                waiting events) of those of the old subtasks, when a restored operator gets another parallelism. Events
                in transit from an old subtask arrive as events of subtask ``old % parallelism``.
            wake: events that wait for a subtask without rows get a separate epoch. Fixed once it has run.

        Raises:
            DeclarationError: the declaration is invalid (InvalidName, DuplicateOperator, InvalidModel).
            SparkTooOld: operators need Spark 4.1 or newer.
            JobClosed: the job has ended.
        """
        self._life.check_open()
        require_operators(uid, self._spark.version)
        return self._declared.operator(uid, coordinator, parallelism, state, down, up, rescale, requests, wake=wake)

    def live(self, name: str, default: Model) -> Live[Model]:
        """Declare a live value: its fields are columns whose values can be changed while queries run (:class:`Live`).

        Args:
            name: its name in this job; letters, digits and ``_``.
            default: a pydantic model; what a new job begins with. Fields are bool, int, float, str, date or datetime.

        Raises:
            LiveModelInvalid: it cannot be declared like this, or a query has been started already.
            JobClosed: the job has ended.
        """
        self._life.check_open()
        return Live(self._driver.live.declare(name, default), self._driver.live)

    def start(
        self, name: str, writer: DataStreamWriter, *, table: str | None = None, checkpoint_location: str | None = None
    ) -> StreamingQuery:
        """Start a query with its operators; it resumes where it ended.

        During a stop with savepoint the call waits; the query starts if the savepoint fails.

        Args:
            name: its name in this job; cannot change. Its name in Spark is ``JOB:NAME``, with a memory sink ``NAME``.
            writer: a configured ``df.writeStream``; the checkpoint location is set here.
            table: write to this table (``catalog.schema.table``), as ``writer.toTable(table)`` does. Spark creates it
                if necessary. Set format, output mode, partitioning and options on the writer.
            checkpoint_location: an existing Spark checkpoint directory to adopt, on the same storage as the job's
                root; by default one below the root. The query that used it before must have ended.

        Returns:
            Spark's handle of the query's current run; a restart in place makes a new one. While a restored job waits
            for other queries, using the handle raises QueryNotStarted.

        Raises:
            InvalidName, DuplicateOperator, OperatorReused: the declaration is invalid.
            OperatorsChanged, ParallelismChanged, WakeChanged, EventTypesChanged, LineageMismatch: it has run otherwise.
            RestoreRefused, NonRestoredState, RescaleFailed: it does not match the restored checkpoint; no query of the
                job has run, and the restore was not applied or can be undone.
            PlanRefused: Spark rejects its plan, in a restored job whose other queries have run.
            QueryNotRestored: the job was just restored from a checkpoint without this query.
            CheckpointLocationConflict: the writer, or the session, sets a checkpoint location that would be ignored.
            NotACheckpoint, AdoptedQueryRunning: ``checkpoint_location`` cannot be adopted.
            DamagedRecord, MissingRecord, UnsupportedFormat: stored records are unusable; nothing was started.
            JobClosed: the job has ended.
        """
        with self._life.turn_to_start():
            return self._start(name, writer, table, checkpoint_location)

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all queries have ended; return False on timeout.

        Raises:
            QueryFailed: a query failed permanently; the others are stopped.
            Fenced: a newer driver owns the job.
            OperatorUnused: an operator was declared, but no started query uses it.
            RestoredQueryUnused: a query of the restored checkpoint was not started; nothing has run.
        """
        if not self._life.is_closed:
            if unused := self._declared.unused():
                raise OperatorUnused(unused[0])
            self._all_declared()
        self._checkpoints.begin()
        ended = self._life.wait_for(self._driver.has_ended, timeout_seconds)
        if error := self._driver.first_error():
            self.stop(STOP_SECONDS)
            raise error
        return ended

    def trigger_checkpoint(self, *, key: str | None = None, label: str | None = None) -> CheckpointHandle:
        """Request a checkpoint of all queries: consistent, incremental, subject to retention. Return at once.

        Its boundary in each query is the end of the running epoch; the last commit if no epoch is running, or the query
        has no operators.

        Args:
            key: makes the request idempotent: the same key returns the same checkpoint, even after a restart.
            label: a name to find it by.

        Raises:
            InvalidName: ``label`` cannot be used.
        """
        return self._submit(CheckpointRequest(key=key, label=label, cause="api"))

    def trigger_savepoint(
        self, *, target: str | None = None, key: str | None = None, label: str | None = None
    ) -> CheckpointHandle:
        """Request a savepoint of all queries: self-contained, portable, kept until disposed of. Return at once.

        Args:
            target: its folder, which must be empty or not exist; by default one in the job's folder.
            key, label: as in :meth:`trigger_checkpoint`.

        Raises:
            InvalidName: ``label`` cannot be used.
        """
        target = target if target is None else absolute(target)
        request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target=target, key=key, label=label, cause="api")
        return self._submit(request)

    def stop_with_savepoint(
        self,
        *,
        target: str | None = None,
        key: str | None = None,
        label: str | None = None,
        drain: bool = False,
        timeout_seconds: float = 600.0,
    ) -> CompletedCheckpoint:
        """Take a savepoint after which nothing more is processed, and end the job.

        Every query pauses at the end of its running epoch while the savepoint is taken.

        Args:
            target, key, label: as in :meth:`trigger_savepoint`. The key of an earlier savepoint is refused if anything
                was processed or restored since.
            drain: let every query read what its sources have now, before it pauses (docs/operations.md).
            timeout_seconds: limit for draining, the running epochs and the savepoint together, instead of that of the
                job's checkpoint options. Nothing is processed while the savepoint is taken.

        Raises:
            CheckpointNotCompleted: the savepoint failed; the job keeps running.
            TimeoutError: the savepoint did not complete in time; the job keeps running.
            JobEndRequested: a command or SIGTERM ended the job before.
        """
        target = target if target is None else absolute(target)
        cause = "stop with savepoint"
        request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target=target, key=key, label=label, cause=cause)
        self._life.check_open()
        self._all_declared()
        try:
            tell = self._driver.tell if drain else None
            completed = self._port.savepoint_and_pause(request, tell_draining=tell, timeout_seconds=timeout_seconds)
        except CheckpointNotCompleted as failed:
            if failed.reason == FailureReason.JOB_ENDING.code and (error := self._life.end_error()) is not None:
                raise error from failed
            raise
        self.stop()
        return completed

    def checkpoint_statistics(self) -> Overview:
        """Return statistics of the job's checkpoints: counts, summaries, and details of the newest ones.

        Raises:
            JobClosed: the job has ended.
            StoreUnavailable: the storage hangs.
        """
        self._life.check_open()
        try:
            return self._checkpoints.overview()
        except JobClosed:
            raise self._life.closed_error() from None

    def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """Stop every query at the end of its running epoch, then end the job.

        After ``grace_seconds`` a running epoch is interrupted. Nothing is lost or done twice: the next driver runs it
        again. May be called more than once and from any thread; returns when the job has ended, but in a coordinator's
        callback at once, because the job cannot end before the callback does.

        Raises:
            KeyboardInterrupt: the program was interrupted meanwhile; the job has ended. A second interrupt is raised at
                once.
        """
        self._end.stop(grace_seconds)

    def status(self) -> JobStatus:
        """Return the current state of the job.

        Raises:
            JobClosed: the job has ended.
        """
        return self._driver.status()

    @property
    def metrics_address(self) -> str | None:
        """The address at which its metrics are served, as ``host:port``; None if they are not served."""
        return None if self._metrics is None else self._metrics.address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.leave(error)

    def _all_declared(self) -> None:
        with self._life.turns:
            if not self._life.is_closed:
                self._driver.starts.all_declared()

    def _submit(self, request: CheckpointRequest) -> CheckpointHandle:
        self._life.check_open()
        self._all_declared()
        self._checkpoints.begin()
        return self._checkpoints.submit(request, self._life.end_error)

    def _start(
        self, name: str, writer: DataStreamWriter, table: str | None, checkpoint_location: str | None
    ) -> StreamingQuery:
        self._life.check_open()
        query_name = QueryName(name)
        self._driver.starts.check_name(query_name)
        operators = self._declared.in_query(writer, query_name)
        if checkpoint_location is not None:
            checkpoint_location = self._driver.place.reachable(checkpoint_location)
        return self._driver.starts.start(QueryStart(query_name, writer, operators, checkpoint_location, table))
