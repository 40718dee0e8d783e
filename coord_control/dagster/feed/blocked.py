"""Blocked events of operators: entries of an observation of their query, by what has closed the gateways.

A driver reports totals since its start. The sensor remembers those of the last observation, so that Dagster plots how
many events had to wait in between, and for how long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coord_control.control.wording import human_seconds
from coord_control.storage.records import BlockedRecord, OperatorRecord

__all__ = ["BlockedMark", "blocked_entries", "blocked_marks"]


@dataclass(frozen=True, slots=True)
class BlockedMark:
    """What was last observed of an operator.

    Attributes:
        generation: the driver's; a new driver counts from zero.
        by: the blocked events by cause.
    """

    generation: int
    by: dict[str, BlockedRecord] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Return whether no event has had to wait since the driver started."""
        return all(each == BlockedRecord() for each in self.by.values())


def blocked_marks(operators: Iterable[OperatorRecord], generation: int) -> dict[str, BlockedMark]:
    """Return what is known of these operators now, by uid."""
    return {each.uid: BlockedMark(generation, each.blocked_by) for each in operators}


def blocked_entries(
    operators: Iterable[OperatorRecord], generation: int, before: Mapping[str, BlockedMark]
) -> dict[str, object]:
    """Return the numbers of each operator and cause, and a text that names the worst subtask.

    Args:
        generation: of the driver that has reported the operators.
        before: the last observation; of an operator that is not in it, only what waits now is known.
    """
    found: dict[str, object] = {}
    for operator in operators:
        mark = before.get(operator.uid)
        place = f"blocked/{operator.uid}"
        for cause, now in operator.blocked_by.items():
            found[f"{place}/{cause}/now"] = now.now
            if mark is not None:
                last = mark.by.get(cause, BlockedRecord()) if mark.generation == generation else BlockedRecord()
                found[f"{place}/{cause}/events"] = max(0, now.events - last.events)
                found[f"{place}/{cause}/seconds"] = max(0.0, now.seconds - last.seconds)
        found[f"{place}/worst_subtask"] = _worst_subtask(operator)
    return found


def _worst_subtask(operator: OperatorRecord) -> str | None:
    worst = max(operator.gateways, key=lambda each: (each.blocked, each.blocked_seconds), default=None)
    if worst is None or not worst.blocked_total:
        return None
    return (
        f"subtask {worst.subtask}: {worst.blocked} events wait now; {worst.blocked_total} have waited since the query "
        f"was started, for {human_seconds(worst.blocked_seconds)}"
    )
