"""The job: one driver's generation, its operators and its queries. This is where everything is put together.

Starting a job claims the next generation before anything else, waits for a predecessor that may still be alive, and
opens the endpoint; starting a query recovers its operators from durable facts and hands over to Spark.

Threads: the job's methods may be called from any thread; starting a query and stopping the job take turns. What runs
inside is listed in :mod:`coord_control.spark.runtime`, besides one thread per query
(:mod:`coord_control.spark.query`) and one that watches the generation and slow callbacks.

Stopping, in order: every query at the end of its running epoch (or at the deadline), coordinators are closed, the
writer has written, the endpoint closes, the generation is released.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.coordinators.contract import OperatorCoordinator
from coord_control.durable.epoch_store import EpochStore
from coord_control.durable.files import LocalFiles, join
from coord_control.durable.lineage import Lineage, OperatorRecord, open_lineage
from coord_control.errors import (
    CoordControlError,
    DeclarationError,
    DuplicateOperator,
    Fenced,
    InvalidName,
    JobClosed,
    OperatorReused,
    OperatorUnused,
    StoreError,
)
from coord_control.ids import Epoch, OperatorUid, QueryName, is_valid_name
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import EpochSettled
from coord_control.protocol.operator import OperatorSpec
from coord_control.protocol.records import Record
from coord_control.spark import shutdown
from coord_control.spark.coordinator_thread import BoundCoordinator, CoordinatorThread
from coord_control.spark.hadoop_files import files_for
from coord_control.spark.models import EventTypes, StateType
from coord_control.spark.operator import Operator, operators_in_plan
from coord_control.spark.progress import ProgressListener
from coord_control.spark.query import ManagedQuery, RestartPolicy
from coord_control.spark.runtime import JobRuntime
from coord_control.spark.session import advertised_host, is_local, retained_epochs, use_this_interpreter
from coord_control.spark.session import bind_address as spark_address
from coord_control.spark.status import JobStatus, QueryStatus, operator_statuses
from coord_control.spark.subtask import TaskPlan
from coord_control.spark.takeover import take_over

__all__ = ["Job"]

_log = logging.getLogger("coord_control.job")

# A driver that has lost its claim must notice within this time; its successor waits longer (see takeover).
_WATCH_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
_DRAIN_SECONDS: Final = 10.0


class Job:
    """A long-running job: a name, operators, queries.

    ::

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
        tls: encrypt the connections of subtasks; by default unless the master is local.
        restart: how failed queries are restarted in place.
        snapshot_timeout_seconds: how long a coordinator may take to give its state.
        slow_callback_seconds: a callback of a coordinator that takes longer is reported.

    Raises:
        InvalidName: ``name`` cannot be used.
        Fenced: another driver was faster.
        StoreUnavailable: ``root`` cannot be written.
        EndpointNotBound: no port is free.
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        *,
        root: str,
        port: int | range = 0,
        bind_address: str | None = None,
        tls: bool | None = None,
        restart: RestartPolicy | None = None,
        snapshot_timeout_seconds: float = 60.0,
        slow_callback_seconds: float = 1.0,
    ) -> None:
        if not is_valid_name(name):
            raise InvalidName("job", name)
        self.name = name
        self._spark = spark
        use_this_interpreter(spark)
        self._policy = restart or RestartPolicy()
        self._snapshot_timeout = snapshot_timeout_seconds
        root = _absolute(root)
        self._files = files_for(root, spark)
        self._folder = join(root, name)
        self._claim = take_over(self._files, self._folder, spark)
        self.generation = self._claim.generation
        self._operators: dict[OperatorUid, Operator] = {}
        self._coordinators: dict[OperatorUid, BoundCoordinator] = {}
        self._queries: dict[QueryName, ManagedQuery] = {}
        self._owner: dict[OperatorUid, QueryName] = {}
        self._error: CoordControlError | None = None
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._close_lock = threading.RLock()  # again by a signal handler that stops the job while it starts a query
        with contextlib.ExitStack() as opened:  # what was opened is closed in reverse, also when the rest of it fails
            opened.callback(self._release)
            self._runtime = JobRuntime(
                JobCore(self.generation),
                self._coordinators,
                tls=not is_local(str(spark.sparkContext.master)) if tls is None else tls,
                append=self._append,
                verify=self._verify,
                query_failed=self._query_failed,
                fenced=self._fenced,
                settled=self._settled,
            )
            self._endpoint = self._runtime.endpoint
            opened.callback(self._runtime.close, JobClosed(name))
            self._endpoint.start(bind_address or spark_address(spark), port, advertise=advertised_host(spark))
            self._runtime.start()
            opened.callback(self._runtime.writer.close, _CLOSE_SECONDS)
            self._thread = CoordinatorThread(slow_callback_seconds)
            self._thread.start()
            opened.callback(self._thread.close, _CLOSE_SECONDS)
            opened.callback(ProgressListener(spark, self._heard).close)
            self._opened = opened.pop_all()
        threading.Thread(target=self._watch, name="coord-watch", daemon=True).start()
        shutdown.register(self.stop)
        _log.info("= job %s generation %d", name, self.generation, extra={"action": "job_started", "job": name})

    def operator(
        self,
        uid: str,
        coordinator: OperatorCoordinator,
        *,
        parallelism: int,
        state: type[BaseModel],
        down: Sequence[type[BaseModel]] = (),
        up: Sequence[type[BaseModel]] = (),
    ) -> Operator:
        """Declare an operator.

        Args:
            uid: its name in this job, for ever: state is found by it.
            coordinator: its coordinator; one object serves one operator.
            parallelism: number of subtasks; fixed once the operator has run.
            state: pydantic model of a subtask's state, default constructible, at most 1 MiB as JSON.
            down: models of the events coordinator -> subtask. New ones go behind the ones that have been used.
            up: models of the events subtask -> coordinator, likewise.

        Raises:
            DeclarationError: the declaration cannot be used (InvalidName, DuplicateOperator, InvalidModel).
            JobClosed: the job has ended.
        """
        self._check_open()
        if not is_valid_name(uid):
            raise InvalidName("operator", uid)
        operator_uid = OperatorUid(uid)
        if operator_uid in self._operators:
            raise DuplicateOperator("operator", uid)
        if used := next((bound.uid for bound in self._coordinators.values() if bound.coordinator is coordinator), None):
            raise DeclarationError(f"operators {used!r} and {uid!r} share a coordinator; make one for each operator")
        if parallelism < 1:
            raise ValueError(f"operator {uid!r}: parallelism is {parallelism}, it must be at least 1")
        down_types, up_types = EventTypes(uid, "down", down), EventTypes(uid, "up", up)
        state_type = StateType(uid, state)
        bound = BoundCoordinator(
            operator_uid, coordinator, parallelism, down_types, up_types, self._thread, self._runtime.post
        )
        spec = OperatorSpec(
            uid=operator_uid,
            parallelism=parallelism,
            observes_attempts=bound.observes_attempts,
            snapshot_timeout_seconds=self._snapshot_timeout,
        )
        plan = TaskPlan(
            self._endpoint.address, self.generation, operator_uid, parallelism, state_type, down_types, up_types
        )
        operator = self._operators[operator_uid] = Operator(spec, plan)
        self._coordinators[operator_uid] = bound
        return operator

    def start(self, name: str, writer: DataStreamWriter, *, checkpoint_location: str | None = None) -> StreamingQuery:
        """Start a query, with any operators that are part of it, where it stood when it ended.

        Args:
            name: its name in this job, for ever.
            writer: a configured ``df.writeStream``; the checkpoint location is set here.
            checkpoint_location: an existing Spark checkpoint directory to adopt, on the same storage as the job's
                root; managed under the root when left out.

        Returns:
            Spark's handle of the query's current run; after a restart in place it is another one.

        Raises:
            InvalidName, DuplicateOperator, OperatorReused: the declaration cannot be used.
            OperatorsChanged, ParallelismChanged, EventTypesChanged, LineageMismatch: it does not fit what has run.
            DamagedRecord, MissingRecord, UnsupportedFormat: what is stored cannot be used; nothing was started.
            JobClosed: the job has ended.
        """
        with self._close_lock:  # a stop waits for a query that is just being started, and then stops it as well
            return self._start(name, writer, checkpoint_location)

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all queries have ended. False: they have not within the time.

        Raises:
            QueryFailed: a query failed for good; the others are stopped.
            Fenced: a newer driver owns the job.
            OperatorUnused: an operator was declared and is part of no started query.
        """
        if not self._closed.is_set() and (unused := sorted(set(self._operators) - set(self._owner))):
            raise OperatorUnused(unused[0])
        with self._changed:
            ended = self._changed.wait_for(self._has_ended, timeout_seconds)
        if error := self._first_error():
            self.stop(_STOP_SECONDS)
            raise error
        return ended

    def stop(self, grace_seconds: float = _STOP_SECONDS) -> None:
        """Stop every query at the end of its running epoch, after ``grace_seconds`` in the middle of it; then end the
        job.

        Either way nothing is lost or done twice: an epoch that was cut off is run again by the next driver. May be
        called more than once and from any thread; every call returns when the job has ended, but in a coordinator's
        callback at once: the job cannot end before the callback does.
        """
        if self._thread.is_current():
            threading.Thread(target=self.stop, args=(grace_seconds,), name="coord-stop", daemon=True).start()
            return
        deadline = time.monotonic() + grace_seconds
        with self._close_lock:
            if self._closed.is_set():
                return
            stops = [
                threading.Thread(target=query.request_stop, args=(deadline,), daemon=True)
                for query in self._queries.values()
            ]
            for thread in stops:
                thread.start()
            for query, thread in zip(self._queries.values(), stops, strict=True):
                thread.join(max(0.0, deadline - time.monotonic()) + _CLOSE_SECONDS)
                query.join(_CLOSE_SECONDS)
            self._close()
        with self._changed:
            self._changed.notify_all()

    def status(self) -> JobStatus:
        """What the job does now.

        Raises:
            JobClosed: the job has ended.
        """
        self._check_open()
        operators = self._runtime.call(lambda core, now: operator_statuses(core, dict(self._owner), now))
        queries = tuple(
            QueryStatus(
                query.name, query.state.value, query.last_committed, query.restarts, query.last_failure, query.progress
            )
            for query in list(self._queries.values())
        )
        slow, writes = self._thread.slow_callbacks, self._runtime.writer.writes
        return JobStatus(self.name, self.generation, queries, operators, slow, writes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Parts.

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed.is_set():
            raise JobClosed(self.name)

    def _start(self, name: str, writer: DataStreamWriter, checkpoint_location: str | None) -> StreamingQuery:
        self._check_open()
        query_name = QueryName(name)
        if not is_valid_name(name):
            raise InvalidName("query", name)
        if query_name in self._queries:
            raise DuplicateOperator("query", name)
        operators = self._operators_of(writer, query_name)
        records = {uid: self._record(uid) for uid in operators}
        folder = join(self._folder, "queries", name)
        if checkpoint_location is not None:
            checkpoint_location = self._reachable(checkpoint_location)
        lineage = open_lineage(self._files, folder, query_name, records, checkpoint_location)
        writer = writer.queryName(name).option("checkpointLocation", lineage.checkpoint)
        query = self._managed(query_name, writer, lineage, operators)
        self._runtime.call(lambda core, now: core.add_query(query_name, lineage.query_id, self._specs(operators)))
        self._queries[query_name] = query
        for uid in operators:
            self._owner[uid] = query_name
        try:
            query.start()
        except BaseException:  # it may be corrected and started again
            del self._queries[query_name]
            for uid in operators:
                del self._owner[uid]
            raise
        return query.spark_query

    def _reachable(self, location: str) -> str:
        location = _absolute(location)
        if isinstance(self._files, LocalFiles) and not isinstance(files_for(location, self._spark), LocalFiles):
            raise DeclarationError(
                f"checkpoint_location {location} is on another storage than the job's root {self._folder}; choose a "
                "root on the storage of the checkpoint"
            )
        return location

    def _operators_of(self, writer: DataStreamWriter, query: QueryName) -> list[OperatorUid]:
        found = [OperatorUid(uid) for uid in sorted(operators_in_plan(writer._df))]
        for uid in found:
            if uid not in self._operators:
                raise OperatorReused(uid, "another job", f"query {query!r}")
            if uid in self._owner:
                raise OperatorReused(uid, f"query {self._owner[uid]!r}", f"query {query!r}")
        return found

    def _specs(self, operators: Sequence[OperatorUid]) -> list[OperatorSpec]:
        return [self._operators[uid].spec for uid in operators]

    def _record(self, uid: OperatorUid) -> OperatorRecord:
        plan = self._operators[uid].plan
        return OperatorRecord(
            parallelism=plan.parallelism,
            state=plan.state.model.__qualname__,
            down=tuple(model.__qualname__ for model in plan.down.models),
            up=tuple(model.__qualname__ for model in plan.up.models),
        )

    def _managed(
        self, name: QueryName, writer: DataStreamWriter, lineage: Lineage, operators: Sequence[OperatorUid]
    ) -> ManagedQuery:
        store = None
        if operators:
            store = EpochStore(self._files, lineage.epochs, self.generation, retained_epochs(self._spark))
        return ManagedQuery(
            name,
            writer,
            lineage,
            store,
            self._files,
            self._runtime,
            self._policy,
            started=lambda: self._start_coordinators(operators),
            settled=lambda: self._drain_coordinators(operators),
            ended=self._query_ended,
            verify=self._verify,
        )

    def _drain_coordinators(self, operators: Sequence[OperatorUid]) -> None:
        if operators and not self._thread.drain(_DRAIN_SECONDS):
            _log.warning("a coordinator has not seen the last events of its query within %g s", _DRAIN_SECONDS)

    def _start_coordinators(self, operators: Sequence[OperatorUid]) -> None:
        if self._error is not None:  # fenced while the query was between two runs
            raise self._error
        for uid in operators:
            self._coordinators[uid].start()

    def _has_ended(self) -> bool:
        return (
            self._closed.is_set()
            or self._first_error() is not None
            or not any(query.is_active for query in list(self._queries.values()))
        )

    def _first_error(self) -> CoordControlError | None:
        return self._error or next((query.error for query in list(self._queries.values()) if query.error), None)

    def _query_ended(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _close(self) -> None:
        self._closed.set()
        shutdown.unregister(self.stop)
        for coordinator in self._coordinators.values():
            coordinator.close()
        try:
            self._opened.close()
        except StoreError as error:  # the claim's release; the next driver then looks for our processes instead
            _log.warning("= job %s: %s", self.name, error)
        _log.info("x job %s generation %d", self.name, self.generation, extra={"action": "job_ended", "job": self.name})

    def _release(self) -> None:
        # A query that has not ended may still commit an epoch, which a driver that recovers meanwhile would not see.
        if any(query.is_active for query in self._queries.values()):
            _log.warning("= job %s: a query has not ended in time; the next driver waits for this one's end", self.name)
            return
        self._claim.release()

    # Called by the runtime and by the writer.

    def _append(self, query: QueryName, records: Sequence[Record]) -> None:
        store = self._queries[query].store
        assert store is not None, "only queries with operators have records"
        store.append(records)

    def _verify(self) -> None:
        if not self._claim.is_current():
            error = Fenced(self.name, self.generation)
            self._fenced(error)
            raise error

    def _query_failed(self, query: QueryName, error: CoordControlError) -> None:
        if (managed := self._queries.get(query)) is not None:
            managed.fail(error)

    def _fenced(self, error: Fenced) -> None:
        if self._error is None:
            self._error = error
            _log.error("x %s", error, extra={"action": "fenced", "job": self.name})
        for query in list(self._queries.values()):
            query.fail(error)
        with self._changed:
            self._changed.notify_all()

    def _settled(self, epoch: EpochSettled) -> None:
        if epoch.nondeterministic_subtasks:
            _log.warning(
                "operator %s: %d subtasks gave different results for the same input in epoch %d; exactly-once needs "
                "functions that "
                "depend on their rows, state and events only",
                epoch.operator,
                epoch.nondeterministic_subtasks,
                epoch.epoch,
            )

    def _heard(self, query_id: str, epoch: int, progress: dict[str, Any]) -> None:
        for query in list(self._queries.values()):
            if query.lineage.query_id == query_id:
                query.committed(Epoch(epoch), progress)

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH_SECONDS):
            if (slow := self._thread.slow()) is not None:
                _log.warning(
                    "the coordinator of operator %s has been in %s for %.1f s; every coordinator of the job waits "
                    "for it: move slow work "
                    "to context.run_in_background",
                    slow.operator,
                    slow.callback,
                    slow.seconds,
                )
            try:
                current = self._claim.is_current()
            except CoordControlError as error:
                _log.warning("the generation cannot be checked: %s", error)
                continue
            if not current:
                self._fenced(Fenced(self.name, self.generation))
                self.stop()  # now: the driver after us waits until we say that we have ended
                return


def _absolute(path: str) -> str:
    return path if ":" in path else os.path.abspath(path)
