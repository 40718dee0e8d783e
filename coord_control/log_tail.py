"""The last lines of a driver's log, for messages about its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["log_tail"]

#: A log may have gigabytes.
_BYTES: Final = 16_384


def log_tail(log_file: str | Path | None, lines: int) -> str:
    """Return the last lines of a log; empty if there is none that can be read."""
    if log_file is None:
        return ""
    try:
        with open(log_file, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
