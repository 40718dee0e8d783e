"""Python's garbage collector, told when it would only be in the way.

Each some hundred new objects it looks through the young ones, and now and then through all that live. While thousands
are made that stay, it finds nothing and takes as long as the work itself.

Threads: the collector is the process's. While it is paused, nobody's garbage cycles are collected; so never pause it
around anything that waits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused"]


@contextmanager
def paused(pause: bool = True) -> Iterator[None]:
    """Pause the collector in the block, unless ``pause`` is false or it does not run anyway."""
    if not pause or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
