"""Steps of a checkpoint or a restore at which a driver can be stopped for good: it waits there until it is killed.

The steps are the driver's own accesses to its storage. `pause_if_asked` is called by the driver's script, which then
stops at the first access that fits, and says so with a file; the thread that made it never goes on, all others do.

Threads: any; the first one that comes by is stopped.
"""

from __future__ import annotations

import enum
import functools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from coord_control.durable.files.filesystem import LocalFiles

__all__ = ["PAUSE_VARIABLE", "Step", "pause_if_asked", "paused_mark", "wait_to_be_killed"]

PAUSE_VARIABLE: Final = "COORD_KILL_PAUSE"
_FOR_EVER: Final = 3600.0


class Step(enum.Enum):
    """Where: the verb, whether it has been done by then, and what its path looks like."""

    # A checkpoint or savepoint.
    ID_CLAIMED = ("create", True, r"checkpoints/\d+/_claim$")
    TARGET_CLAIMED = ("create", True, r"savepoints/[^/]+/_claim$")
    ONE_QUERY_PINNED = ("link_all", True, r"/savepoints/|/shared/")
    METADATA_NOT_IN_PLACE = ("_write_temporary", True, r"/_metadata$")
    METADATA_IN_PLACE = ("create", True, r"savepoints/[^/]+/_metadata$")
    SAVEPOINT_NOTED = ("create", True, r"/_completed$")
    METADATA_REMOVED = ("delete", True, r"checkpoints/\d+/_metadata$")
    FILES_NOT_REMOVED = ("delete_all", False, r"/shared$")
    CLAIM_REMOVED = ("delete", True, r"checkpoints/\d+/_claim$")
    # A restore.
    LINEAGE_RECORDED = ("create", True, r"lineage-00000[2-9]/lineage\.json$")
    LINEAGE_FILLED = ("link_all", True, r"lineage-00000[2-9]/spark$")
    RESTORE_NOT_COMMITTED = ("create", False, r"restores/\d+\.json$")
    RESTORE_COMMITTED = ("create", True, r"restores/\d+\.json$")
    SEEDED = ("create", True, r"lineage-00000[2-9]/epochs/\d+/[^/]+$")
    # A restore with its sinks.
    SINKS_MARKED = ("create", True, r"lineage-00000[2-9]/sinks_set_back$")
    LATER_ENTRY_REMOVED = ("delete", True, r"_spark_metadata/\d+(\.compact)?$")
    ENTRY_PUT_BACK = ("link_all", True, r"/_spark_metadata$")


def paused_mark(folder: Path) -> Path:
    """The file that says: it waits there."""
    return folder / "paused"


def pause_if_asked(folder: Path) -> None:
    """Make this process wait at the step that its environment names."""
    if wanted := os.environ.get(PAUSE_VARIABLE):
        verb, is_done, pattern = Step[wanted].value
        setattr(LocalFiles, verb, _pausing(getattr(LocalFiles, verb), is_done, re.compile(pattern), folder))


def _pausing(original: Callable[..., Any], is_done: bool, pattern: re.Pattern[str], folder: Path) -> Callable[..., Any]:
    @functools.wraps(original)
    def paused(files: LocalFiles, path: str, *args: Any) -> Any:
        # Of two folders the second is written to.
        is_here = pattern.search(args[0] if original.__name__ == "link_all" else path) is not None
        if is_here and not is_done:
            wait_to_be_killed(folder)
        result = original(files, path, *args)
        if is_here and is_done:
            wait_to_be_killed(folder)
        return result

    return paused


def wait_to_be_killed(folder: Path) -> None:
    """Say that this process waits, and wait; return at once if another thread does."""
    try:
        paused_mark(folder).touch(exist_ok=False)
    except FileExistsError:
        return
    time.sleep(_FOR_EVER)
