"""The most memory that this process has while it does something."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["MIB", "peak"]

MIB: Final = 1 << 20


def peak(action: Callable[[], object]) -> int | None:
    """The most resident memory during an action, in bytes above what it was before.

    The kernel keeps the peak, so nothing is missed between two looks. None: this one does not (it is not Linux).
    """
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew; proc(5)
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
