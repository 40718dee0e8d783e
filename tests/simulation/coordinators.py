"""A simulated coordinator, and what it may rest on: a reset before anything else, and one end for each barrier."""

from __future__ import annotations

from dataclasses import dataclass, field

from coord_control.ids import BarrierId, OperatorUid
from coord_control.protocol.control_events import EventFeed
from tests.simulation.outside import Item
from tests.simulation.values import ITEMS_PER_JOB, CoordinatorState, Violation, add_item

__all__ = ["SimulatedCoordinator"]


@dataclass(slots=True, eq=False)
class SimulatedCoordinator:
    """A user's coordinator: counts, sends, answers snapshots at once or late."""

    uid: OperatorUid
    parallelism: int
    incarnation: int = 1
    state: CoordinatorState = field(default_factory=lambda: CoordinatorState.empty(0))
    owed: list[BarrierId] = field(default_factory=list)  #: snapshots asked for and not completed
    refused: set[Item] = field(default_factory=set)
    requests: int = 0  #: from outside, that it has not been given
    was_fed: bool = False  #: with the items from outside that came before its driver
    feed: EventFeed[Item] = field(default_factory=lambda: EventFeed(limit=1 << 30))
    _asked: set[BarrierId] = field(default_factory=set)
    _over: set[BarrierId] = field(default_factory=set)

    def reset(self, incarnation: int, state: bytes | None) -> None:
        self.incarnation = incarnation
        self.state = CoordinatorState.empty(self.parallelism) if state is None else CoordinatorState.of(state)
        self.owed = []
        self._asked, self._over = set(), set()

    def handles(self, item: Item, earlier: list[Item]) -> None:
        """``handle_control_event``, as far as it changes the state.

        Args:
            earlier: those of the same job that were accepted before it and not refused.

        Raises:
            Violation: it comes twice, out of its order, or one before it has never come.
        """
        expected = [other.id for other in earlier if other.changes_state]
        seen = [other for other in self.state.control if other // ITEMS_PER_JOB == item.id // ITEMS_PER_JOB]
        if seen != expected:
            raise Violation(f"control: the coordinator of {self.uid} has {seen} of {expected} when {item} comes")
        if item.changes_state:
            add_item(self.state.control, item.id, f"the coordinator of {self.uid}")

    def asked(self, barrier: BarrierId) -> None:
        """``checkpoint_coordinator``."""
        self.owed.append(barrier)
        self._asked.add(barrier)

    def told(self, barrier: BarrierId) -> None:
        """How a barrier has ended.

        Raises:
            Violation: it was told before.
        """
        if barrier in self._over:
            raise Violation(f"C7: the coordinator of {self.uid} is told twice how barrier {barrier} has ended")
        self._over.add(barrier)

    def aborted(self, barrier: BarrierId) -> None:
        """``notify_checkpoint_aborted``.

        Raises:
            Violation: it was told before, or never asked for its state.
        """
        if barrier not in self._asked:
            raise Violation(f"C7: the coordinator of {self.uid} hears of barrier {barrier}, and was never asked")
        self.told(barrier)
