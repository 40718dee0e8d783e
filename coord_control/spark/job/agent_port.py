"""The driver's interface for its agent: what the agent may read and request of the job, without knowing Spark.

News come to a :class:`~coord_control.protocol.job_facts.JobListener`; everything else is asked here.

Events from outside are exactly once if their owner does its part (docs/protocol.md, "Commands from outside"):

1. It numbers the events of each operator, above everything that it has numbered before and above
   :meth:`AgentPort.feed_status`'s ``applied``, and makes event and number durable before it hands it over.
2. It hands them over in the order of their numbers.
3. When a feed opens (``on_feed_open``) it hands over again every event with a higher number, but for those that were
   refused; also those that were reported durable, if it still has them: a restore takes the job back behind them, as it
   takes back what was read from the sources.
4. An event of :meth:`AgentPort.feed_status`'s ``refused`` has failed, also when it is reported durable. When that
   outcome is durable, the owner calls :meth:`AgentPort.forget_refusals`.

Threads: any. Methods return at once unless their docstring says that they wait.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pydantic import JsonValue

from coord_control.coordinators.requests import CommittedStates
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.removal import dispose_without_owner
from coord_control.durable.files.filesystem import Files
from coord_control.durable.job_folder.generations import Claim
from coord_control.durable.restore.reached import stands_at
from coord_control.errors import CheckpointNotCompleted, Fenced, NoSuchSubtask, NotAnswered, OperatorNotFound
from coord_control.ids import CheckpointId, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol import operator as operators
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job_facts import (
    ControlEvent,
    EventSchema,
    FeedStatus,
    JobFacts,
    JobListener,
    LiveFacts,
    OperatorFacts,
    QueryFacts,
)
from coord_control.protocol.records import LiveChanged
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest
from coord_control.protocol.status import JobStatus
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
from coord_control.spark.checkpoints.checkpoint_service import CheckpointService
from coord_control.spark.checkpoints.drain_first import drain
from coord_control.spark.checkpoints.stop_first import STOP_SECONDS, savepoint_and_pause, savepoint_at_end
from coord_control.spark.job.declarations import Declarations
from coord_control.spark.job.job_life import JobLife
from coord_control.spark.job.job_place import JobPlace
from coord_control.spark.job.news import News
from coord_control.spark.job.running_queries import RunningQueries
from coord_control.spark.job.states_page import states_page, wanted_subtasks
from coord_control.spark.live.live_values import LiveRequest, LiveValues
from coord_control.spark.loop.bound_coordinator import BoundCoordinator
from coord_control.spark.loop.control_feed import WaitingEvent

__all__ = ["AgentPort", "PortParts"]

# For a savepoint on a command that ends the job. Nothing waits for it but who asked, who can abort it.
_SAVEPOINT_SECONDS: Final = 24 * 3600.0
# A program that never waits for its job is ready this long after it has started its last query.
_SETTLED_SECONDS: Final = 5.0


class RunningJob(Protocol):
    """The job, for its agent."""

    def status(self) -> JobStatus: ...

    def committed_states(
        self, operator: OperatorUid, subtasks: Sequence[SubtaskIndex]
    ) -> Future[operators.OperatorStates | None]: ...

    def end_on_command(self, grace_seconds: float, *, restart: bool) -> None: ...

    def fence(self, error: Fenced) -> None: ...


class MetricsAddress(Protocol):
    """Where the metrics of a job are served."""

    @property
    def advertised(self) -> str | None:
        """The address as other machines see it, ``host:port``; None if they are not served at the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortParts:
    """The parts of a job that its agent's port uses."""

    place: JobPlace
    claim: Claim
    life: JobLife
    queries: RunningQueries
    declared: Declarations
    checkpoints: CheckpointService
    news: News
    metrics: MetricsAddress | None
    live: LiveValues


