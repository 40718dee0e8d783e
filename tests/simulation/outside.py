"""Whoever sends control events from outside, and keeps them: it survives everything, like a database.

An item does one of five things to its coordinator: it changes its state, is passed on to subtasks and changes nothing,
does both or neither, or is refused. Together they show what a lost or doubled item is lost or doubled in.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from coord_control.ids import OperatorUid
from tests.simulation.values import ITEMS_PER_JOB

__all__ = ["Item", "Outside", "Style"]


class Style(enum.Enum):
    STATE = "changes the state"
    PASS = "is passed on"
    BOTH = "changes the state and is passed on"
    NEITHER = "does nothing"
    POISON = "is refused"


@dataclass(frozen=True, slots=True)
class Item:
    """One control event from outside.

    Attributes:
        id: unlike any other of its operator; those of one job in order.
        subtask: for this one only; None: for all.
    """

    operator: OperatorUid
    id: int
    style: Style
    subtask: int | None

    @property
    def number(self) -> int:
        """Among the items of its job and operator."""
        return self.id % ITEMS_PER_JOB

    @property
    def changes_state(self) -> bool:
        return self.style in (Style.STATE, Style.BOTH)

    @property
    def is_passed_on(self) -> bool:
        return self.style in (Style.PASS, Style.BOTH)

    def goes_to(self, subtask: int) -> bool:
        return self.is_passed_on and self.subtask in (None, subtask)

    def __str__(self) -> str:
        return f"item {self.id} ({self.style.value})"


@dataclass(slots=True)
class Outside:
    """All items that were ever accepted."""

    jobs: list[str] = field(default_factory=lambda: ["job"])  #: names; a fork has a new one, or one of these again
    accepted: dict[tuple[str, OperatorUid], list[Item]] = field(default_factory=dict)
    outcomes: dict[Item, bool] = field(default_factory=dict)  #: of those that have one: whether it was applied
    applied: set[Item] = field(default_factory=set)  #: at least once

    def accept(self, job: str, uid: OperatorUid, number: int, style: Style, subtask: int | None) -> Item:
        """Make an item durable under a number."""
        item = Item(uid, self.jobs.index(job) * ITEMS_PER_JOB + number, style, subtask)
        self.of(job, uid).append(item)
        return item

    def of(self, job: str, uid: OperatorUid) -> list[Item]:
        """The items of an operator, in order."""
        return self.accepted.setdefault((job, uid), [])

    def before(self, job: str, uid: OperatorUid, item: Item) -> list[Item]:
        """Those that must have come before an item."""
        return [other for other in self.of(job, uid) if other.id < item.id]
