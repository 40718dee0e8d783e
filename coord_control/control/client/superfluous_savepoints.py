"""Which of a job's savepoints are superfluous: one decision for schedules of Dagster and ``coordctl savepoint prune``.

Kept are the newest ones, those that are not much older than the newest, always the newest itself, and any that an
unfinished command reads or the newest restore came from. What removes the others has the last word: it refuses to
remove one that is being read.

Threads: any; :func:`names_in_use` blocks on the database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

from coord_control.control.client.reader import ControlReader
from coord_control.control.commands import reads
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry
from coord_control.storage.records import CheckpointRecord, CommandRecord, CommandState

__all__ = ["Retention", "TakenSavepoint", "names_in_use", "superfluous"]

#: How many unfinished commands of a job are looked at.
_COMMANDS: Final = 200


@dataclass(frozen=True, slots=True)
class Retention:
    """Which savepoints to keep.

    Attributes:
        keep: the newest so many; at least one is kept always.
        older_than: also those that are at most so much older than the newest, or None for no others.
    """

    keep: int = 1
    older_than: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TakenSavepoint:
    """A complete savepoint, as the database or the storage knows it.

    Attributes:
        taken_at: by the clock of its driver.
    """

    id: int
    path: str
    label: str | None
    taken_at: datetime

    @classmethod
    def of_record(cls, record: CheckpointRecord) -> Self:
        return cls(record.id, record.path or "", record.label, record.finished_at or record.triggered_at)

    @classmethod
    def of_entry(cls, entry: CheckpointEntry) -> Self:
        assert entry.completed_at is not None, "complete ones have a time"
        return cls(entry.checkpoint, entry.path, entry.label, entry.completed_at)

    def is_among(self, names: Collection[str]) -> bool:
        """Return whether one of ``names`` is its id, its label or its path."""
        return not {str(self.id), self.label, self.path}.isdisjoint(names)


def superfluous(
    savepoints: Iterable[TakenSavepoint], retention: Retention, in_use: Collection[str] = ()
) -> list[TakenSavepoint]:
    """Return the savepoints to remove, oldest first.

    Their age is relative to the newest one. Each has its time from the clock of its driver, so after a move to another
    machine the age is off by the difference of two clocks; how many are kept at least does not depend on any.

    Args:
        savepoints: the complete ones of one job that the rule is about, in any order.
        in_use: ids, labels and paths of savepoints that must be kept.
    """
    newest_first = sorted(savepoints, key=lambda each: each.id, reverse=True)
    kept = max(1, retention.keep)
    young = timedelta.min if retention.older_than is None else retention.older_than
    doomed = [
        each
        for each in newest_first[kept:]
        if newest_first[0].taken_at - each.taken_at > young and not each.is_among(in_use)
    ]
    return doomed[::-1]


def names_in_use(client: ControlReader, job: str) -> set[str]:
    """Return ids, labels and paths that unfinished commands read, or that the newest recovery of a job names.

    Raises:
        DatabaseError: the database cannot be read.
    """
    named: set[str] = set()
    for state in (CommandState.PENDING, CommandState.CLAIMED):
        for command in client.commands(job, state=state, limit=_COMMANDS):
            named |= _named(command)
    for recovery in client.recoveries(job, limit=1):
        named |= {recovery.path or "", str(recovery.from_checkpoint)}
    return named


def _named(command: CommandRecord) -> set[str]:
    if not reads(command.kind):
        return set()
    progress = command.progress or {}
    return {str(each) for each in (command.payload.get("ref"), progress.get("path"), progress.get("checkpoint"))}
