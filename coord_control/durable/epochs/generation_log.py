"""One generation's folder of the epoch store, and how to read it while its writer may still be alive.

A folder holds ``<sequence>.log`` segments and ``<sequence>.base`` files. A base holds everything live up to its
number, so the log is its newest base and the segments after it, without a gap. The first file is always a base.

A reader of an older generation's folder shares it with two others: the older driver, which may not know yet that it was
fenced, and a driver in between, which may already be removing the folder. Listing a folder is not atomic. So files are
deleted in one order: older bases before the segments that they need, and a whole folder beginning with its bases; and
they are read in the same order: list, then the newest base, then its segments. Then a base that could be read proves
that the listing before it missed nothing of what was durable when it began; and a file that vanished in between means:
look again.

Threads: one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coord_control.durable.epochs.records_codec import Header, Segment, decode_segment, encode_segment
from coord_control.durable.files.filesystem import Files, join
from coord_control.errors import DamagedRecord, MissingRecord
from coord_control.ids import Epoch, Generation
from coord_control.protocol.records import Record

__all__ = ["Contents", "GenerationLog"]

_NAME: Final = re.compile(r"(\d{10})\.(log|base)")

#: Each further attempt needs another compaction by a fenced driver, and that stops itself at its next write.
_READ_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Contents:
    """What a log holds, and how large it is.

    Attributes:
        horizon: the highest of its base: records of earlier epochs may have been left out.
        next_sequence: the number of the next segment.
        segments: how many there are after the base.
        segment_bytes: their size.
    """

    records: list[Record]
    horizon: Epoch
    next_sequence: int
    base_bytes: int
    segments: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class _Listing:
    bases: tuple[int, ...]
    segments: tuple[int, ...]


class _Changed(Exception):
    """A file went away or came between the listing and the reading."""

    def __init__(self, path: str) -> None:
        self.path = path


class GenerationLog:
    """The log of one generation of one query.

    Args:
        files: the storage.
        folder: the epoch store's folder; the generation's is below it.
        generation: whose log it is.
    """

    def __init__(self, files: Files, folder: str, generation: Generation) -> None:
        self._files = files
        self.generation = generation
        self.folder = join(folder, str(generation))

    def path(self, sequence: int, *, is_base: bool) -> str:
        return join(self.folder, f"{sequence:010d}.{'base' if is_base else 'log'}")

    def write(self, header: Header, records: Sequence[Record]) -> int:
        """Make one file durable and return its size in bytes.

        Raises:
            AlreadyExists: there is one of that number.
        """
        data = encode_segment(header, records)
        self._files.create(self.path(header.sequence, is_base=header.is_base), data)
        return len(data)

    def has_base(self) -> bool:
        """Say whether the log can be read.

        Raises:
            MissingRecord: there are segments, but the base before them is gone; no crash leaves that.
        """
        listing = self._listing()
        if listing.segments and not listing.bases:
            path = join(self.folder, f"*.base before {listing.segments[0]:010d}.log")
            raise MissingRecord(path, "the first file of a log is always a base")
        return bool(listing.bases)

    def is_readable(self) -> bool:
        """As :meth:`has_base`, without an error for a folder that a newer driver is removing."""
        return bool(self._listing().bases)

    def read(self) -> Contents | None:
        """Return all records, checked; None when there is no base (no log, or one that is being removed).

        Raises:
            DamagedRecord, MissingRecord, UnsupportedFormat: as the message says.
        """
        path = self.folder
        for _ in range(_READ_ATTEMPTS):
            listing = self._listing()
            if not listing.bases:
                return None
            try:
                return self._read(listing)
            except _Changed as changed:
                path = changed.path
        raise MissingRecord(path, "it is listed but cannot be found")

    def delete_covered(self) -> None:
        """Delete what the newest base has made superfluous."""
        listing = self._listing()
        if not listing.bases:
            return
        newest = listing.bases[-1]
        for sequence in listing.bases[:-1]:
            self._files.delete(self.path(sequence, is_base=True))
        for sequence in listing.segments:
            if sequence <= newest:
                self._files.delete(self.path(sequence, is_base=False))

    def remove(self) -> None:
        """Delete the folder, in the order that a reader can rely on."""
        for sequence in reversed(self._listing().bases):
            self._files.delete(self.path(sequence, is_base=True))
        self._files.delete(self.folder)

    def _listing(self) -> _Listing:
        # A listing that runs in parallel with a compaction can miss both the new base and the old one; two in a row
        # cannot.
        previous = None
        while True:
            found = [match for name in self._files.list(self.folder) if (match := _NAME.fullmatch(name))]
            listing = _Listing(
                tuple(sorted(int(match[1]) for match in found if match[2] == "base")),
                tuple(sorted(int(match[1]) for match in found if match[2] == "log")),
            )
            if listing.bases or listing == previous:
                return listing
            previous = listing

    def _read(self, listing: _Listing) -> Contents:
        newest = listing.bases[-1]
        base, base_bytes = self._segment(newest, is_base=True)
        records, segment_bytes = list(base.records), 0
        numbers = [sequence for sequence in listing.segments if sequence > newest]
        for expected, sequence in enumerate(numbers, newest + 1):
            if sequence != expected:
                self._report_gap(expected)
            segment, size = self._segment(sequence, is_base=False)
            records += segment.records
            segment_bytes += size
        return Contents(
            records=records,
            horizon=base.header.horizon,
            next_sequence=newest + len(numbers) + 1,
            base_bytes=base_bytes,
            segments=len(numbers),
            segment_bytes=segment_bytes,
        )

    def _segment(self, sequence: int, *, is_base: bool) -> tuple[Segment, int]:
        path = self.path(sequence, is_base=is_base)
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            raise _Changed(path) from None
        segment = decode_segment(path, data)
        header = segment.header
        if (header.is_base, header.generation, header.sequence) != (is_base, self.generation, sequence):
            kind = "base" if header.is_base else "segment"
            raise DamagedRecord(path, f"it is the {kind} {header.sequence} of generation {header.generation}")
        return segment, len(data)

    def _report_gap(self, sequence: int) -> None:
        # A file that came while the folder was listed may be left out although a later one is there.
        path = self.path(sequence, is_base=False)
        if self._files.exists(path):
            raise _Changed(path)
        raise MissingRecord(path, "later segments of the same log are there")
