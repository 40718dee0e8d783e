"""Records of live values: what is accepted, which value each query sees, and how it came about.

Values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coord_control.protocol.job_facts import LiveUse
from coord_control.storage.records.record import Record

__all__ = ["LiveChangeRecord", "LiveUse", "LiveValueRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChangeRecord(Record):
    """A change of a live value, or its first value.

    Attributes:
        value: all fields after the change.
        by: who has changed it: an actor, the driver's program, a restore, or the job's default.
        since: by query, the first epoch that saw it. A query that had no epoch before the next change is not in it; and
            one that had, but was not seen at it by a heartbeat, is not either.
    """

    name: str
    version: int
    value: dict[str, Any]
    by: str
    at: datetime
    since: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveValueRecord(Record):
    """A live value that a job declares, as last reported by its driver.

    Attributes:
        value: what is accepted.
        schema: the JSON schema of its model.
        uses: by query, what its newest epoch has seen; queries in which no epoch has asked for live values are missing.
    """

    name: str
    version: int
    value: dict[str, Any]
    by: str
    at: datetime
    schema: dict[str, Any] = field(default_factory=dict)
    uses: dict[str, LiveUse] = field(default_factory=dict)
