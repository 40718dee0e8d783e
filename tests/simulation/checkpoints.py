"""Checkpoints as the driver sees them: what has been cut is pinned and stored some steps later, or never.

A stored one is a value that survives everything. What it must hold is checked when an operator is cut
(:meth:`.invariants.Invariants.captured`); what a restored lineage recovers from it, when it is restored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coord_control.ids import NO_CHECKPOINT, BarrierId, CheckpointId, Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.cut import OperatorCut, PendingCut
from coord_control.protocol.live_epochs import Values
from coord_control.protocol.messages import CheckpointFailed, QueryCaptured
from coord_control.protocol.recovery import RecoveredOperator
from coord_control.protocol.scheduler.checkpoint_run import CheckpointRun
from tests.simulation.spark import SparkLog
from tests.simulation.values import Violation

__all__ = ["Desk", "Part", "Pinning", "Rest", "Served", "Stored", "UnderWay", "Watched"]

#: What attempts were given: their state, and the numbers of the events.
Served: TypeAlias = dict[tuple[OperatorUid, SubtaskIndex, Epoch], tuple[bytes | None, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Rest:
    """What a query that does not run stands on: a recovery in place would read it, and so must a restore.

    Attributes:
        log: Spark's, with the rows of the planned epoch, and the sink.
        recovered: what recovery finds there.
        served: what attempts of the planned epoch were given.
    """

    log: SparkLog
    recovered: Mapping[OperatorUid, RecoveredOperator]
    served: Served
    live: Values | None = None  #: what the planned epoch has frozen, as the cut has it
    live_seen: int | None = None  #: ... and as it was answered


@dataclass(frozen=True, slots=True)
class Part:
    """One query in a checkpoint; ``rest``: it did not run, None: it did."""

    boundary: Epoch
    cuts: tuple[OperatorCut, ...]
    rest: Rest | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete checkpoint or savepoint."""

    checkpoint: CheckpointId
    barrier: BarrierId
    parts: Mapping[QueryName, Part]
    live: int = 0

    def __str__(self) -> str:
        at = ", ".join(f"{query} at {part.boundary}" for query, part in self.parts.items())
        return f"checkpoint {self.checkpoint} ({at})"


@dataclass(slots=True, eq=False)
class Pinning:
    """A thread that keeps the files of one query, as the query was when the thread was started."""

    query: QueryName
    part: Part


@dataclass(slots=True)
class UnderWay:
    """A checkpoint that is being made: the real :class:`CheckpointRun`, and what it works on.

    Attributes:
        barrier: of the newest cut, as are the three after it.
        boundaries: what they must be, of the queries that the core cuts.
        parts: the queries that have been cut.
        pins: the threads that run, of whichever cut.
        kept: the files in its folder.
        is_writing: its metadata is being written.
    """

    checkpoint: CheckpointId
    run: CheckpointRun = field(default_factory=CheckpointRun)
    barrier: BarrierId = NO_CHECKPOINT
    boundaries: dict[QueryName, Epoch] = field(default_factory=dict)
    parts: dict[QueryName, Part] = field(default_factory=dict)
    pins: list[Pinning] = field(default_factory=list)
    kept: dict[QueryName, Part] = field(default_factory=dict)
    is_writing: bool = False

    def captured(self, notice: QueryCaptured, operators: list[OperatorUid]) -> None:
        """The core has captured a query with these operators; of an earlier cut this is late news.

        Raises:
            Violation: something of it is missing, or it is captured elsewhere than it must be.
        """
        if not self.run.captured(notice.query, notice.barrier):
            return
        expected = self.boundaries[notice.query]
        if notice.boundary != expected:
            raise Violation(f"cut: {notice.query} is captured at {notice.boundary}, its boundary is {expected}")
        if (found := [cut.operator for cut in notice.cuts]) != operators:
            raise Violation(f"cut: {notice.query} is captured with operators {found} of {operators}")
        if notice.query in self.parts:
            raise Violation(f"cut: {notice.query} is captured twice for checkpoint {notice.checkpoint}")
        self.parts[notice.query] = Part(notice.boundary, notice.cuts)

    def complete(self, queries: Iterable[QueryName], live: int) -> Stored:
        """Its metadata is on the storage.

        Raises:
            Violation: the files in its folder are not those that it names.
        """
        for query in queries:
            if query not in self.parts:
                raise Violation(f"pin: checkpoint {self.checkpoint} is complete without {query}")
            if self.kept.get(query) is not self.parts[query]:
                raise Violation(f"pin: checkpoint {self.checkpoint} is complete without the files of {query}")
        return Stored(self.checkpoint, self.barrier, dict(self.parts), live)


@dataclass(frozen=True, slots=True)
class Watched:
    """The cut of one operator, until it is captured or given up."""

    query: QueryName
    operator: OperatorUid
    boundary: Epoch
    cut: PendingCut


@dataclass(slots=True)
class Desk:
    """All checkpoints that one driver makes.

    Attributes:
        told: what the core has said of them and nobody has taken up yet.
    """

    under_way: dict[CheckpointId, UnderWay] = field(default_factory=dict)
    told: deque[QueryCaptured | CheckpointFailed] = field(default_factory=deque)
    watched: list[Watched] = field(default_factory=list)

    def done(self) -> Iterator[Watched]:
        """The cuts that have been captured since the last time."""
        if not self.watched:
            return
        watched, self.watched = self.watched, []
        for each in watched:
            if each.cut.captured is None:
                self.watched.append(each)
            else:
                yield each

    def forget(self, barriers: set[tuple[OperatorUid, BarrierId]]) -> None:
        """Watch only cuts that are still being made."""
        self.watched = [each for each in self.watched if (each.operator, each.cut.barrier) in barriers]
