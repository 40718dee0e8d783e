"""Converts live values to samples: their numbers and booleans, their versions, and the versions that queries see.

The same for a driver and for the control database, whose metrics differ by a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coord_control.metrics.families import Of
from coord_control.protocol.job_facts import LiveUse

__all__ = ["add_live_value"]


def add_live_value(
    job: Of,
    name: str,
    value: Mapping[str, Any],
    *,
    version: int,
    at_seconds: float,
    uses: Mapping[Any, LiveUse],
    prefix: str = "",
) -> None:
    """Add one live value; its texts, dates and nulls have no samples.

    Args:
        value: what is accepted, by field.
        at_seconds: when it was changed, since 1970.
        uses: by query.
        prefix: of the metrics.
    """
    for field, each in value.items():
        if isinstance(each, (bool, int, float)):
            job.add(f"{prefix}live_value", each, name, field)
    job.add(f"{prefix}live_value_version", version, name)
    job.add(f"{prefix}live_value_change_timestamp_seconds", at_seconds, name)
    for query, use in uses.items():
        job.add(f"{prefix}live_value_query_version", use.version, str(query), name)
