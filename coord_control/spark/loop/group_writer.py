"""Group commit: everything that waits during one write becomes the next write.

One thread takes batches in order, makes their records durable with one append per query, and then checks that the
generation is still this driver's. The check comes *after* the write and *before* any answer: so whatever was answered
can be read by every later generation, which read the storage after it had claimed (protocol section 6). Answers without
records come here when the last check is too old for them.

After a failed write nothing of the same *era* is written any more: later records may rest on the lost ones. The owner
ends all runs, begins a new era and recovers from what is durable.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from coord_control.errors import CoordControlError, StoreUnavailable
from coord_control.ids import QueryName
from coord_control.protocol.durations import Durations
from coord_control.protocol.messages import Batch
from coord_control.protocol.records import Record

__all__ = ["EpochLog", "GroupWriter", "Work"]

# Bounds one append: a longer queue becomes several writes.
_MAX_GROUP: Final = 4096


@dataclass(frozen=True, slots=True)
class Work:
    """A batch that is to be written to the storage."""

    era: int
    batch: Batch
    #: Called by the owner once the batch is executed, or with the error if it never will be.
    executed: Callable[[CoordControlError | None], None] | None = None
    is_answer: bool = False


class EpochLog(Protocol):
    """Where the records of a job become durable. Called on the writer thread."""

    def append(self, query: QueryName, records: Sequence[Record]) -> None:
        """Make records of a query durable.

        Raises:
            StoreError: they may be durable or not.
        """

    def verify(self) -> None:
        """Check that the job is still this driver's.

        Raises:
            Fenced: a newer driver has claimed it.
        """


class GroupWriter:
    """The writer thread.

    Args:
        written: called, on the writer thread, with what is durable, in order.
        failed: called, on the writer thread, with what will never be durable, and why.
    """

    def __init__(
        self,
        log: EpochLog,
        written: Callable[[list[Work]], None],
        failed: Callable[[list[Work], CoordControlError], None],
    ) -> None:
        self._log = log
        self._written = written
        self._failed = failed
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._failed_era = -1
        self._failure: CoordControlError | None = None
        self.writes = 0  #: group commits
        self.records = 0  #: in them
        self.durations = Durations()  #: of the group commits; replaced, never changed
        self._thread = threading.Thread(target=self._run, name="coord-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._queue.put(work)

    def close(self, timeout_seconds: float) -> None:
        """Write what waits, then end the thread."""
        self._queue.put(None)
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            group, last = self._group(first)
            self._write(group)
            if last:
                return

    def _group(self, first: Work) -> tuple[list[Work], bool]:
        group = [first]
        while len(group) < _MAX_GROUP:
            try:
                work = self._queue.get_nowait()
            except queue.Empty:
                return group, False
            if work is None:
                return group, True
            group.append(work)
        return group, False

    def _write(self, group: list[Work]) -> None:
        valid = [work for work in group if work.era > self._failed_era]
        lost = [work for work in group if work.era <= self._failed_era]
        if lost:
            assert self._failure is not None
            self._failed(lost, self._failure)
        if not valid:
            return
        try:
            self._persist(valid)
        except Exception as error:
            self._failed_era = valid[-1].era
            self._failure = _as_ours(error)
            self._failed(valid, self._failure)
        else:
            self._written(valid)

    def _persist(self, group: list[Work]) -> None:
        began = time.monotonic()
        records: dict[QueryName, list[Record]] = {}
        for work in group:
            for persist in work.batch.persist:
                records.setdefault(persist.query, []).append(persist.record)
        for query, of_query in records.items():
            self._log.append(query, of_query)
        if records or any(work.batch.answers or work.is_answer for work in group):
            self._log.verify()
        if records:
            self.writes += 1
            self.records += sum(map(len, records.values()))
            self.durations = self.durations.plus(time.monotonic() - began)


def _as_ours(error: Exception) -> CoordControlError:
    if isinstance(error, CoordControlError):
        return error
    failure = StoreUnavailable("the epoch store", "write", error)
    failure.__cause__ = error
    return failure