class AgentPort:
    """One job in one driver."""

    def __init__(self, facts: JobFacts, job: RunningJob, parts: PortParts) -> None:
        self._facts = facts
        self._job = job
        self._place = parts.place
        self._claim = parts.claim
        self._life = parts.life
        self._queries = parts.queries
        self._declared = parts.declared
        self._checkpoints = parts.checkpoints
        self._news = parts.news
        self._metrics = parts.metrics
        self._live = parts.live

    @property
    def facts(self) -> JobFacts:
        return self._facts

    @property
    def files(self) -> Files:
        """The storage of the job."""
        return self._place.files

    def storage(self, path: str) -> Files:
        """Return the storage that a path is on."""
        return self._place.storage(path)

    # What the job does now.

    def is_ready(self) -> bool:
        """Return whether the program has declared what it declares and started its queries."""
        if self._checkpoints.is_wanted:
            return True
        last_start = self._queries.last_start
        if last_start is None or self._declared.unused():
            return False
        return time.monotonic() - last_start > _SETTLED_SECONDS

    def queries(self) -> tuple[QueryFacts, ...]:
        """Return the queries that were started."""
        return tuple(
            QueryFacts(
                name=query.name,
                query_id=query.lineage.query_id,
                lineage=query.lineage.name,
                checkpoint=query.lineage.checkpoint,
                operators=tuple(query.operators),
                status=query.status(),
            )
            for query in self._queries.all()
        )

    def operators(self) -> tuple[OperatorFacts, ...]:
        """Return the operators that were declared."""
        return tuple(self._operator(uid, bound) for uid, bound in list(self._declared.coordinators.items()))

    def status(self) -> JobStatus:
        """Return what the job does now; waits a moment.

        Raises:
            JobClosed: it has ended.
        """
        return self._job.status()

    def metrics_address(self) -> str | None:
        """Return the address of its metrics, as ``host:port``, or None if they are not served at the moment."""
        return None if self._metrics is None else self._metrics.advertised

    def add_listener(self, listener: JobListener) -> Callable[[], None]:
        """Tell ``listener`` what happens from now on; returns what ends that."""
        return self._news.subscribe(listener)

    def has_same_supervisor(self, generation: Generation) -> bool:
        """Return whether the supervisor that has started this driver had started an earlier one as well; waits for the
        storage.

        Raises:
            UnsupportedFormat, StoreUnavailable: the claim of that one cannot be read.
        """
        return self._claim.has_same_supervisor(generation)

    def has_ended_cleanly(self, generation: Generation) -> bool:
        """Return whether an earlier driver recorded on the storage that it ended in good order; waits for the storage.

        Raises:
            StoreUnavailable: the storage.
        """
        return self._claim.has_ended_cleanly(generation)

    def is_current(self) -> bool:
        """Return whether, on the storage, no newer driver has claimed the job; waits for the storage.

        Raises:
            StoreUnavailable: the storage.
        """
        return self._claim.is_current()

    def is_fenced(self) -> bool:
        """Return whether the job knows of a newer driver, and ends for that."""
        return isinstance(self._life.error, Fenced)

    # What can be asked of it.

    def submit(self, request: CheckpointRequest) -> CheckpointHandle:
        """Ask for a checkpoint; refusals come out of the handle."""
        self._checkpoints.begin()
        return self._checkpoints.submit(request)

    def abort(self, checkpoint: CheckpointId) -> bool:
        """Abort a checkpoint in progress; return False if none with that id is. Waits a moment."""
        return self._checkpoints.abort(checkpoint)

    def savepoint_and_pause(
        self,
        request: CheckpointRequest,
        began: Callable[[CheckpointHandle], None] = lambda handle: None,
        is_wanted: Callable[[], bool] = lambda: True,
        tell_draining: Callable[[str], None] | None = None,
        timeout_seconds: float = _SAVEPOINT_SECONDS,
    ) -> CompletedCheckpoint:
        """Take a savepoint after which nothing is processed, and wait for it; the caller stops the job then.

        Args:
            began: called with the handle as soon as there is one.
            is_wanted: whether it still is; asked until then.
            tell_draining: let every query read what its sources have now, before it pauses; called with what is waited
                for. None for a savepoint without that.
            timeout_seconds: limit for draining, the running epochs and the savepoint together; that of the job's
                options does not count.

        Raises:
            CheckpointNotCompleted: there is none; the job keeps running.
            TimeoutError: there was none within the time; the job keeps running.
        """

        def submit() -> CheckpointHandle:
            handle = self.submit(replace(request, timeout_seconds=timeout_seconds))
            began(handle)
            return handle

        if tell_draining is not None:
            timeout_seconds = self._drain(tell_draining, is_wanted, timeout_seconds)
        self._life.begin_pause()
        try:
            return savepoint_and_pause(self._queries.all(), submit, is_wanted, self._moved_since, timeout_seconds)
        except BaseException:
            self._life.end_pause()
            raise

    def savepoint_at_end(self, request: CheckpointRequest, timeout_seconds: float) -> CompletedCheckpoint:
        """As :meth:`savepoint_and_pause`, of a job that the caller ends in any case: without a savepoint it stays
        paused.

        Raises:
            CheckpointNotCompleted, TimeoutError: there is none.
            JobClosed: the job has ended.
        """
        self._life.begin_pause()
        request = replace(request, timeout_seconds=timeout_seconds)
        return savepoint_at_end(self._queries.all(), lambda: self.submit(request), timeout_seconds)

    def stop(self, grace_seconds: float | None = None, *, restart: bool = False) -> None:
        """End the job on a command and wait for it.

        Args:
            grace_seconds: how long the running epochs may take.
            restart: let the process end with the exit code that asks the supervisor for a new driver.
        """
        self._job.end_on_command(STOP_SECONDS if grace_seconds is None else grace_seconds, restart=restart)

    def fenced(self, newest: int) -> None:
        """Stop the job at once, because a newer driver is known."""
        self._job.fence(Fenced(self._facts.name, self._facts.generation, newest))

    # What is on the storage.

    def dispose(self, reference: str) -> tuple[CheckpointId, str]:
        """Remove a checkpoint or savepoint, and wait for it.

        Returns:
            Its number and path.

        Raises:
            CheckpointNotFound, CheckpointInUse: it cannot be removed.
            Fenced: a newer driver owns the job.
            StoreUnavailable: something may be left; repeat it.
        """
        entry = self._catalog().resolve(reference)
        if entry.claim is not None:
            self._checkpoints.dispose(entry.checkpoint)
        else:
            # Not in this job's list: its number is that of another job, or its own one's path says where that lies.
            dispose_without_owner(self.files, self._place.folder, entry, self.storage)
        return entry.checkpoint, entry.path

    # Events from outside.

    def check_event(
        self, operator: str, event_type: str, payload: object, subtask: int | None, *, is_accepted: bool = False
    ) -> ControlEvent:
        """Return the event, if the operator can take it.

        Args:
            payload: of JSON: what the event's model is to be made of.
            is_accepted: it was accepted, perhaps by an earlier version of the program, whose model had other fields.

        Raises:
            OperatorNotFound: no operator of this name is declared.
            UndeclaredEvent: it has no such event.
            EventInvalid, EventTooLarge: the payload does not fit.
            NoSuchSubtask, SubtaskNotAllowed: it cannot go there.
        """
        bound = self._bound(operator)
        event = bound.down.parse(event_type, json.dumps(payload, allow_nan=False).encode(), is_accepted=is_accepted)
        batch = bound.down.encode(event)
        if subtask is not None and not 0 <= subtask < bound.parallelism:
            raise NoSuchSubtask(operator, subtask, bound.parallelism)
        bound.coordinator.check_control_event(event, subtask)
        return ControlEvent(bound.uid, event_type, batch.payload, subtask)

    def feed_status(self, operator: OperatorUid) -> FeedStatus:
        """Return how far the events from outside have come.

        Raises:
            OperatorNotFound: no operator of this name is declared.
        """
        return self._bound(operator).feed.status()

    def feed(self, number: int, event: ControlEvent) -> bool:
        """Hand an accepted event over; see the module for the rules.

        Returns:
            False: it was handed over or applied before, or the operator's query has not been started.

        Raises:
            OperatorNotFound, UndeclaredEvent, EventInvalid: the operator cannot take it any more.
        """
        bound = self._bound(event.operator)
        batch = bound.down.encode(bound.down.parse(event.event_type, event.payload, is_accepted=True))
        return bound.accept(number, WaitingEvent(batch, event.subtask))

    def forget_refusals(self, operator: OperatorUid, numbers: Collection[int]) -> None:
        """Say that the outcomes of these refused events are durable: they need not be recorded with the coordinator's
        state any more.

        Raises:
            OperatorNotFound: no operator of this name is declared.
        """
        self._bound(operator).forget_refusals(numbers)

    # Requests from outside.

    def ask(self, operator: str, request: str, payload: JsonValue) -> Future[JsonValue]:
        """Begin to answer a request. The future has the answer as JSON, or raises NotAnswered or what is wrong; to
        cancel it withdraws the request.

        Args:
            request: the name of its model.
            payload: of JSON: what the model is to be made of.

        Raises:
            OperatorNotFound, UndeclaredRequest, RequestNotValid, NoSuchSubtask: it cannot be answered.
            NotAnswered: not now.
        """
        bound = self._bound(operator)
        asked = bound.requests.parse(request, payload)
        return self._states(bound, asked) if isinstance(asked, CommittedStates) else bound.request(asked)

    def _states(self, bound: BoundCoordinator, request: CommittedStates) -> Future[JsonValue]:
        subtasks = wanted_subtasks(request, bound.uid, bound.parallelism)
        answer: Future[JsonValue] = Future()
        read = self._job.committed_states(bound.uid, subtasks)

        def show() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                if (found := read.result()) is None:
                    raise NotAnswered(bound.uid, "its query does not run; it is being started, or started again")
                page = states_page(request, found, self._declared.state(bound.uid), bound.parallelism)
                answer.set_result(bound.requests.answer(request, page))
            except Exception as error:
                answer.set_exception(error)

        # States are parsed elsewhere: they may be large, and nothing may hold up the loop.
        read.add_done_callback(lambda _: bound.thread.submit_background(show))
        return answer

    # Live values.

    def set_live(
        self, name: str, fields: Mapping[str, object], expect: int | None, key: str, by: str
    ) -> Future[LiveFacts]:
        """Ask for a change of a live value; the future raises what that of :meth:`.LiveValues.request` does.

        Args:
            expect: the version that it must have; None for any.
            key: the same key never makes a second change.
        """
        return self._live.request(LiveRequest(name=name, fields=fields, expect=expect, key=key, by=by))

    def live(self, name: str) -> LiveFacts:
        """Return what is known of a live value; waits a moment.

        Raises:
            LiveValueNotFound: none of this name is declared.
            LiveModelInvalid: no query has been started yet.
            JobClosed: the job has ended.
        """
        return self._live.facts(name)

    def live_values(self, timeout_seconds: float | None = None) -> tuple[LiveFacts, ...]:
        """Return what is known of all live values; see :meth:`.LiveValues.all`."""
        return self._live.all(timeout_seconds)

    def live_versions(self) -> Mapping[str, int]:
        """Return the version of each live value that is accepted."""
        return self._live.versions()

    def live_history(self, name: str) -> Sequence[LiveChanged]:
        """Return the changes of a declared live value, oldest first."""
        return self._live.history(name)

    # Parts.

    def _drain(self, tell: Callable[[str], None], is_wanted: Callable[[], bool], timeout_seconds: float) -> float:
        """Drain all queries, and return how many seconds are left."""
        deadline = time.monotonic() + timeout_seconds

        def check() -> None:
            if not is_wanted():
                raise _not_completed(FailureReason.ABORTED)
            if self._life.is_closed or self._life.error is not None:
                raise _not_completed(FailureReason.JOB_ENDING)

        try:
            drain(self._queries.all(), tell, check, timeout_seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the job keeps running. Try again with a longer timeout") from error
        tell("all queries are drained, and pause for the savepoint")
        return round(max(0.0, deadline - time.monotonic()), 3)

    def _moved_since(self, completed: CompletedCheckpoint) -> QueryName | None:
        catalog = self._catalog()
        then = catalog.read(catalog.resolve(completed.path)).queries
        for query in self._queries.all():
            snapshot = then.get(query.name)
            if snapshot is None or not stands_at(self.files, self._place.folder, query.name, snapshot):
                return query.name
        return None

    def _catalog(self) -> Catalog:
        return self._place.catalog()

    def _bound(self, operator: str) -> BoundCoordinator:
        coordinators = self._declared.coordinators
        if (bound := coordinators.get(OperatorUid(operator))) is None:
            known = sorted(coordinators)
            near = difflib.get_close_matches(operator, known)
            raise OperatorNotFound("operator", operator, f"job {self._facts.name!r}", known, near)
        return bound

    def _operator(self, uid: OperatorUid, bound: BoundCoordinator) -> OperatorFacts:
        record = self._declared.record(uid)
        return OperatorFacts(
            uid=uid,
            query=self._declared.owner.get(uid),
            parallelism=record.parallelism,
            state=record.state,
            events=tuple(EventSchema(name, schema) for name, schema in bound.down.schemas()),
            up=record.up,
            requests=bound.requests.schemas(),
        )


def _not_completed(reason: FailureReason) -> CheckpointNotCompleted:
    return CheckpointNotCompleted("savepoint", reason.code, CheckpointOutcome(reason).message)
