"""What is known from outside of a lineage's live values: what was accepted, and what epochs have seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from coord_control.ids import Epoch, QueryName, RunId

__all__ = ["LiveBook"]


@dataclass(slots=True)
class LiveBook:
    """The live value of one lineage.

    Attributes:
        first: with which it begins: the one of the checkpoint, or 0.
        accepted: in order; the first of them is the one that a driver has begun with.
        seen: by epoch; answers that were given.
        planned: who has planned an epoch, and what was accepted then.
    """

    first: int = 0
    accepted: list[int] = field(default_factory=list)
    seen: dict[tuple[QueryName, Epoch], int] = field(default_factory=dict)
    planned: dict[tuple[QueryName, Epoch], tuple[RunId, int]] = field(default_factory=dict)

    @property
    def current(self) -> int:
        """What counts now."""
        return self.accepted[-1] if self.accepted else self.first

    def position(self, number: int) -> int:
        """Where a value stands in their order; what was there before a restore comes first."""
        return self.accepted.index(number) if number in self.accepted else -1

    def plan(self, query: QueryName, epoch: Epoch, run: RunId) -> None:
        """Spark plans an epoch."""
        self.planned[query, epoch] = (run, self.current)

    def set_back(self, query: QueryName, planned: Epoch) -> None:
        """Spark has lost the plans of the epochs after this one."""
        for key in [key for key in self.seen if key[0] == query and key[1] > planned]:
            del self.seen[key]
