"""Python's garbage collector, told when it would only be in the way.

Each some hundred new objects it looks through the young ones, and now and then through all that live. While thousands
are made that stay, it finds nothing and takes as long as the work itself.

A Python worker of Spark collects all garbage after each task. What has been imported is never garbage, and to look
through it takes several milliseconds each time: as long as the rest of a small task.

Threads: the collector is the process's. While it is paused, nobody's garbage cycles are collected; so never pause it
around anything that waits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["forget_imports", "paused"]

_has_forgotten = False


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


def forget_imports() -> None:
    """Never look again through what lives now; once per process, when it has imported what it needs.

    What is garbage by then is collected first, and what becomes garbage of the rest stays: modules, classes, functions.
    """
    global _has_forgotten
    if not _has_forgotten:
        _has_forgotten = True
        gc.collect()
        gc.freeze()
