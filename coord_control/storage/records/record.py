"""What all records have in common: they say themselves as plain JSON.

Values; any thread.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, ClassVar

__all__ = [
    "Record",
    "to_json",
]


def to_json(value: object) -> Any:
    """Return plain values for JSON: records by the names of their fields, enums by value, times in ISO 8601.

    JSON has no NaN and no infinity: such numbers become null.
    """
    if isinstance(value, Record):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return _by_field(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Record:
    """Base of all records."""

    __slots__ = ()

    #: The fields that listings do not read.
    NOT_LISTED: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values for JSON."""
        return _by_field(self)

    def to_json_row(self) -> dict[str, Any]:
        """Return the record for a JSON listing, which has not read all of it: without :attr:`NOT_LISTED`."""
        return {name: value for name, value in self.to_json().items() if name not in self.NOT_LISTED}


def _by_field(value: Any) -> dict[str, Any]:
    return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
