"""The metrics of a job in its driver: what is read of it for a scrape, and the server that answers.

A scrape changes nothing and waits for nothing that could hang: not for the storage, and not for the control database.
An address that cannot be had keeps no job from running.

Threads: it is started and ended by the threads that start and end the job; snapshots are read on the server's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from coord_control.errors import CoordControlError, JobClosed
from coord_control.ids import CheckpointId
from coord_control.metrics.address import Address
from coord_control.metrics.driver import driver_families
from coord_control.metrics.families import Family
from coord_control.metrics.http_server import MetricsServer
from coord_control.metrics.observer import Observed, Observer
from coord_control.metrics.snapshot import DriverSnapshot, EndpointSnapshot, WriterSnapshot
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.status import JobStatus
from coord_control.spark.job.agent_port import AgentPort
from coord_control.spark.job.declarations import Declarations
from coord_control.spark.job.news import News
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.loop.group_writer import GroupWriter
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.recovery_log import RecoveryLog
from coord_control.spark.wire.endpoint import Rejection, Stats
from coord_control.spark.wire.frame_codec import PROTOCOL_VERSION

if TYPE_CHECKING:
    from coord_control.spark.job.control_plane import ControlPlane

__all__ = ["JobMetrics", "MeasuredParts", "endpoint_snapshot", "snapshot_of", "writer_snapshot"]

# Below the ten seconds that Prometheus waits.
_READ_SECONDS: Final = 5.0


class MeasuredJob(Protocol):
    """The job, for its metrics."""

    def status_now(self, timeout_seconds: float) -> JobStatus: ...

    def first_error(self) -> CoordControlError | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredParts:
    """The parts of a job that have numbers."""

    job: MeasuredJob
    declared: Declarations
    runtime: JobRuntime
    thread: CoordinatorThread
    recoveries: RecoveryLog


class JobMetrics:
    """The metrics endpoint of one job."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._host = ""
        self._observer = Observer()
        self._server: MetricsServer | None = None
        self._unsubscribe: Callable[[], None] = _nothing

    @classmethod
    def of(cls, address: str | None) -> JobMetrics | None:
        """Parse the address; return None if no metrics are wanted.

        Raises:
            MetricsAddressInvalid: the address is invalid.
        """
        found = Address.of_driver(address)
        return None if found is None else cls(found)

    def start(self, parts: MeasuredParts, news: News, port: AgentPort, plane: ControlPlane | None) -> None:
        """Count from now on, and answer scrapes as soon as the address can be had."""
        self._unsubscribe = news.subscribe(self._observer)
        self._host = port.facts.host

        def page(subtasks: int) -> Iterable[Family]:
            return driver_families(snapshot_of(parts, port, plane, self._observer.observed()), subtasks)

        self._server = server = MetricsServer(page, self._address)
        server.start(must=False)

    @property
    def address(self) -> str | None:
        """The address that it serves, as ``host:port``, or None if it does not serve at the moment."""
        found = None if self._server is None else self._server.address
        return None if found is None else str(found)

    @property
    def advertised(self) -> str | None:
        """The same address as other machines see it."""
        found = None if self._server is None else self._server.address
        return None if found is None else str(found.seen_from_elsewhere(self._host))

    def close(self) -> None:
        """Stop serving metrics, because the job has ended. May be called twice."""
        self._unsubscribe()
        if self._server is not None:
            self._server.close()


def snapshot_of(
    parts: MeasuredParts, port: AgentPort, plane: ControlPlane | None, observed: Observed
) -> DriverSnapshot:
    """Read everything.

    Raises:
        TimeoutError: the driver's loop does not answer.
    """
    return DriverSnapshot(
        facts=port.facts,
        protocol_version=PROTOCOL_VERSION,
        is_up=parts.job.first_error() is None,
        status=_status(parts.job),
        queries=port.queries(),
        parallelism={uid: bound.parallelism for uid, bound in list(parts.declared.coordinators.items())},
        feeds={uid: bound.feed.status() for uid, bound in list(parts.declared.coordinators.items())},
        observed=observed,
        endpoint=endpoint_snapshot(parts.runtime.endpoint.stats()),
        writer=writer_snapshot(parts.runtime.writer),
        callbacks_waiting=parts.thread.waiting,
        recoveries_under_way=parts.recoveries.under_way,
        live=port.live_values(_READ_SECONDS),
        progress=_progress(parts.runtime, [each.checkpoint for each in observed.in_progress]),
        agent=None if plane is None else plane.snapshot(),
    )


def _status(job: MeasuredJob) -> JobStatus | None:
    try:
        return job.status_now(_READ_SECONDS)
    except JobClosed:
        return None


def _progress(runtime: JobRuntime, checkpoints: list[CheckpointId]) -> dict[CheckpointId, Progress]:
    if not checkpoints:
        return {}
    try:
        found = runtime.read(
            lambda core, now: {each: core.checkpoint_progress(each) for each in checkpoints}, _READ_SECONDS
        )
    except JobClosed:
        return {}
    return {checkpoint: progress for checkpoint, progress in found.items() if progress is not None}


def endpoint_snapshot(stats: Stats) -> EndpointSnapshot:
    """Return what an endpoint has done so far."""
    return EndpointSnapshot(
        authenticated=stats.connections - stats.strangers,
        strangers=stats.strangers,
        accepted=stats.accepted,
        frames_in=stats.frames_in,
        frames_out=stats.frames_out,
        dropped_answers=stats.dropped_answers,
        held_bytes=stats.held_bytes,
        rejected={reason.name.lower(): stats.rejected.get(reason, 0) for reason in Rejection},
    )


def writer_snapshot(writer: GroupWriter) -> WriterSnapshot:
    """Return what was written to the epoch store so far."""
    return WriterSnapshot(writes=writer.writes, records=writer.records, durations=writer.durations)


def _nothing() -> None:
    pass
