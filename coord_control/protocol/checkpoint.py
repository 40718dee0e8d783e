"""The checkpoints of a job that are in progress, over all its queries and operators (protocol section 5).

Each is cut operator by operator (:mod:`.cut`); a query is captured when all its operators are, and what belongs to it
is then made durable outside the core. Until then a checkpoint may be aborted at any time: every gateway is opened for
it in order, nothing is dropped. Several may be in progress, each with its own snapshot point and boundaries, so every
call names its checkpoint by id (never "the last one": hazard H2 of the reference).

Queries without operators have no part in this: they have no channels, their last commit is a consistent cut.

Single-threaded; owned by the protocol core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coord_control.ids import BarrierId, CheckpointId, Epoch, OperatorUid, QueryName
from coord_control.protocol import messages
from coord_control.protocol.cut import PendingCut
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.messages import Batch
from coord_control.protocol.operator import OperatorRun
from coord_control.protocol.statistics import QueryStatistics, statistics_so_far

__all__ = ["PendingCheckpoints", "Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a checkpoint is."""

    subtasks: int
    passed: int  #: subtasks that have passed the boundary
    waiting_for: tuple[OperatorUid, ...]  #: operators whose coordinator has not given its state


@dataclass(slots=True)
class _Checkpoint:
    barrier: BarrierId
    #: By query that is not captured yet.
    cuts: dict[QueryName, dict[OperatorUid, PendingCut]] = field(default_factory=dict)
    #: The operators in the run in which they were cut: one that was restarted since is not notified.
    operators: dict[OperatorUid, OperatorRun] = field(default_factory=dict)

    def measured(self, now: float) -> tuple[QueryStatistics, ...]:
        return tuple(self._measured(query, cuts, now) for query, cuts in self.cuts.items())

    def _measured(self, query: QueryName, cuts: Mapping[OperatorUid, PendingCut], now: float) -> QueryStatistics:
        parts = [statistics_so_far(uid, cut, self.operators[uid].channel.gateways, now) for uid, cut in cuts.items()]
        return QueryStatistics(query, _boundary(cuts), operators=tuple(parts))


class PendingCheckpoints:
    """The checkpoints in progress in one job."""

    __slots__ = ("_checkpoints",)

    def __init__(self) -> None:
        self._checkpoints: dict[CheckpointId, _Checkpoint] = {}

    def trigger(
        self,
        checkpoint: CheckpointId,
        barrier: BarrierId,
        queries: Mapping[QueryName, tuple[Epoch, Iterable[OperatorRun]]],
        now: float,
        batch: Batch,
    ) -> None:
        """Begin a checkpoint.

        Args:
            queries: the boundary and the operators of each query; those without operators are left out.
        """
        pending = self._checkpoints[checkpoint] = _Checkpoint(barrier)
        for query, (boundary, operators) in queries.items():
            cuts = pending.cuts[query] = {}
            for operator in operators:
                cut = cuts[operator.spec.uid] = PendingCut(checkpoint, barrier, boundary, now)
                pending.operators[operator.spec.uid] = operator
                operator.trigger(cut, now, batch)

    def collect(self, batch: Batch) -> None:
        """Announce the queries whose operators have all been cut; call it after anything that may have cut one."""
        for checkpoint, pending in self._checkpoints.items():
            for query, cuts in list(pending.cuts.items()):
                captured = [cut.captured for cut in cuts.values() if cut.captured is not None]
                if len(captured) < len(cuts):
                    continue
                del pending.cuts[query]
                batch.notices.append(
                    messages.QueryCaptured(checkpoint, pending.barrier, query, _boundary(cuts), tuple(captured))
                )

    def stored(self, checkpoint: CheckpointId, batch: Batch) -> None:
        """Notify the coordinators of a complete checkpoint. Do nothing if none with that id is in progress."""
        if (pending := self._checkpoints.pop(checkpoint, None)) is not None:
            for operator in pending.operators.values():
                operator.stored(pending.barrier, batch)

    def abort(self, checkpoint: CheckpointId, now: float, batch: Batch) -> tuple[QueryStatistics, ...]:
        """Abort a checkpoint in any state. Do nothing if none with that id is in progress.

        Returns:
            What has been measured of the queries that were not captured.
        """
        if (pending := self._checkpoints.pop(checkpoint, None)) is None:
            return ()
        measured = pending.measured(now)  # before its gateways open
        for operator in pending.operators.values():
            operator.abort(pending.barrier, now, batch)
        return measured

    def fail(self, checkpoint: CheckpointId, reason: FailureReason, detail: str, now: float, batch: Batch) -> None:
        """Abort a checkpoint because of a failure that the core has noticed."""
        if (pending := self._checkpoints.get(checkpoint)) is not None:
            measured = self.abort(checkpoint, now, batch)
            batch.notices.append(messages.CheckpointFailed(checkpoint, pending.barrier, reason, detail, measured))

    def fail_all(self, reason: FailureReason, detail: str, now: float, batch: Batch) -> None:
        """Abort all checkpoints, together with all runs: what they rest on may not be durable, or was never announced.

        Their coordinators are reset next and not notified: that they were asked may have been lost as well.
        """
        batch.notices += [
            messages.CheckpointFailed(checkpoint, pending.barrier, reason, detail, pending.measured(now))
            for checkpoint, pending in self._checkpoints.items()
        ]
        self._checkpoints.clear()

    def run_ended(self, query: QueryName, operators: Iterable[OperatorUid], now: float, batch: Batch) -> None:
        """Handle the end of a query's run: checkpoints that have not captured it are aborted, others stay valid."""
        for checkpoint, pending in list(self._checkpoints.items()):
            if query in pending.cuts:
                self.fail(checkpoint, FailureReason.QUERY_FAILED, f"query {query!r} has ended its run", now, batch)
            for uid in operators:
                pending.operators.pop(uid, None)

    def of_barrier(self, barrier: BarrierId) -> CheckpointId | None:
        """Return the checkpoint that has this barrier, None when it is the start of an epoch, or over."""
        return next((number for number, pending in self._checkpoints.items() if pending.barrier == barrier), None)

    def progress(self, checkpoint: CheckpointId) -> Progress | None:
        """Return the progress of a checkpoint, or None if none with that id is in progress."""
        if (pending := self._checkpoints.get(checkpoint)) is None:
            return None
        cuts = [(uid, cut) for cuts in pending.cuts.values() for uid, cut in cuts.items()]
        subtasks = sum(operator.spec.parallelism for operator in pending.operators.values())
        missing = sum(pending.operators[uid].spec.parallelism - cut.passed for uid, cut in cuts)
        return Progress(subtasks, subtasks - missing, tuple(uid for uid, cut in cuts if not cut.is_answered))


def _boundary(cuts: Mapping[OperatorUid, PendingCut]) -> Epoch:
    return next(iter(cuts.values())).boundary  # of all operators of a query
