"""The peak memory of this process during an action."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["MIB", "peak"]

MIB: Final = 1 << 20


def peak(action: Callable[[], object]) -> int | None:
    """Return the peak resident memory during an action, in bytes above the memory before it.

    The kernel records the peak, so nothing is missed between two samples. Return None if it does not (not Linux).
    """
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak; proc(5)
    except OSError:
        action()
        return None
    before = _status("VmRSS")
    action()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"the kernel does not tell {field}")
