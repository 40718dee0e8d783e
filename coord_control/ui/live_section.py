"""The live values of a job on its page: what is accepted, and how it has changed.

Threads: values; any.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coord_control.storage.records import LiveChangeRecord

__all__ = ["ChangedField", "LiveChangeRow", "change_rows", "shown_value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedField:
    """A field of a change, as JSON; ``before`` is empty if it is not known."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChangeRow:
    """A change, with the fields that differ from the change before it; all of them if that is not listed."""

    change: LiveChangeRecord
    fields: tuple[ChangedField, ...]


def change_rows(changes: Sequence[LiveChangeRecord], most: int) -> tuple[LiveChangeRow, ...]:
    """Return rows for the newest changes.

    Args:
        changes: newest first; those behind the listed ones tell what the last ones have changed.
    """
    rows = []
    for place, change in enumerate(changes[:most]):
        before = next((each for each in changes[place + 1 :] if each.name == change.name), None)
        rows.append(LiveChangeRow(change=change, fields=_changed(change, before)))
    return tuple(rows)


def shown_value(value: Any) -> str:
    """Return a field's value as JSON, which tells a text from a number."""
    return json.dumps(value, ensure_ascii=False)


def _changed(change: LiveChangeRecord, before: LiveChangeRecord | None) -> tuple[ChangedField, ...]:
    old = {} if before is None else before.value
    return tuple(
        ChangedField(name=name, before=shown_value(old[name]) if name in old else "", after=shown_value(value))
        for name, value in change.value.items()
        if name not in old or old[name] != value
    )
