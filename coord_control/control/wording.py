"""How values are said to people, on a terminal and on a page: sizes, durations, times, and text that others wrote.

Threads: pure functions; any thread.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from coord_control.storage.records import JobRecord, JobState

__all__ = ["CONTROLS", "human_bytes", "human_seconds", "human_time", "plain", "state_text"]

#: What a terminal obeys instead of showing it: controls (but line feed and tab), and what turns the writing around.
CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def plain(value: object) -> str:
    """Text with every character that a terminal would obey written as what it is, ``\\x1b``; lines and tabs stay."""
    return CONTROLS.sub(_spelled, str(value))


def human_bytes(size: int) -> str:
    """1234567 -> ``1.2 MB``."""
    value, units = float(size), ["bytes", "kB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{size} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


def human_seconds(seconds: float | None) -> str:
    """0.0123 -> ``12 ms``, 75 -> ``1m 15s``; nothing for None."""
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
    """A time in UTC, to the second; nothing for None."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def state_text(job: JobRecord) -> str:
    """What a job is, which is not what its driver last said when that driver is gone."""
    if job.is_restarting and job.state is JobState.ENDED:
        return "restarting"
    if job.dead_since is None or job.state is JobState.FAILED:
        return job.state.value
    return f"lost since {human_time(job.ended_at or job.heartbeat_at)}"


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
