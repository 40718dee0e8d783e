"""``_spark_metadata``: the log in which Spark's file sink lists the files of its output, one entry for each epoch.

Readers of the output see the files of this log and no others, and the sink skips each epoch up to the newest entry.
Every tenth entry (or as many as ``spark.sql.streaming.fileSink.log.compactInterval`` says) is named
``<epoch>.compact`` and repeats all entries before it, without their epochs. Entries before it are removed ten minutes
later. So removing later entries does not set the log back to an epoch: the compacted entry that it rests on may hold
later epochs, or be gone. What sets it back are the files that Spark read at that epoch: the newest compacted entry up
to it, and all entries after that one. The compacted entry before is kept too, because Spark takes the distance of the
last two for the interval.

Threads: pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from coord_control.errors import StateFileMissing
from coord_control.ids import NO_EPOCH, Epoch

__all__ = ["FILE_SINK", "LOG_NAME", "entries_up_to", "newest_entry"]

#: What Spark calls the sink.
FILE_SINK: Final = "file"
#: The folder of the log, in that of the output.
LOG_NAME: Final = "_spark_metadata"

_ENTRY: Final = re.compile(r"(\d+)(\.compact)?")
_COMPACTED: Final = 2  #: so many compacted entries are kept


def newest_entry(names: Iterable[str]) -> Epoch:
    """Return the newest epoch in a log, or -1 if it is empty.

    Args:
        names: of the files in its folder.
    """
    return Epoch(max((epoch for epoch, _, _ in _entries(names)), default=NO_EPOCH))


def entries_up_to(names: Iterable[str], epoch: Epoch) -> list[str]:
    """Return the files of a log from which Spark reads everything up to an epoch, oldest first.

    Raises:
        StateFileMissing: one of them is gone.
    """
    found = _entries(names)
    entries = [entry for entry in found if entry[0] <= epoch]
    compacted = [entry for entry in entries if entry[1]][-_COMPACTED:]
    first = compacted[-1][0] if compacted else 0
    wanted = {number: name for number, _, name in [*compacted, *entries] if number >= first}
    # A log without later entries ends where it ends; one with later entries had this one.
    last = epoch if found[len(entries) :] else entries[-1][0] if entries else NO_EPOCH
    for number in range(first, last + 1):
        if number not in wanted:
            why = "Spark has removed this entry of the file sink's log, and later ones are there"
            raise StateFileMissing(f"{LOG_NAME}/{number}", why)
    return [*(name for number, _, name in compacted if number < first), *(wanted[number] for number in sorted(wanted))]


def _entries(names: Iterable[str]) -> list[tuple[int, bool, str]]:
    matches = [(name, match) for name in names if (match := _ENTRY.fullmatch(name))]
    return sorted((int(match[1]), match[2] is not None, name) for name, match in matches)
