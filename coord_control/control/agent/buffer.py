"""The agent's buffer of records to write: bounded, each kind with its own retention rule.

* Current state (a checkpoint in progress) replaces the previous state: only the newest is kept.
* Facts (a checkpoint ended, a recovery, the outcome of a command) are kept in order. If there are too many, the oldest
  first lose their details per subtask; then the oldest are dropped, but never the outcome of a command. Those are
  bounded anyway, because no command is claimed while the database is unavailable. A completed checkpoint that was
  dropped is recovered from the storage (:mod:`.reconciliation`).
* Samples are dropped oldest first.

Everything that was dropped is counted.

Threads: any, under one lock that is held briefly; records are taken out by one thread at a time.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from coord_control.control.execution.outcomes import Refusal, failed
from coord_control.errors import Fault, RecordNotFound
from coord_control.ids import CheckpointId
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.storage.records import (
    CheckpointRecord,
    OperatorSample,
    Outcome,
    QuerySample,
    RecoveryRecord,
    SavepointRecord,
)
from coord_control.storage.store import ControlStore

__all__ = [
    "Buffer",
    "CheckpointDiscarded",
    "CheckpointEnded",
    "CommandEnded",
    "Fact",
    "Recovered",
    "Sampled",
    "SavepointDisposed",
    "SavepointVerified",
]

#: How many facts are kept with their details, and in total; some hours of a busy job.
_DETAILED: Final = 1_000
_FACTS: Final = 10_000
#: How many samples are kept; half an hour.
_SAMPLES: Final = 360


class Fact(ABC):
    """Something that has happened."""

    __slots__ = ()

    #: Whether it may be dropped when the buffer is full.
    is_expendable: ClassVar[bool] = True

    def without_detail(self) -> Fact | None:
        """Return a smaller version of the fact, or None if there is none."""
        return None

    def if_refused(self) -> Fact | None:
        """Return what to write if the database refuses the fact as it is, or None if it can be lost."""
        return None

    @abstractmethod
    def write(self, store: ControlStore) -> None: ...


@dataclass(frozen=True, slots=True)
class CheckpointEnded(Fact):
    """A checkpoint has completed or failed."""

    record: CheckpointRecord
    savepoint: SavepointRecord | None = None  #: if it is a complete savepoint

    def without_detail(self) -> CheckpointEnded | None:
        smaller = self.record.without_subtasks()
        return None if smaller == self.record else replace(self, record=smaller)

    def write(self, store: ControlStore) -> None:
        store.checkpoints.save(self.record.job, self.record)
        if self.savepoint is not None:
            store.savepoints.save(self.savepoint)


@dataclass(frozen=True, slots=True)
class CheckpointDiscarded(Fact):
    """A complete checkpoint was removed from storage."""

    job: str
    checkpoint: int

    def write(self, store: ControlStore) -> None:
        store.checkpoints.discarded(self.job, [self.checkpoint])


@dataclass(frozen=True, slots=True)
class Recovered(Fact):
    """A query has recovered."""

    record: RecoveryRecord

    def write(self, store: ControlStore) -> None:
        store.recoveries.add(self.record)


@dataclass(frozen=True, slots=True)
class SavepointDisposed(Fact):
    """The savepoint at a path was removed, whichever job it belongs to; ignored if there is no known savepoint."""

    path: str

    def write(self, store: ControlStore) -> None:
        with contextlib.suppress(RecordNotFound):
            store.savepoints.forget(self.path)


@dataclass(frozen=True, slots=True)
class SavepointVerified(Fact):
    """All files of a checkpoint or savepoint were verified; recorded only for savepoints."""

    path: str
    problems: tuple[str, ...]

    def write(self, store: ControlStore) -> None:
        with contextlib.suppress(RecordNotFound):
            store.savepoints.mark_verified(self.path, self.problems)


@dataclass(frozen=True, slots=True)
class CommandEnded(Fact):
    """A command has finished."""

    id: str
    generation: int
    outcome: Outcome

    is_expendable: ClassVar[bool] = False

    def if_refused(self) -> CommandEnded:
        """Return the same end without its result: a client waits for it."""
        message = f"it is {self.outcome.state.value}, but the control database refuses its result; see the driver's log"
        return replace(self, outcome=failed(Refusal.INTERNAL.value, message, fault=Fault.INTERNAL))

    def write(self, store: ControlStore) -> None:
        # It returns False if an earlier attempt succeeded but its answer was lost: nothing left to do.
        store.commands.finish(self.id, self.generation, self.outcome)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The samples of a job at one moment."""

    queries: tuple[QuerySample, ...]
    operators: tuple[OperatorSample, ...]


