"""Setting the log of a file sink to what a checkpoint holds of it.

Afterwards ``_spark_metadata`` is exactly what Spark read at the boundary, so the sink takes every later epoch. Data
files of later epochs stay where they are: no reader sees a file that the log does not name, and later savepoints name
them still.

**Readers meanwhile.** A reader goes by the newest entry, and by those back to the compacted one before it. So missing
entries are added first, oldest first, then later ones are removed, newest first. What is there under the same name with
another content comes from another history; it is replaced after that.

**Crashes.** Every step looks at what is there, so the whole may be repeated from any point. No query may write to the
sink meanwhile.

Threads: the one that restores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coord_control.durable.checkpoints.metadata_file import SINK_LOG, FileEntry
from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.durable.spark_layout.file_sink_log import LOG_NAME, newest_entry
from coord_control.errors import MissingRecord
from coord_control.ids import NO_EPOCH, Epoch

__all__ = ["holds", "newest_epoch", "set_back_file_sink"]


def newest_epoch(files: Files, sink: str) -> Epoch | None:
    """Return the newest epoch in a file sink, -1 if its log is empty, or None if it has no log.

    Args:
        files: the storage of ``sink``, the folder of the output.
    """
    log = join(sink, LOG_NAME)
    names = files.list(log)
    return None if not names and not files.exists(log) else newest_entry(names)


def holds(files: Files, sink: str, entries: Sequence[FileEntry]) -> bool:
    """Return whether the log of a file sink has these entries, with this content; it may have more.

    Args:
        files: the storage of ``sink``, the folder of the output.
    """
    return not _different(files, join(sink, LOG_NAME), _by_name(entries))


def set_back_file_sink(
    files: Files, sink: str, kept: Files, folder: str, entries: Sequence[FileEntry], verify: Callable[[], None]
) -> None:
    """Set the log of a file sink to these entries. Repeatable.

    Args:
        files: the storage of ``sink``, the folder of the output.
        kept: the storage of ``folder``, which holds the entries under their paths.
        verify: raises Fenced when a newer driver owns the job; called before each change, because that driver may have
            set the sink back meanwhile, and its queries write entries with the names of those that were found here.

    Raises:
        Fenced: a newer driver owns the job.
        MissingRecord: an entry is not in the folder.
        StoreUnavailable: the log may be set back in part; repeat it.
    """
    log = join(sink, LOG_NAME)
    wanted = _by_name(entries)
    found = [name for name in files.list(log) if newest_entry([name]) != NO_EPOCH]
    newest = newest_entry(wanted)
    for name in wanted:
        if name not in found:
            verify()
            _put(files, log, kept, folder, name)
    for name in sorted(found, key=lambda name: newest_entry([name]), reverse=True):
        if newest_entry([name]) > newest:
            verify()
            _remove(files, log, name)
    for name in _different(files, log, wanted):
        verify()
        _put(files, log, kept, folder, name)
    for name in found:
        if name not in wanted and newest_entry([name]) <= newest:
            verify()
            _remove(files, log, name)


def _by_name(entries: Sequence[FileEntry]) -> dict[str, FileEntry]:
    return {entry.path.removeprefix(f"{SINK_LOG}/"): entry for entry in entries}


def _different(files: Files, log: str, wanted: dict[str, FileEntry]) -> list[str]:
    checksums = files.checksum_all(log, list(wanted))
    return [
        name
        for (name, entry), checksum in zip(wanted.items(), checksums, strict=True)
        if checksum is None or (checksum.size, checksum.crc32) != (entry.size, entry.crc32)
    ]


def _put(files: Files, log: str, kept: Files, folder: str, name: str) -> None:
    _remove_checksum(files, log, name)
    source, target = join(folder, SINK_LOG, name), join(log, name)
    try:
        if kept is files or (isinstance(kept, LocalFiles) and isinstance(files, LocalFiles)):
            files.link(source, target)
        else:
            files.write_chunks(target, kept.chunks(source))
    except FileNotFoundError:
        raise MissingRecord(source, "the restore has kept it to set back the file sink") from None


def _remove(files: Files, log: str, name: str) -> None:
    # The checksum first: without its entry nothing would remove it, and it does not fit the next entry of that name.
    _remove_checksum(files, log, name)
    files.delete(join(log, name))


def _remove_checksum(files: Files, log: str, name: str) -> None:
    # Hadoop's local file system keeps a checksum next to each file, and refuses a file that it does not fit.
    if isinstance(files, LocalFiles):
        files.delete(join(log, f".{name}.crc"))
