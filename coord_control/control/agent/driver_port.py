"""What the agent needs of the driver that it lives in.

The agent knows no Spark: it reads the job's numbers, asks for checkpoints and for the job's end, and hands events from
outside over, all through this. ``coord_control.spark.job.agent_port`` is the real one; the agent's tests bring a driver
that follows a script. What happens by itself comes the other way, to the agent as a ``JobListener``.

Threads: every method may be called from any thread. Methods that wait say so; the others return soon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
    OperatorFacts,
    QueryFacts,
)
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
        """What was measured of it; None: that cannot be known any more."""


class Handle(Protocol):
    """A requested checkpoint or savepoint."""

    @property
    def id(self) -> CheckpointId | None:
        """None: it waits, or was refused."""

    @property
    def done(self) -> bool: ...

    def wait(self, timeout_seconds: float | None = None) -> Completed:
        """Wait until it is complete.

        Raises:
            CheckpointNotCompleted: it came to nothing.
            TimeoutError: it has not ended within the time.
        """

    def progress(self) -> Progress | None: ...

    def abort(self) -> None:
        """Give it up, unless it is complete by then."""


class DriverPort(Protocol):
    """One job in one driver."""

    @property
    def facts(self) -> JobFacts: ...

    @property
    def files(self) -> Files:
        """The storage of the job."""

    def storage(self, path: str) -> Files:
        """The storage that a path is on."""

    # What it does now.

    def is_ready(self) -> bool:
        """Whether the program has declared what it declares and started its queries."""

    def queries(self) -> tuple[QueryFacts, ...]: ...

    def operators(self) -> tuple[OperatorFacts, ...]: ...

    def status(self) -> JobStatus:
        """Raises JobClosed when the job has ended."""

    def metrics_address(self) -> str | None:
        """Where its metrics are served, as other machines see it; None: nowhere."""

    def add_listener(self, listener: JobListener) -> Callable[[], None]:
        """Tell the listener what happens from now on; returns what ends that."""

    def has_same_supervisor(self, generation: Generation) -> bool:
        """Whether the supervisor that has started this driver had started an earlier one as well."""

    def was_released(self, generation: Generation) -> bool:
        """Whether an earlier driver has said on the storage that it ended in good order.

        Raises:
            StoreUnavailable: the storage.
        """

    def is_current(self) -> bool:
        """Whether, on the storage, no newer driver has claimed the job.

        Raises:
            StoreUnavailable: the storage.
        """

    def is_fenced(self) -> bool:
        """Whether the job knows of a newer driver. What ends here from then on says nothing: the newer one does it."""

    # What can be asked of it.

    def submit(self, request: CheckpointRequest) -> Handle:
        """Ask for a checkpoint; refusals come out of the handle."""

    def abort(self, checkpoint: CheckpointId) -> bool:
        """Give a checkpoint up that is under way; False: none of that number is."""

    def savepoint_and_pause(
        self, request: CheckpointRequest, began: Callable[[Handle], None], is_wanted: Callable[[], bool]
    ) -> Completed:
        """Take a savepoint after which nothing is processed, and wait for it; the caller stops the job then.

        Args:
            began: told the handle as soon as there is one.
            is_wanted: whether it still is; asked until then.

        Raises:
            CheckpointNotCompleted: there is none; the job runs on.
            TimeoutError: there was none in time; the job runs on.
        """

    def stop(self, grace_seconds: float | None = None, *, restart: bool = False) -> None:
        """End the job and wait for it; the agent is closed on the way.

        Args:
            grace_seconds: how long the running epochs may take; None: the job's own time.
            restart: let the process end with the exit code that asks the supervisor for a new driver.
        """

    def dispose(self, reference: str) -> tuple[CheckpointId, str]:
        """Remove a checkpoint or savepoint, and wait for it; returns its number and path.

        Raises:
            CheckpointNotFound, CheckpointInUse: it cannot be.
            StoreUnavailable: the storage.
        """

    def fenced(self, newest: int) -> None:
        """The database knows a newer driver: the job stops itself."""

    # Events from outside.

    def check_event(self, operator: str, event_type: str, payload: JsonValue, subtask: int | None) -> ControlEvent:
        """The event, if the operator can take it.

        Raises:
            OperatorNotFound, UndeclaredEvent, EventInvalid, NoSuchSubtask: why it cannot.
        """

    def feed_status(self, operator: OperatorUid) -> FeedStatus: ...

    def feed(self, number: int, event: ControlEvent) -> bool:
        """Hand an accepted event over; numbers come in order. False: the operator has it, or cannot take it now."""

    def forget_refusals(self, operator: OperatorUid, numbers: Collection[int]) -> None:
        """Say that the outcomes of these refused events are durable: they need not be recorded with the coordinator's
        state any more."""
