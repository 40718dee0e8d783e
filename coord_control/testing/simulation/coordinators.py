"""A simulated coordinator, and what it may rest on: a reset before anything else, and one end for each barrier."""

from __future__ import annotations

from dataclasses import dataclass, field

from coord_control.ids import BarrierId, OperatorUid
from coord_control.testing.simulation.values import CoordinatorState, Violation

__all__ = ["SimulatedCoordinator"]


@dataclass(slots=True, eq=False)
class SimulatedCoordinator:
    """A user's coordinator: counts, sends, answers snapshots at once or late."""

    uid: OperatorUid
    parallelism: int
    incarnation: int = 1
    state: CoordinatorState = field(default_factory=lambda: CoordinatorState.empty(0))
    owed: list[BarrierId] = field(default_factory=list)  #: snapshots asked for and not completed
    _asked: set[BarrierId] = field(default_factory=set)
    _over: set[BarrierId] = field(default_factory=set)

    def reset(self, incarnation: int, state: bytes | None) -> None:
        self.incarnation = incarnation
        self.state = CoordinatorState.empty(self.parallelism) if state is None else CoordinatorState.of(state)
        self.owed = []
        self._asked, self._over = set(), set()

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
