"""Human-readable formatting for terminals and web pages: sizes, durations, times and untrusted text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from coord_control.storage.records import JobRecord, JobState

__all__ = ["CONTROLS", "human_bytes", "human_seconds", "human_time", "plain", "state_text"]

#: Characters that a terminal interprets instead of showing: control characters (except line feed and tab), and those
#: that change the writing direction.
CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def plain(value: object) -> str:
    """Return text in which control characters are escaped, such as ``\\x1b``; line feeds and tabs are kept."""
    return CONTROLS.sub(_spelled, str(value))


def human_bytes(size: int) -> str:
    """Format a size: 1234567 -> ``1.2 MB``."""
    value, units = float(size), ["bytes", "kB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{size} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


def human_seconds(seconds: float | None) -> str:
    """Format a duration: 0.0123 -> ``12 ms``, 75 -> ``1m 15s``; None -> an empty string."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h" if days else f"{hours}h {minutes}m" if hours else f"{minutes}m {rest}s"


def human_time(moment: datetime | None) -> str:
    """Format a time in UTC, to the second; None -> an empty string."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def state_text(job: JobRecord) -> str:
    """Return the state of a job; if its driver is gone, this differs from the state that it last reported."""
    if job.waits_for_driver:
        return "restarting"
    if job.dead_since is None or job.state is JobState.FAILED:
        return job.state.value
    return f"lost since {human_time(job.ended_at or job.heartbeat_at)}"


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
