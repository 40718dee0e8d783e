"""A measure: what a number about a checkpoint, a query, an operator or a subtask is called, and how it is shown."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from coord_control.control.wording import human_bytes, human_seconds

__all__ = ["Measure", "Place", "Unit", "shown"]

_T = TypeVar("_T")


class Unit(enum.Enum):
    """What kind of value a measure is; ``str`` values of any unit are shown as they are."""

    TEXT = "string"
    ORDINAL = "ordinal"  #: a number that names something: an epoch, a subtask
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"

    @property
    def is_number(self) -> bool:
        return self is not Unit.TEXT

    def text(self, value: Any) -> str:
        """Format a value for people; None -> an empty string."""
        if value is None or isinstance(value, str):
            return value or ""
        match self:
            case Unit.SECONDS:
                return human_seconds(value)
            case Unit.BYTES:
                return human_bytes(round(value))
            case Unit.COUNT:
                return f"{value:,.0f}"
            case _:
                return str(value)


class Place(enum.Flag):
    """Where a measure is shown."""

    CLI = enum.auto()
    PAGE = enum.auto()
    DAGSTER = enum.auto()
    FAILURE = enum.auto()  #: Dagster's metadata of a failed checkpoint
    METRIC = enum.auto()  #: of the newest completed checkpoint, in the driver's metrics and in the exporter's
    SUMMARY = enum.auto()  #: percentiles over many checkpoints; needs a column and a field of ``CheckpointSummary``

    PEOPLE = CLI | PAGE
    TABLES = CLI | PAGE | DAGSTER


@dataclass(frozen=True, slots=True)
class Measure(Generic[_T]):
    """One row.

    Attributes:
        name: in Dagster, in metrics and in links that sort a table.
        title: the heading in ``coordctl`` and on pages.
        meaning: a sentence; in measures of a checkpoint ``{}`` stands for the checkpoint.
        pick: where the value is: an attribute (None: that of the same name), or a function.
        lacking: returns the text for an unknown value.
        dagster: the name in Dagster where it is another one.
        summary: the field of ``CheckpointSummary`` where it is another one.
    """

    name: str
    title: str
    unit: Unit
    meaning: str
    places: Place = Place.TABLES
    pick: Callable[[_T], Any] | str | None = None
    lacking: Callable[[_T], str] | None = None
    dagster: str | None = None
    summary: str | None = None

    def value(self, part: _T) -> Any:
        """Return the value, or None if it is unknown."""
        return self.pick(part) if callable(self.pick) else attrgetter(self.pick or self.name)(part)

    def text(self, part: _T) -> str:
        """Return the value for people, or the text for an unknown one."""
        return self.unit.text(self.value(part)) or self.text_of_unknown(part)

    def text_of_unknown(self, part: _T) -> str:
        """Return the text for an unknown value; empty if it is known."""
        return self.lacking(part) if self.lacking is not None and self.value(part) is None else ""

    def rank(self, part: _T) -> tuple[int, Any]:
        """Return a key that sorts the largest value first, and before it what is unknown and should not be."""
        value = self.value(part)
        return (0 if self.lacking is not None else 2, 0) if value is None else (1, -value)


def shown(measures: Iterable[Measure[_T]], place: Place) -> Sequence[Measure[_T]]:
    """Return the measures that are shown at a place."""
    return [measure for measure in measures if place in measure.places]
