"""Controls Python's garbage collector where it would only slow the work down.

After every few hundred new objects it scans the young ones, and periodically all live objects. While thousands of
lasting objects are created, it finds nothing and takes as long as the work itself.

A Spark Python worker collects all garbage after each task. Imported modules are never garbage, but scanning them takes
several milliseconds each time: as long as the rest of a small task.

Threads: the collector belongs to the process. While it is paused, no garbage cycles are collected in any thread, so
never pause it around anything that waits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["forget_imports", "paused"]

_has_forgotten = False


@contextmanager
def paused(pause: bool = True) -> Iterator[None]:
    """Pause the collector in the block, unless ``pause`` is false or it is disabled anyway."""
    if not pause or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def forget_imports() -> None:
    """Exclude all live objects from future collections; once per process, after its imports.

    Existing garbage is collected first. Excluded objects that become garbage later are never collected: modules,
    classes, functions.
    """
    global _has_forgotten
    if not _has_forgotten:
        _has_forgotten = True
        gc.collect()
        gc.freeze()
