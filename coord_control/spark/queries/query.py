"""One query of a job: started, watched, restarted in place, stopped at the end of an epoch.

A failed batch ends Spark's StreamingQuery, not the driver: the operators recover from durable facts and the same
writer is started again, in the same JVM, with capped exponential back-off. An epoch that is committed in between
resets the count; too many restarts without one end the query for good, with the error that ended it.

A query that is to stop or to pause ends at the end of its epoch (:mod:`.epoch_end`). While it pauses, Spark runs
nothing of it and its operators stay open in the core: their coordinators keep running, and a savepoint takes them as
they are. When the pause is over, Spark is started again on the same operators; nothing was lost that they would have to
recover.

One thread per query waits for Spark; nothing here runs on the loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import last_commit, spark_position
from coord_control.errors import (
    CommitUnknown,
    CoordControlError,
    DamagedRecord,
    Fenced,
    QueryFailed,
    SparkLost,
    UnsupportedOption,
)
from coord_control.ids import NO_EPOCH, Epoch, RunId
from coord_control.protocol.query_state import (
    FOLLOWS,
    WISHES,
    QueryInput,
    QueryState,
    RunEnd,
    Wish,
    WishInput,
    next_state,
    shall_wait,
)
from coord_control.protocol.records import Record
from coord_control.protocol.recovery import Facts
from coord_control.protocol.status import QueryStatus
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.batch_counts import BatchCounts
from coord_control.spark.queries.epoch_end import end_after_epoch
from coord_control.spark.queries.own_commits import OwnCommits
from coord_control.spark.queries.query_spec import QueryDefinition, QueryOwner
from coord_control.spark.queries.recovery_log import RecoveryLog
from coord_control.spark.queries.restart_policy import explained, may_retry, not_reported
from coord_control.spark.queries.writers import start_run

__all__ = ["ManagedQuery"]

_log = logging.getLogger("coord_control.query")

_POLL_SECONDS: Final = 0.05


class ManagedQuery:
    """One started query."""

    def __init__(
        self, spec: QueryDefinition, owner: QueryOwner, *, files: Files, runtime: JobRuntime, recoveries: RecoveryLog
    ) -> None:
        self.name = spec.name
        self.lineage = spec.lineage
        self.store = spec.store
        self.operators = spec.operators
        self.state = QueryState.RUNNING
        self.error: QueryFailed | None = None
        self.restarts = 0  #: in all
        self.last_failure: str | None = None
        self.last_committed = NO_EPOCH
        self._counts = BatchCounts()
        self._writer = spec.writer
        self._target = spec.target
        self._policy = spec.policy
        self._sink = spec.sink
        self._owner = owner
        self._files = files
        self._runtime = runtime
        self._recoveries = recoveries
        self._query: StreamingQuery | None = None
        self._own = OwnCommits()
        self._run: RunId | None = None  #: names the current run to its tasks
        self._runs = 0
        self._failure: BaseException | None = None  # of the current run
        self._wish = Wish.RUN
        self._wishes = threading.Condition()  # notified when the wish has changed, or the run has failed
        self._ending: StreamingQuery | None = None  # the run of Spark that is to end after its epoch
        self._end_request = threading.Lock()
        self._commits = threading.Lock()  # Spark's listener, the checkpoints and this query's thread all see commits
        self._committed_at_start = NO_EPOCH
        self._planned_at_start = NO_EPOCH
        self._fruitless = 0  # restarts since an epoch was committed
        self._thread = threading.Thread(target=self._watch, name=f"coord-query-{self.name}", daemon=True)

    def start(self) -> None:
        """Recover, and start for the first time; what is wrong with the declaration is raised here."""
        try:
            self._begin()
        except BaseException:
            self._finish_run()
            raise
        self._thread.start()

    @property
    def spark_query(self) -> StreamingQuery:
        """Spark's handle of the current run; another one after a restart."""
        assert self._query is not None
        return self._query

    @property
    def session(self) -> SparkSession:
        """The session that it runs in."""
        return self._writer._df.sparkSession

    @property
    def is_active(self) -> bool:
        """Whether the query runs, pauses, or will run again by itself."""
        return self.state.is_active

    def status(self) -> QueryStatus:
        """Return what the query does now."""
        counts = self._counts
        return QueryStatus(
            name=self.name,
            state=self.state.value,
            committed=self.last_committed,
            restarts=self.restarts,
            last_failure=self.last_failure,
            progress=counts.progress,
            batches=counts.batches,
            rows=counts.rows,
            batch_seconds=counts.seconds,
            output_rows=counts.output_rows,
            target=self._target,
        )

    def committed(self, epoch: Epoch, progress: dict[str, Any]) -> None:
        """Spark says that ``epoch`` may be committed; looked up, because progress is reported for other reasons too."""
        self._counts.hear(epoch, progress)
        self._own.hear(progress)
        self._observe(epoch)

    def idle(self) -> None:
        """Spark says that it has had nothing to do for a while."""
        self._counts.idle()

    @property
    def has_operators(self) -> bool:
        return bool(self.operators)

    def facts(self) -> Facts:
        """Read what is durable of a query that has ended.

        Raises:
            StoreError: it cannot be read.
        """
        committed, planned = spark_position(self._files, self.lineage.checkpoint)
        return Facts(() if self.store is None else tuple(self.store.read()), committed, planned)

    def look(self) -> Epoch:
        """Read what Spark has committed by now, without waiting for its report, and return the newest epoch.

        Raises:
            StoreError: the checkpoint cannot be read.
        """
        committed = last_commit(self._files, self.lineage.checkpoint)
        if committed > self.last_committed:
            self._observe(committed)
        return committed

    def look_for_next(self) -> None:
        """Like :meth:`look`, but only checks for one file name: to be polled while the next commit is waited for.

        Raises:
            StoreError: the checkpoint cannot be read.
        """
        if self._files.exists(join(self.lineage.checkpoint, "commits", str(self.last_committed + 1))):
            self.look()

    def _observe(self, epoch: Epoch) -> None:
        # Up to the epoch that a run of ours has committed: others' commits are found when the run has ended.
        try:
            epoch = self._own.look(epoch)
            if epoch <= self.last_committed:
                return
            self._owner.verify_recent()
            if self._sink is not None:
                self._sink.check(epoch)
        except (Fenced, DamagedRecord) as error:
            self.fail(error)
            return
        self._committed_up_to(epoch)
        if self.store is not None:
            self.store.committed(epoch)
        self._recoveries.committed(self.name, epoch)
        run = self._run
        self._runtime.post(lambda core, now: core.committed(self.name, epoch, now, run))

    def _committed_up_to(self, epoch: Epoch) -> None:
        with self._commits:
            self.last_committed = max(self.last_committed, epoch)

    def fail(self, error: BaseException) -> None:
        """End the current run because of ``error``; never blocks.

        The first error counts, unless it allows a restart and a later one does not.
        """
        with self._wishes:
            if self._failure is None or (may_retry(self._failure) and not may_retry(error)):
                self._failure = error
            self._wishes.notify_all()
        self._stop_spark_soon()

    def pause(self, deadline: float, is_wanted: Callable[[], bool]) -> bool:
        """Let the running epoch end and begin no other until :meth:`resume`; wait for it until ``deadline`` (monotonic
        seconds), or until it is not wanted any more.

        An epoch that was planned before this run, or that fails, is run again and committed first.

        Returns:
            Whether nothing of it runs; False: not yet, but it will pause at the end of its epoch.

        Raises:
            Py4JError, OSError: the JVM is gone.
        """
        self._wants(WishInput.PAUSE)
        while self.state in (QueryState.RUNNING, QueryState.RESTARTING):
            if time.monotonic() >= deadline or not is_wanted():
                return False
            is_caught_up = self.state is QueryState.RUNNING and self.last_committed >= self._planned_at_start
            is_caught_up = is_caught_up and self._query is not None  # otherwise it is just being started
            if not is_caught_up or self._end_after_epoch():
                time.sleep(_POLL_SECONDS)
        return True

    def resume(self) -> None:
        """End a pause, or the request for one; a query that has been stopped meanwhile stays stopped."""
        self._wants(WishInput.RESUME)

    def request_stop(self, deadline: float) -> None:
        """Stop at the end of the running epoch, or at ``deadline`` (monotonic seconds) in the middle of it.

        Returns when it has ended, or Spark was asked to interrupt it.
        """
        self._wants(WishInput.STOP)
        if self._thread.ident is None:
            return  # it is just being started, and sees that it must stop
        try:
            while time.monotonic() < deadline and self._thread.is_alive():
                if self._end_after_epoch():
                    self.join(_POLL_SECONDS)
        except Exception as error:  # the JVM is gone, or this Spark keeps the state of a stream elsewhere
            _log.warning("= query %s is stopped in the middle of its epoch: %s", self.name, error)
        if self._thread.is_alive():
            self._stop_spark_soon()

    def _wants(self, input_: WishInput) -> None:
        with self._wishes:
            self._wish = WISHES[self._wish, input_]
            self._wishes.notify_all()

    def _end_after_epoch(self) -> bool:
        # Whether its run will end. Otherwise called again: an epoch may take long.
        with self._end_request:
            query = self._query
            if query is None or self._ending is query:
                return query is not None
            self._ending = query  # set first: the query may end before the call returns
            is_told = False
            try:
                is_told = end_after_epoch(query)
            finally:
                if not is_told:
                    self._ending = None
            return is_told

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the query has ended. False: it has not within the time."""
        if self._thread.ident is None:
            return False  # it is just being started, and will see that it must stop
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # On the query's own thread, but for the first start.

    def _watch(self) -> None:
        try:
            self._run_until_end()
        except Exception as error:  # nothing that went wrong here may leave a query that only looks alive
            self._fail(error)
        level, why = (logging.INFO, "") if self.error is None else (logging.ERROR, f": {self.last_failure}")
        extra = {"action": "query_ended", "query": self.name}
        _log.log(level, "= query %s %s%s", self.name, self.state.value, why, extra=extra)
        self._owner.query_changed()

    def _run_until_end(self) -> None:
        while self.is_active:
            error = self._await_end()
            was_requested = error is None and self._ending is self._query
            if was_requested and self._has_gone_on():
                continue
            self._finish_run(error)
            error = self._failure or error  # the last epoch may have been found wanting only now
            self._conclude(RunEnd.REQUESTED if was_requested else RunEnd.FINISHED, error)

    def _has_gone_on(self) -> bool:
        # Whether Spark's run has ended for a pause only, which is over: then Spark runs again, on the same operators.
        if self._must_end():
            return False
        self._settle_run()
        with self._wishes:
            if not self._must_end() and FOLLOWS[self._wish, RunEnd.REQUESTED] is QueryInput.PAUSE:
                self._step(QueryInput.PAUSE)
        if self.state is QueryState.PAUSED:
            _log.info("= query %s pauses after epoch %d", self.name, self.last_committed)
            self._owner.query_changed()
        with self._wishes:
            self._wishes.wait_for(lambda: self._must_end() or not shall_wait(self._wish, has_paused=True))
        if self._must_end():
            return False
        try:
            self._query = self._start_spark()
        except Exception as error:
            self.fail(self._explained(error))
            return False
        self._step(QueryInput.RUN)
        if self._must_end():  # since before Spark's handle was known
            self._stop_spark_soon()
        self._owner.query_changed()
        return True

    def _step(self, input_: QueryInput) -> None:
        self.state = next_state(self.state, input_)

    def _fail(self, error: BaseException) -> None:
        self.last_failure = str(error)
        self.error = QueryFailed(self.name, self._fruitless, error)
        self.error.__cause__ = error
        self._step(QueryInput.FAIL)

    def _conclude(self, end: RunEnd, error: BaseException | None) -> None:
        # Until it runs again, or has ended: the state says which.
        has_paused = self.state is QueryState.PAUSED
        while True:
            if error is not None:
                self.last_failure = str(error)
                end = RunEnd.FAILED if may_retry(error) else RunEnd.FATAL
            follows = FOLLOWS[self._wish, end]
            if error is None or follows not in (QueryInput.RETRY, QueryInput.FAIL):
                self._step(follows)
                return
            if follows is QueryInput.FAIL or self._fruitless >= self._policy.max_restarts:
                self._fail(error)
                return
            delay = self._policy.delay(self._fruitless)
            self._recoveries.query_failed(self.name, str(error))
            _log.warning("= query %s failed, restarting in %.1f s: %s", self.name, delay, error)
            self._step(QueryInput.RETRY)
            self._owner.query_changed()
            self._fruitless += 1
            self.restarts += 1
            with self._wishes:
                self._wishes.wait_for(lambda: self._wish is Wish.STOP, delay)
                self._wishes.wait_for(lambda: not shall_wait(self._wish, has_paused=has_paused))
            if self._wish is Wish.STOP:
                continue
            try:
                self._begin()
            except Exception as again:
                error = self._explained(again)
                self._finish_run()
                continue
            self._step(QueryInput.RUN)
            self._owner.query_changed()
            return

    def _begin(self) -> None:
        self._failure = None
        # Pending writes must reach the storage before it is read: call() returns after that. A storage that hangs is
        # waited for in turns, with back-off, as one that fails.
        self._runtime.call(lambda core, now: None)
        committed, planned = spark_position(self._files, self.lineage.checkpoint)
        records: tuple[Record, ...] = ()
        if self.store is not None:
            self.store.committed(committed)
            records = tuple(self.store.open())
            self.store.check_reaches(committed)
        facts = Facts(records, committed, planned)
        self.last_committed = committed
        self._own.recovered(committed)
        self._committed_at_start = committed
        self._planned_at_start = planned
        if self.restarts:
            self._recoveries.restarts(self.name, committed, planned)
        else:
            self._recoveries.driver_started(self.lineage, committed, planned)
        self._runtime.call(lambda core, now: core.start_run(self.name, facts, now))
        if self._sink is not None:
            self._sink.check(committed)
        self._owner.start_coordinators(self.operators)
        self._query = self._start_spark()
        if self._must_end():  # since before Spark's handle was known
            self._stop_spark_soon()

    def _start_spark(self) -> StreamingQuery:
        self._run = RunId(f"{self._runtime.generation}.{self._runs}")
        self._runs += 1
        query = start_run(self._writer, self._run, self._target.table)
        kind = query._jsq.streamingQuery().getClass().getSimpleName()
        if self.store is not None and kind.startswith("AsyncProgressTracking"):
            query.stop()
            why = "it commits epochs after the next one has begun; leave the option out"
            raise UnsupportedOption("asyncProgressTrackingEnabled", why)
        self._own.started(query, is_reported=not kind.startswith("Continuous"))
        return query

    def _must_end(self) -> bool:
        return self._failure is not None or self._wish is Wish.STOP

    def _await_end(self) -> BaseException | None:
        try:
            self.spark_query.awaitTermination()
        except Exception as error:
            explained = self._explained(error)
            if isinstance(explained, SparkLost):  # what it has committed last may never be reported
                self._own.is_interrupted = True
            return explained
        return None

    def _explained(self, error: Exception) -> Exception:
        return explained(error, self.name, self.session)

    def _finish_run(self, failure: BaseException | None = None) -> None:
        self._settle_run(failure)
        try:
            # Behind all that the coordinators have answered: what they failed on is known when the run ends.
            self._runtime.call(lambda core, now: core.end_run(self.name, self._run, now))
        except (CoordControlError, TimeoutError) as error:
            _log.warning("= query %s: %s", self.name, error)

    def _settle_run(self, failure: BaseException | None = None) -> None:
        # What this run has committed counts, however it has ended.
        try:
            committed, _ = spark_position(self._files, self.lineage.checkpoint)
        except CoordControlError as error:  # the next run looks again before it begins
            _log.warning("= query %s: %s", self.name, error)
            committed = self.last_committed
        own = self._own.wait(committed)
        self._committed_up_to(own)
        if committed > self._committed_at_start:
            self._fruitless = 0
            self._recoveries.committed(self.name, committed)
            self._committed_at_start = committed  # once: the next run may end before it has looked
        try:
            self._owner.verify()
            self._runtime.call(lambda core, now: core.committed(self.name, own, now, self._run))
            self._owner.drain_coordinators(self.operators)
            if own < committed:
                # After an interrupt the commit may be ours: then durable facts decide, as after a crash.
                is_unknown = self._own.may_have_committed(committed) and self._runtime.call(
                    lambda core, now: core.may_have_finished(self.name, committed)
                )
                again = committed <= self._planned_at_start
                why = not_reported(self.name, committed, failure, is_again=again)
                self.fail(CommitUnknown(self.name, committed) if is_unknown else why)
        except (CoordControlError, TimeoutError) as error:
            self.fail(error)

    def _stop_spark_soon(self) -> None:
        query = self._query
        self._own.is_interrupted = True
        if query is not None:
            threading.Thread(target=_stop_quietly, args=(query,), name=f"coord-stop-{self.name}", daemon=True).start()


def _stop_quietly(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:
        # The query's own thread learns from Spark how it ended.
        _log.debug("x stopping the query: %s", error)
