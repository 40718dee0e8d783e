"""Spark's own logs of a query: what an entry of ``offsets``, of ``commits`` and of a file source says.

Both are text: a first line with the format version (``v1``), then JSON. The offset log's second line holds the
watermark and the settings that Spark pins for the query; then there is one line per source, in the order of the plan
(v1) or with the source's name before a colon (v2, which Spark 4.3 writes for named sources). A source without an
offset yet has ``-``. The commit log of checkpoint format 2 names the state files: a unique id per operator,
partition and store.

A file source logs the files of each of its offsets in ``sources/<i>/<offset>``, one JSON object per line. Every tenth
entry (or as many as ``spark.sql.streaming.fileSource.log.compactInterval`` says) is named ``<offset>.compact`` and
repeats all entries before it.

Versions are read by what is in them, not refused by their number: Spark raises them for reasons that do not
concern us (commit log v3 adds what a sink says), and what we need has kept its place so far.

Threads: pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from coord_control.errors import DamagedRecord, StateFileMissing

__all__ = [
    "CommitEntry",
    "OffsetEntry",
    "Read",
    "SourceFile",
    "file_source_log",
    "file_source_offset",
    "is_wake_offset",
    "parse_commit",
    "parse_offsets",
    "parse_source_files",
    "parse_versioned_json",
    "read_file",
]

#: Gives the content of a file by its path relative to the checkpoint directory; FileNotFoundError when it is gone.
Read = Callable[[str], bytes]

_NO_OFFSET: Final = "-"
_WAKE_OFFSET: Final = '{"wake":'
_SOURCE_ENTRY: Final = re.compile(r"(\d+)(\.compact)?")


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """``offsets/<epoch>``: up to where the sources are read in this epoch."""

    version: int
    metadata: Mapping[str, Any]  # batchWatermarkMs, batchTimestampMs, conf
    by_source: Mapping[str, str | None]  # name of the folder in sources/ -> offset as the source wrote it

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that Spark pinned for the query at its first start."""
        conf = self.metadata.get("conf")
        return conf if isinstance(conf, dict) else {}


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """``commits/<epoch>``: the epoch is done; `state_ids` is None in checkpoint format 1 and without state."""

    version: int
    metadata: Mapping[str, Any]  # nextBatchWatermarkMs, stateUniqueIds
    state_ids: Mapping[int, tuple[frozenset[str], ...]] | None = field(default=None)  # operator -> partition -> ids


class SourceFile(msgspec.Struct, frozen=True, gc=False):
    """A file that a file source has found.

    Attributes:
        path: a URI, percent-encoded.
        batch: the offset of the source with which it was read.
    """

    path: str
    batch: int = msgspec.field(name="batchId")


_source_files: Final = msgspec.json.Decoder(SourceFile)


def read_file(read: Read, path: str) -> bytes:
    """Read a file that the listing had.

    Raises:
        StateFileMissing: it is gone.
    """
    try:
        return read(path)
    except FileNotFoundError:
        raise StateFileMissing(path, "it was removed after the directory was listed") from None


def parse_offsets(path: str, content: bytes) -> OffsetEntry:
    """Parse an entry of the offset log.

    Args:
        path: for messages.

    Raises:
        DamagedRecord: it is not an entry of an offset log.
    """
    version, lines = _versioned_lines(path, content)
    metadata = _parse_object(path, lines[0]) if lines and lines[0].strip() else {}
    offsets = [line for line in lines[1:] if line]
    pairs = [line.split(":", 1) for line in offsets] if version >= 2 else [[str(i), o] for i, o in enumerate(offsets)]
    if any(len(pair) != 2 for pair in pairs):
        raise DamagedRecord(path, "a line for a source has no name before a colon")
    return OffsetEntry(version, metadata, {name: None if value == _NO_OFFSET else value for name, value in pairs})


def parse_commit(path: str, content: bytes) -> CommitEntry:
    """Parse an entry of the commit log.

    Args:
        path: for messages.

    Raises:
        DamagedRecord: it is not an entry of a commit log.
    """
    version, lines = _versioned_lines(path, content)
    metadata = _parse_object(path, lines[0]) if lines and lines[0].strip() else {}
    ids = metadata.get("stateUniqueIds")
    if ids is None:
        return CommitEntry(version, metadata)
    try:
        by_operator = {
            int(operator): tuple(frozenset(map(str, stores)) for stores in partitions)
            for operator, partitions in ids.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedRecord(path, f"stateUniqueIds are not lists of ids by operator: {error}") from None
    return CommitEntry(version, metadata, by_operator or None)


def file_source_offset(offset: str | None) -> int | None:
    """Return the newest entry of its log that a file source has handed out; None for other sources."""
    try:
        value = json.loads(offset or "null")
    except ValueError:
        return None
    number = value.get("logOffset") if isinstance(value, dict) and len(value) == 1 else None
    return number if isinstance(number, int) else None


def is_wake_offset(offset: str) -> bool:
    """Return whether an offset is that of a source of ours, which wakes subtasks and reads nothing."""
    return offset.startswith(_WAKE_OFFSET)


def file_source_log(names: Iterable[str]) -> list[str]:
    """Return the names of the entries that hold the whole log: the newest compacted one, and those after it."""
    entries = [
        (int(match[1]), match[2] is not None, name) for name in names if (match := _SOURCE_ENTRY.fullmatch(name))
    ]
    newest = max(((number, is_compacted) for number, is_compacted, _ in entries if is_compacted), default=(-1, False))
    return [name for number, is_compacted, name in sorted(entries) if (number, is_compacted) >= newest]


def parse_source_files(path: str, content: bytes) -> list[SourceFile]:
    """Parse an entry of the log of a file source.

    Args:
        path: for messages.

    Raises:
        DamagedRecord: it is not an entry of such a log.
    """
    _versioned_lines(path, content)
    try:
        return _source_files.decode_lines(content.partition(b"\n")[2])
    except msgspec.MsgspecError as error:
        raise DamagedRecord(path, f"its lines are not files of a source: {error}") from None


def parse_versioned_json(path: str, content: bytes) -> tuple[int, dict[str, Any]]:
    """Parse a file of a version line and one JSON object (operator descriptions, the index of a RocksDB snapshot).

    Raises:
        DamagedRecord: it is something else.
    """
    version, lines = _versioned_lines(path, content)
    return version, _parse_object(path, "\n".join(lines))


def _versioned_lines(path: str, content: bytes) -> tuple[int, list[str]]:
    try:
        first, *lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise DamagedRecord(path, "it is not text") from None
    number = first.strip().removeprefix("v")
    if not first.startswith("v") or not number.isdigit():
        raise DamagedRecord(path, f"it begins with {first[:20]!r}, not with a format version such as v1")
    return int(number), lines


def _parse_object(path: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DamagedRecord(path, f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise DamagedRecord(path, "its JSON is not an object")
    return value
