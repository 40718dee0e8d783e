"""Checkpoints as the driver sees them: what the core has captured is stored some steps later, or never.

A stored one is a value that survives everything. What it must hold is checked when an operator is cut
(:meth:`.invariants.Invariants.captured`); what a restored lineage recovers from it, when it is restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coord_control.ids import BarrierId, CheckpointId, Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.cut import OperatorCut, PendingCut
from coord_control.protocol.messages import QueryCaptured
from coord_control.protocol.recovery import RecoveredOperator
from tests.simulation.spark import SparkLog
from tests.simulation.values import Violation

__all__ = ["Desk", "Part", "Rest", "Served", "Stored", "UnderWay", "Watched"]

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

    def __str__(self) -> str:
        at = ", ".join(f"{query} at {part.boundary}" for query, part in self.parts.items())
        return f"checkpoint {self.checkpoint} ({at})"


@dataclass(slots=True)
class UnderWay:
    """A checkpoint that the driver waits for."""

    checkpoint: CheckpointId
    barrier: BarrierId
    boundaries: dict[QueryName, Epoch]  #: what they must be
    parts: dict[QueryName, Part] = field(default_factory=dict)
    is_pinned: bool = False  #: its files are kept; ``_metadata`` is all that is missing

    @property
    def is_captured(self) -> bool:
        return self.parts.keys() == self.boundaries.keys()


@dataclass(frozen=True, slots=True)
class Watched:
    """The cut of one operator, until it is captured or given up."""

    query: QueryName
    operator: OperatorUid
    boundary: Epoch
    cut: PendingCut


@dataclass(slots=True)
class Desk:
    """All checkpoints that one driver waits for."""

    under_way: dict[CheckpointId, UnderWay] = field(default_factory=dict)
    watched: list[Watched] = field(default_factory=list)

    def captured(self, notice: QueryCaptured, operators: list[OperatorUid]) -> None:
        """A query with these operators is captured; of a cut that was given up meanwhile this is late news.

        Raises:
            Violation: something of it is missing, or it is captured elsewhere than it must be.
        """
        pending = self.under_way.get(notice.checkpoint)
        if pending is None or pending.barrier != notice.barrier:
            return
        expected = pending.boundaries[notice.query]
        if notice.boundary != expected:
            raise Violation(f"cut: {notice.query} is captured at {notice.boundary}, its boundary is {expected}")
        if (found := [cut.operator for cut in notice.cuts]) != operators:
            raise Violation(f"cut: {notice.query} is captured with operators {found} of {operators}")
        if notice.query in pending.parts:
            raise Violation(f"cut: {notice.query} is captured twice for checkpoint {notice.checkpoint}")
        pending.parts[notice.query] = Part(notice.boundary, notice.cuts)

    def over(self, checkpoint: CheckpointId) -> UnderWay | None:
        """A checkpoint is stored, aborted or failed."""
        return self.under_way.pop(checkpoint, None)

    def clear(self) -> None:
        """What they rest on may be lost."""
        self.under_way.clear()

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
