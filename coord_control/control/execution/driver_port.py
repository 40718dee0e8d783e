"""The agent's interface to its driver.

The agent does not depend on Spark: through this interface it reads the state of the job, requests checkpoints or the
end of the job, and delivers control events. ``coord_control.spark.job.agent_port`` implements it; the agent's tests use
a scripted driver. In the other direction, the driver notifies the agent as a ``JobListener``.

Threads: every method may be called from any thread. Methods that wait are documented as such; the others return soon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from pydantic import JsonValue

from coord_control.durable.files.filesystem import Files
from coord_control.ids import CheckpointId, Generation, OperatorUid
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.job_facts import (
    ControlEvent,
    FeedStatus,
    JobFacts,
    JobListener,
    LiveFacts,
    OperatorFacts,
    QueryFacts,
)
from coord_control.protocol.records import LiveChanged
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.protocol.status import JobStatus

__all__ = ["Completed", "DriverPort", "Handle"]


class Completed(Protocol):
    """A checkpoint or savepoint that exists."""

    @property
    def id(self) -> CheckpointId: ...

    @property
    def path(self) -> str: ...

    @property
    def statistics(self) -> CheckpointStatistics | None:
        """Its statistics, or None if they are no longer known."""


class Handle(Protocol):
    """A requested checkpoint or savepoint."""

    @property
    def id(self) -> CheckpointId | None:
        """Its id, or None while it waits or if it was refused."""

    @property
    def done(self) -> bool: ...

    def wait(self, timeout_seconds: float | None = None) -> Completed:
        """Wait until it is complete.

        Raises:
            CheckpointNotCompleted: it was refused, failed or was aborted.
            TimeoutError: it has not finished in time.
        """

    def progress(self) -> Progress | None: ...

    def abort(self) -> None:
        """Abort it, unless it is complete by then."""


class DriverPort(Protocol):
    """One job in one driver."""

    @property
    def facts(self) -> JobFacts: ...

    @property
    def files(self) -> Files:
        """The storage of the job."""

    def storage(self, path: str) -> Files:
        """Return the storage of a path."""

    # The current state.

    def is_ready(self) -> bool:
        """Return whether the program has declared its operators and started its queries."""

    def queries(self) -> tuple[QueryFacts, ...]: ...

    def operators(self) -> tuple[OperatorFacts, ...]: ...

    def status(self) -> JobStatus:
        """Return the status of the job.

        Raises:
            JobClosed: the job has ended.
        """

    def metrics_address(self) -> str | None:
        """Return the address of the metrics for other machines, or None if there is none."""

    def add_listener(self, listener: JobListener) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""

    def has_same_supervisor(self, generation: Generation) -> bool:
        """Return whether this driver and an earlier one were started by the same supervisor."""

    def has_ended_cleanly(self, generation: Generation) -> bool:
        """Return whether an earlier driver has recorded on the storage that it ended cleanly.

        Raises:
            StoreUnavailable: the storage cannot be read.
        """

    def is_current(self) -> bool:
        """Return whether no newer driver has claimed the job on the storage.

        Raises:
            StoreUnavailable: the storage cannot be read.
        """

    def is_fenced(self) -> bool:
        """Return whether the job knows of a newer driver, which then reports the outcomes instead of this one."""

    # Requests.

    def submit(self, request: CheckpointRequest) -> Handle:
        """Request a checkpoint; the handle reports refusals."""

    def abort(self, checkpoint: CheckpointId) -> bool:
        """Abort a checkpoint; return False if no checkpoint with this id is in progress."""

    def savepoint_and_pause(
        self,
        request: CheckpointRequest,
        began: Callable[[Handle], None],
        is_wanted: Callable[[], bool],
        tell_draining: Callable[[str], None] | None = None,
    ) -> Completed:
        """Take a savepoint, process nothing after it, and wait for it; the caller then stops the job.

        Args:
            began: called with the handle as soon as there is one.
            is_wanted: returns whether the savepoint is still wanted; called until there is a handle.
            tell_draining: let every query read what its sources have now, before it pauses; called with what is waited
                for. None for a savepoint without that.

        Raises:
            CheckpointNotCompleted: there is no savepoint; the job keeps running.
            TimeoutError: the savepoint was not complete in time; the job keeps running.
        """

    def stop(self, grace_seconds: float | None = None, *, restart: bool = False) -> None:
        """Stop the job and wait for its end, which also closes the agent.

        Args:
            grace_seconds: how long the current epochs may take, or None for the job's setting.
            restart: end the process with the exit code that requests a new driver from the supervisor.
        """

    def dispose(self, reference: str) -> tuple[CheckpointId, str]:
        """Remove a checkpoint or savepoint, wait for that, and return its id and path.

        Raises:
            CheckpointNotFound, CheckpointInUse: it cannot be removed.
            StoreUnavailable: the storage cannot be used.
        """

    def fenced(self, newest: int) -> None:
        """Stop the job, because the database knows a newer driver."""

    # Live values.

    def set_live(
        self, name: str, fields: Mapping[str, object], expect: int | None, key: str, by: str
    ) -> Future[LiveFacts]:
        """Request a change of a live value; they are carried out in the order of these calls, once the job has begun.

        The future raises LiveValueNotFound, LiveValueInvalid, LiveVersionChanged: nothing was changed; JobClosed,
        Fenced: the next driver carries it out if it is asked for again with the same key.

        Args:
            fields: those to change, as JSON has them.
            expect: the version that it must have; None for any.
            key: the same key never makes a second change.
        """

    def live(self, name: str) -> LiveFacts:
        """Return what is known of a live value; waits a moment.

        Raises:
            LiveValueNotFound, LiveModelInvalid: there is none, or not yet.
            JobClosed: the job has ended.
        """

    def live_values(self) -> tuple[LiveFacts, ...]:
        """Return what is known of all live values, by name; none before the first query starts. May wait for the
        storage. When the job has ended, its queries are as they were last seen."""

    def live_versions(self) -> Mapping[str, int]:
        """Return the version of each live value that is accepted; returns at once."""

    def live_history(self, name: str) -> Sequence[LiveChanged]:
        """Return the changes of a declared live value, oldest first, as far as the job's storage has them."""

    # Control events.

    def check_event(
        self, operator: str, event_type: str, payload: JsonValue, subtask: int | None, *, is_accepted: bool = False
    ) -> ControlEvent:
        """Validate an event and return it.

        Args:
            is_accepted: it was accepted, perhaps by an earlier version of the program.

        Raises:
            OperatorNotFound, UndeclaredEvent, EventInvalid, NoSuchSubtask: the operator cannot accept it.
        """

    def feed_status(self, operator: OperatorUid) -> FeedStatus: ...

    def feed(self, number: int, event: ControlEvent) -> bool:
        """Deliver an accepted event, in the order of the numbers. Return False if the operator already has it, or
        cannot take it now."""

    def forget_refusals(self, operator: OperatorUid, numbers: Collection[int]) -> None:
        """Mark the outcomes of refused events as durable: they are no longer recorded with the coordinator's state."""

    # Requests to operators.

    def ask(self, operator: str, request: str, payload: JsonValue) -> Future[JsonValue]:
        """Begin to answer a request. The future has the answer as JSON, or an error; to cancel it withdraws the
        request.

        Args:
            request: the name of its model.

        Raises:
            OperatorNotFound, UndeclaredRequest, RequestNotValid, NoSuchSubtask: the operator cannot answer it.
            NotAnswered: the operator cannot answer it now.
        """