class Buffer:
    """The records that wait to be written.

    Args:
        detailed: how many facts to keep with their details.
        facts: how many facts to keep.
        samples: how many samples to keep.

    Attributes:
        dropped: number of dropped facts and samples.
        trimmed: number of facts that have lost their details.
    """

    def __init__(self, *, detailed: int = _DETAILED, facts: int = _FACTS, samples: int = _SAMPLES) -> None:
        self._most_detailed, self._most_facts, self._most_samples = detailed, facts, samples
        self._lock = threading.Lock()
        self._facts: deque[Fact] = deque()
        self._detailed = 0  # of the facts, those that still have detail
        self._current: dict[CheckpointId, CheckpointStatistics] = {}
        self._samples: deque[Sampled] = deque()
        self.dropped = 0
        self.trimmed = 0

    def __len__(self) -> int:
        """Return the number of buffered records."""
        return len(self._facts) + len(self._current) + len(self._samples)

    # What comes in.

    def add(self, fact: Fact) -> None:
        """Add a fact."""
        with self._lock:
            if isinstance(fact, CheckpointEnded):
                self._current.pop(CheckpointId(fact.record.id), None)
            self._facts.append(fact)
            if fact.without_detail() is not None:
                self._detailed += 1
            if self._detailed > self._most_detailed:
                self._trim_oldest()
            if len(self._facts) > self._most_facts:
                self._drop_oldest()

    def set_current(self, statistics: CheckpointStatistics) -> None:
        """Set the state of a checkpoint in progress; replaces its previous state."""
        with self._lock:
            self._current[statistics.checkpoint] = statistics

    def sample(self, sample: Sampled) -> None:
        """Add a sample."""
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) > self._most_samples:
                self._samples.popleft()
                self.dropped += 1

    # What goes out: read, written, and only then removed.

    def facts(self, limit: int) -> tuple[Fact, ...]:
        """Return the oldest facts."""
        with self._lock:
            return tuple(fact for fact, _ in zip(self._facts, range(limit), strict=False))

    def written(self, fact: Fact) -> None:
        """Remove a fact that was written; it may have been trimmed or dropped meanwhile."""
        with self._lock:
            if not self._facts:
                return
            first = self._facts[0]
            if first is fact or first == fact.without_detail():
                self._facts.popleft()
                if first.without_detail() is not None:
                    self._detailed -= 1

    def take_current(self) -> tuple[CheckpointStatistics, ...]:
        """Take the checkpoints in progress; :meth:`put_back` returns them if they could not be written."""
        with self._lock:
            current = tuple(self._current.values())
            self._current.clear()
            return current

    def put_back(self, current: tuple[CheckpointStatistics, ...]) -> None:
        """Return checkpoints that could not be written, unless there is a newer state."""
        with self._lock:
            ended = {fact.record.id for fact in self._facts if isinstance(fact, CheckpointEnded)}
            for statistics in current:
                if statistics.checkpoint not in ended:
                    self._current.setdefault(statistics.checkpoint, statistics)

    def first_sample(self) -> Sampled | None:
        with self._lock:
            return self._samples[0] if self._samples else None

    def sample_written(self, sample: Sampled) -> None:
        with self._lock:
            if self._samples and self._samples[0] is sample:
                self._samples.popleft()

    # Bounds.

    def _trim_oldest(self) -> None:
        for place, fact in enumerate(self._facts):
            if (smaller := fact.without_detail()) is not None:
                self._facts[place] = smaller
                self._detailed -= 1
                self.trimmed += 1
                return

    def _drop_oldest(self) -> None:
        for place, fact in enumerate(self._facts):
            if fact.is_expendable:
                if fact.without_detail() is not None:
                    self._detailed -= 1
                del self._facts[place]
                self.dropped += 1
                return
