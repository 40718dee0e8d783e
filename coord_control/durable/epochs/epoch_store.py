"""The durable records of one query's lineage: a log of immutable files, one folder per generation.

``<folder>/<generation>/<sequence>.log | <sequence>.base``. Every append is one new file, atomic and synced; the caller
passes everything that waits, so acks that arrive together share one write. Nothing is ever rewritten.

**Fencing by construction.** A driver that opens the store copies all live records of the newest older generation into
the base in its folder and from then on reads only that one. What an older driver writes later lands in a folder that is
never read again. It checks its claim after each write and before any answer, and the newer driver reads after it has
claimed: so whatever was answered is in the copy.

That base is written even when there is nothing to copy: without it, records that a fenced driver of an older generation
writes later would be found by the next generation and taken for this one's. Only generation 1 has no predecessor; there
the first append is the base, and a query whose control plane is idle writes nothing at all.

**Crashes.** The order is always: new base durable, then delete what it replaces. A crash leaves at worst files that the
next open or compaction deletes.

**What can be noticed.** A flipped bit, a truncated, exchanged, foreign or missing file is an error that names the
file. One loss leaves no trace for a new driver: the newest segments of a log, deleted as a whole.

Threads: it starts none. ``committed`` may be called from any thread; the other calls must not overlap. Payloads are
only held within a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from coord_control.durable.epochs.generation_log import Contents, GenerationLog
from coord_control.durable.epochs.records_codec import Header
from coord_control.durable.files.filesystem import Files
from coord_control.errors import MissingRecord
from coord_control.ids import NO_EPOCH, Epoch, Generation
from coord_control.protocol import liveness
from coord_control.protocol.records import Record, RunStarted

__all__ = ["EpochStore"]

#: Many small files make a restart slow: 256 take some 20 ms to read on a local disk, seconds on a remote one ...
_MAX_SEGMENTS: Final = 256
#: ... but a large base takes its time too, and rewriting it must stay rare: the state of ten thousand subtasks over a
#: hundred epochs is a base of 130 MB, and an epoch of theirs writes hundreds of files. Reading one more file takes as
#: long as reading 8 KiB of a base on a local disk, and as megabytes on a remote one, where groups are larger in turn.
_BASE_BYTES_PER_SEGMENT: Final = 32 << 10
#: Below this size rewriting is not worth its while ...
_MIN_COMPACT_BYTES: Final = 16 << 20
#: ... and above it, a base is rewritten when the log after it is this many times as large: at most 1.5 x the writes.
_COMPACT_FACTOR: Final = 2

_GENERATION: Final = re.compile(r"[1-9]\d*")


class EpochStore:
    """The epoch store of one query's lineage, for one generation. Call :meth:`open` first.

    Args:
        files: the job's storage.
        folder: the lineage's ``epochs`` folder.
        generation: this driver's.
        retain_epochs: how many epochs Spark's checkpoint can be set back (``spark.sql.streaming.minBatchesToRetain``).
        max_segments: compact when the log has more files than this after its base; more if the base is large.
        min_compact_bytes: compact when the log after its base is larger than this and twice the base.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        generation: Generation,
        retain_epochs: int,
        *,
        max_segments: int = _MAX_SEGMENTS,
        min_compact_bytes: int = _MIN_COMPACT_BYTES,
    ) -> None:
        self._files = files
        self._folder = folder
        self._generation = generation
        self._retain_epochs = retain_epochs
        self._max_segments = max_segments
        self._min_compact_bytes = min_compact_bytes
        self._log = GenerationLog(files, folder, generation)
        self._committed = NO_EPOCH
        self._horizon = liveness.horizon(NO_EPOCH, retain_epochs)
        self._next_sequence = 0  #: 0: there is no base yet
        self._base_bytes = 0
        self._segments = 0
        self._segment_bytes = 0
        self._is_doubtful = False  #: a write failed, and may have happened all the same

    @property
    def complete_from(self) -> Epoch:
        """The earliest last commit of Spark that can still be recovered exactly.

        See :mod:`coord_control.protocol.liveness`.
        """
        return liveness.complete_from(self._horizon)

    def committed(self, epoch: Epoch) -> None:
        """Tell the newest epoch that Spark has committed: what compaction may drop depends on it. Does no I/O.

        Call it before :meth:`open` too, so that the copy is not larger than it must be.
        """
        self._committed = max(self._committed, epoch)

    def open(self) -> list[Record]:
        """Take over from the newest older generation, or continue our own log; remove older generations.

        Returns:
            All live records in the order of the log; durable under this generation.

        Raises:
            DamagedRecord, MissingRecord, UnsupportedFormat: nothing was written; the message names the file.
            StoreUnavailable: may be tried again.
        """
        own = self._own_contents()
        if own is not None:
            records = self._adopt(own)
        else:
            records = self._take_over()
        for log in self._older_logs():
            log.remove()
        return records

    def append(self, records: Sequence[Record]) -> None:
        """Make records durable with one write; then compact if that is due. Nothing is written for no records.

        Raises:
            MissingRecord: a run starts from an epoch before :attr:`complete_from`: Spark's checkpoint was set back
                farther than Spark itself retains. Nothing was written.
            StoreUnavailable: the records may be durable or not; :meth:`read` tells. Appending them once more is
            harmless.
        """
        if not records:
            return
        self._refuse_set_back(records)
        self._settle()
        if self._next_sequence == 0:
            self._write_base(0, records)
            return
        self._segment_bytes += self._write(self._next_sequence, records, is_base=False)
        self._segments += 1
        self._next_sequence += 1
        self.compact_if_due()

    def read(self) -> list[Record]:
        """Return all live records in the order of the log, as they are on the storage now.

        Raises:
            DamagedRecord, MissingRecord, UnsupportedFormat: as the message says.
        """
        contents = self._own_contents()
        return [] if contents is None else self._adopt(contents)

    def compact_if_due(self) -> None:
        """Replace the log by a new base when it has become long. What it covers is deleted once it is durable."""
        self._settle()
        max_segments = max(self._max_segments, self._base_bytes // _BASE_BYTES_PER_SEGMENT)
        max_bytes = max(self._min_compact_bytes, _COMPACT_FACTOR * self._base_bytes)
        if self._segments <= max_segments and self._segment_bytes <= max_bytes:
            return
        contents = self._own_contents()
        assert contents is not None, "segments are only counted after a base"
        self._write_base(contents.next_sequence - 1, self._live(contents.records))
        self._log.delete_covered()

    def _take_over(self) -> list[Record]:
        source = self._source()
        if source is None and self._generation == 1:
            return []
        records: list[Record] = []
        if source is not None:
            self._horizon = max(self._horizon, source.horizon)
            records = self._live(source.records)
        self._write_base(0, records)
        return records

    def _source(self) -> Contents | None:
        """Read the newest older generation that has a base.

        From the oldest to the newest: a generation's base is durable before the ones before it are removed, so a log
        that was removed before we looked at it has a successor that we still come to, now or in the next round.
        """
        previous = None
        while True:
            logs = self._older_logs()
            readable = [log for log in logs if log.is_readable()]
            if readable:
                contents = readable[-1].read()
                if contents is not None:
                    self._require_bases([log for log in logs if log.generation > readable[-1].generation])
                    return contents
            elif previous == (names := [log.generation for log in logs]):
                self._require_bases(logs)
                return None
            else:
                previous = names

    def _require_bases(self, logs: list[GenerationLog]) -> None:
        for log in logs:
            log.has_base()

    def _older_logs(self) -> list[GenerationLog]:
        numbers = sorted(int(name) for name in self._files.list(self._folder) if _GENERATION.fullmatch(name))
        return [
            GenerationLog(self._files, self._folder, Generation(number))
            for number in numbers
            if number < self._generation
        ]

    def _own_contents(self) -> Contents | None:
        """Read our log; what this object has written itself must be there to the last file."""
        contents = self._log.read() if self._log.has_base() else None
        found = 0 if contents is None else contents.next_sequence
        if found < self._next_sequence:
            path = self._log.path(found, is_base=found == 0)
            raise MissingRecord(path, f"this driver has written the files up to {self._next_sequence - 1}")
        return contents

    def _adopt(self, contents: Contents) -> list[Record]:
        """Continue our log as it is found on the storage."""
        self._log.delete_covered()
        self._next_sequence = contents.next_sequence
        self._base_bytes = contents.base_bytes
        self._segments, self._segment_bytes = contents.segments, contents.segment_bytes
        self._horizon = max(self._horizon, contents.horizon)
        self._is_doubtful = False
        return self._live(contents.records)

    def _settle(self) -> None:
        if self._is_doubtful:
            self.read()
            self._is_doubtful = False

    def _live(self, records: Sequence[Record]) -> list[Record]:
        return liveness.live(records, self._committed, self._retain_epochs)

    def _write_base(self, sequence: int, records: Sequence[Record]) -> None:
        self._horizon = max(self._horizon, liveness.horizon(self._committed, self._retain_epochs))
        self._base_bytes = self._write(sequence, records, is_base=True)
        self._next_sequence = sequence + 1
        self._segments = self._segment_bytes = 0

    def _write(self, sequence: int, records: Sequence[Record], *, is_base: bool) -> int:
        self._is_doubtful = True
        size = self._log.write(Header(is_base, self._generation, sequence, self._horizon), records)
        self._is_doubtful = False
        return size

    def check_reaches(self, committed: Epoch) -> None:
        """Refuse to recover from a last commit of Spark for which records have been dropped; after :meth:`open`.

        Raises:
            MissingRecord: ``committed`` is before :attr:`complete_from`: Spark's checkpoint was set back too far.
        """
        if committed < self.complete_from:
            raise MissingRecord(
                self._log.folder,
                f"Spark's checkpoint is at epoch {committed}, and records are complete from epoch "
                f"{self.complete_from} on only",
            )

    def _refuse_set_back(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, RunStarted):
                self.check_reaches(record.committed)
