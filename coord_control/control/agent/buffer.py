"""What the agent has to write and has not written yet: bounded, and each kind as its worth demands.

* What a thing *is* now (a checkpoint in progress) replaces what it was: only the newest waits.
* What *has happened* (a checkpoint ended, a recovery, the outcome of a command) is kept in order. When too much waits,
  the oldest lose the detail per subtask first; then the oldest are given up, but never the outcome of a command: those
  are bounded by themselves, because no command is taken while the database is away. A completed checkpoint that was
  given up comes back from the storage (:mod:`.reconciliation`).
* Samples are given up oldest first.

Everything that was given up is counted.

Threads: any, under one lock that is held for moments; what goes out is taken by one thread at a time.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final

from coord_control.errors import RecordNotFound
from coord_control.ids import CheckpointId
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.storage.records import (
    CheckpointRecord,
    OperatorSample,
    Outcome,
    QuerySample,
    RecoveryRecord,
    SavepointRecord,
    SubtaskRecord,
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

#: Facts that may wait with their detail, and in all; some hours of a busy job.
_DETAILED: Final = 1_000
_FACTS: Final = 10_000
#: Half an hour of samples.
_SAMPLES: Final = 360


class Fact(ABC):
    """Something that has happened."""

    __slots__ = ()

    #: Whether it may be given up when too much waits.
    is_expendable: ClassVar[bool] = True

    def without_detail(self) -> Fact | None:
        """Return the same in less space, or None: it takes as little as it can."""
        return None

    @abstractmethod
    def write(self, store: ControlStore) -> None: ...


@dataclass(frozen=True, slots=True)
class CheckpointEnded(Fact):
    """A checkpoint is complete, or failed."""

    record: CheckpointRecord
    subtasks: tuple[SubtaskRecord, ...] = ()
    savepoint: SavepointRecord | None = None  #: when it is a complete one

    def without_detail(self) -> CheckpointEnded | None:
        return CheckpointEnded(self.record, savepoint=self.savepoint) if self.subtasks else None

    def write(self, store: ControlStore) -> None:
        store.checkpoints.save(self.record.job, self.record, self.subtasks)
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
    """What lay at a path was removed, whichever job it was of; nothing if no savepoint is known there."""

    path: str

    def write(self, store: ControlStore) -> None:
        with contextlib.suppress(RecordNotFound):
            store.savepoints.forget(self.path)


@dataclass(frozen=True, slots=True)
class SavepointVerified(Fact):
    """All files of a checkpoint or savepoint were read; only savepoints have a place where that is kept."""

    path: str
    problems: tuple[str, ...]

    def write(self, store: ControlStore) -> None:
        with contextlib.suppress(RecordNotFound):
            store.savepoints.mark_verified(self.path, self.problems)


@dataclass(frozen=True, slots=True)
class CommandEnded(Fact):
    """A command has its outcome."""

    id: str
    generation: int
    outcome: Outcome

    is_expendable: ClassVar[bool] = False

    def write(self, store: ControlStore) -> None:
        # False is no news either: the answer to an earlier try was lost.
        store.commands.finish(self.id, self.generation, self.outcome)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The job's numbers of one moment."""

    queries: tuple[QuerySample, ...]
    operators: tuple[OperatorSample, ...]


class Buffer:
    """What waits to be written.

    Args:
        detailed: facts that may wait with their detail.
        facts: facts that may wait.
        samples: samples that may wait.

    Attributes:
        dropped: facts and samples that were given up.
        trimmed: facts that have lost their detail.
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
        """How much waits."""
        return len(self._facts) + len(self._current) + len(self._samples)

    # What comes in.

    def add(self, fact: Fact) -> None:
        """Something has happened."""
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
        """A checkpoint is under way; replaces what was known of it."""
        with self._lock:
            self._current[statistics.checkpoint] = statistics

    def sample(self, sample: Sampled) -> None:
        """The numbers of one moment."""
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) > self._most_samples:
                self._samples.popleft()
                self.dropped += 1

    # What goes out: looked at, written, and only then removed.

    def facts(self, limit: int) -> tuple[Fact, ...]:
        """The oldest."""
        with self._lock:
            return tuple(fact for fact, _ in zip(self._facts, range(limit), strict=False))

    def written(self, fact: Fact) -> None:
        """This one need not wait any more; it may have been trimmed or dropped meanwhile."""
        with self._lock:
            if not self._facts:
                return
            first = self._facts[0]
            if first is fact or first == fact.without_detail():
                self._facts.popleft()
                if first.without_detail() is not None:
                    self._detailed -= 1

    def take_current(self) -> tuple[CheckpointStatistics, ...]:
        """Those under way; they are set again when they could not be written."""
        with self._lock:
            current = tuple(self._current.values())
            self._current.clear()
            return current

    def put_back(self, current: tuple[CheckpointStatistics, ...]) -> None:
        """What was taken could not be written; what is newer stays."""
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
