"""``lineage.json``: what a lineage remembers of itself, and where the job's lineages lie.

Format 2 added ``restored_from``; records of format 1 are read as lineages that were not restored. An older release
refuses format 2, because it would take a restore that was never committed for the newest lineage. Format 3 records a
planned epoch that was restored; an older release would start its operators without the restored states.

Threads: values and reads; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.files.json_records import read_json_record
from coord_control.ids import NO_EPOCH, CheckpointId, Epoch

__all__ = [
    "FORMAT_VERSION",
    "RECORD_NAME",
    "LineageOperator",
    "LineageRecord",
    "Reached",
    "RestoredFrom",
    "encode_record",
    "lineage_names",
    "next_name",
    "query_folder",
    "read_record",
    "record_path",
]

FORMAT_VERSION: Final = 3
RECORD_NAME: Final = "lineage.json"

_NAME: Final = re.compile(r"lineage-(\d{6,})")


class LineageOperator(BaseModel):
    """What a lineage remembers of an operator.

    Attributes:
        wake: one of the query's sources wakes it.
    """

    model_config = ConfigDict(frozen=True)

    parallelism: int
    state: str
    down: tuple[str, ...]
    up: tuple[str, ...]
    wake: bool = False


class Reached(BaseModel):
    """How far a query has run, at least: what its sinks may have been given.

    Attributes:
        committed: the newest epoch that Spark has committed; -1: none.
        planned: the newest one that it has planned: a sink may have been given it, in whole or in part.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    committed: Epoch = NO_EPOCH
    planned: Epoch = NO_EPOCH

    def joined(self, other: Reached | None) -> Reached:
        """Return the farther of the two, in both respects."""
        if other is None:
            return self
        return Reached(committed=max(self.committed, other.committed), planned=max(self.planned, other.planned))


class RestoredFrom(BaseModel):
    """Where a restored lineage comes from.

    Attributes:
        path: the folder of the checkpoint, as it was restored.
        restore: the number of the restore; ``id`` tells it from an earlier one of that number that was never committed.
        epoch: Spark's last commit when the restore took place: that of the checkpoint, or one more if the state was
            rewritten into another number of partitions. Nothing has run since while Spark stands there.
        planned: Spark's last planned epoch when the restore took place; ``None`` (format 2) means ``epoch``.
        is_seeded: the operators' states are in the epoch store for good. Only with a planned epoch: when its first
            attempt is answered, Spark still stands where it stood.
        reached: how far the query had run in all its lineages when this one was restored; None for a fork, or if it was
            not recorded (format 2).
        operators: as they were in the checkpoint.
        replaced: the Spark checkpoint directory of the query before its first restore, which a program that adopted it
            still names after any number of restores; None if it had none.
        allow_non_restored_state: operators may come and go in the first start.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    checkpoint: CheckpointId
    restore: int
    id: str
    epoch: Epoch
    planned: Epoch | None = None
    is_seeded: bool = False
    reached: Reached | None = None
    operators: dict[str, LineageOperator] = {}
    replaced: str | None = None
    allow_non_restored_state: bool = False

    @property
    def has_planned(self) -> bool:
        """Whether an epoch was restored that is to be run again."""
        return self.planned not in (None, self.epoch)

    def is_untouched_at(self, position: tuple[Epoch, Epoch]) -> bool:
        """Return whether nothing can have run since the restore when Spark stands at ``position``."""
        return not self.is_seeded if self.has_planned else position == (self.epoch, self.epoch)


class LineageRecord(BaseModel):
    """The content of ``lineage.json``."""

    format_version: Literal[3] = FORMAT_VERSION
    query: str
    query_id: str
    checkpoint_location: str
    operators: dict[str, LineageOperator]
    restored_from: RestoredFrom | None = None

    @property
    def named_location(self) -> str:
        """The Spark checkpoint directory of before all restores: a program that adopted it still names it."""
        before = None if self.restored_from is None else self.restored_from.replaced
        return before or self.checkpoint_location


def query_folder(job_folder: str, query: str) -> str:
    """Return where the lineages of a query lie."""
    return join(job_folder, "queries", query)


def record_path(folder: str, lineage: str) -> str:
    """Return the record of one of a query's lineages."""
    return join(folder, lineage, RECORD_NAME)


def lineage_names(files: Files, folder: str) -> list[str]:
    """Return the names of all lineages of a query, oldest first, with those that have no record."""
    return sorted((name for name in files.list(folder) if _NAME.fullmatch(name)), key=_number)


def next_name(names: Iterable[str]) -> str:
    """Return a name that sorts after all of these."""
    return f"lineage-{max(map(_number, names), default=0) + 1:06d}"


def read_record(files: Files, folder: str, lineage: str) -> LineageRecord | None:
    """Read the record of a lineage; None when it has none.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be used.
    """
    return read_json_record(files, record_path(folder, lineage), LineageRecord, FORMAT_VERSION, _upgraded)


def encode_record(record: LineageRecord) -> bytes:
    """Return the content of the file."""
    return record.model_dump_json(indent=2).encode()


def _upgraded(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    # Later versions have more fields, which may be left out.
    return {**fields, "format_version": FORMAT_VERSION} if version in (1, 2) else fields


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1])
