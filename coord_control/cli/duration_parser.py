"""Parses durations on the command line: ``30``, ``1.5s``, ``500ms``, ``2m``, ``1h``, ``7d``; seconds without a unit."""

from __future__ import annotations

import re
from typing import Final

import typer

__all__ = ["DURATION", "parse_seconds"]

#: How help names the value of an option.
DURATION: Final = "30s|5m|1h"

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)")


def parse_seconds(value: str | float) -> float:
    """Return a duration in seconds.

    Raises:
        typer.BadParameter: ``value`` is not a duration.
    """
    match = _DURATION.fullmatch(str(value).strip())
    if match is None:
        raise typer.BadParameter(f"{value!r} is not a duration; write for example 30, 1.5s, 500ms, 2m, 1h or 7d")
    return float(match[1]) * _UNITS[match[2]]
