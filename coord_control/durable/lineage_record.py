"""``lineage.json``: what a lineage remembers of itself, and where the job's lineages lie.

Format 2 added ``restored_from``; records of format 1 are read as lineages that nobody restored. An older release
refuses format 2, because it would take a restore that was never committed for the newest lineage.

Threads: values and reads; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from coord_control.durable.files import Files, join
from coord_control.durable.json_records import read_json_record
from coord_control.ids import CheckpointId, Epoch

__all__ = [
    "FORMAT_VERSION",
    "RECORD_NAME",
    "LineageRecord",
    "OperatorRecord",
    "RestoredFrom",
    "encode_record",
    "lineage_names",
    "next_name",
    "query_folder",
    "read_record",
    "record_path",
]

FORMAT_VERSION: Final = 2
RECORD_NAME: Final = "lineage.json"

_NAME: Final = re.compile(r"lineage-(\d{6,})")


class OperatorRecord(BaseModel):
    """What a lineage remembers of an operator."""

    model_config = ConfigDict(frozen=True)

    parallelism: int
    state: str
    down: tuple[str, ...]
    up: tuple[str, ...]


class RestoredFrom(BaseModel):
    """Where a restored lineage comes from.

    Attributes:
        path: the folder of the checkpoint, as it was restored.
        restore: the number of the restore; ``id`` tells it from an earlier one of that number that was never committed.
        epoch: Spark's last commit when the restore took place: that of the checkpoint, or one more if the state was
            rewritten into another number of partitions. Nothing has run since while Spark stands there.
        operators: as they were in the checkpoint.
        replaced: the Spark checkpoint directory of the lineage before it; None: there was none.
        allow_non_restored_state: operators may come and go in the first start.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    checkpoint: CheckpointId
    restore: int
    id: str
    epoch: Epoch
    operators: dict[str, OperatorRecord] = {}
    replaced: str | None = None
    allow_non_restored_state: bool = False


class LineageRecord(BaseModel):
    """The content of ``lineage.json``."""

    format_version: Literal[2] = FORMAT_VERSION
    query: str
    query_id: str
    checkpoint_location: str
    operators: dict[str, OperatorRecord]
    restored_from: RestoredFrom | None = None


def query_folder(job_folder: str, query: str) -> str:
    """Where the lineages of a query lie."""
    return join(job_folder, "queries", query)


def record_path(folder: str, lineage: str) -> str:
    """The record of one of a query's lineages."""
    return join(folder, lineage, RECORD_NAME)


def lineage_names(files: Files, folder: str) -> list[str]:
    """The names of all lineages of a query, oldest first, with those that have no record."""
    return sorted((name for name in files.list(folder) if _NAME.fullmatch(name)), key=_number)


def next_name(names: Iterable[str]) -> str:
    """A name behind all of these."""
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
    # The second version has a field more, which may be left out.
    return {**fields, "format_version": FORMAT_VERSION} if version == 1 else fields


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1])
