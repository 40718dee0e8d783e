"""``<job>/restores/<n>.json``: the point at which a restore takes place, over all queries of a job at once.

A restore builds its lineages next to the old ones, which can take long and be interrupted. They count from the moment
at which this file is created, and only if it names them: so either all queries stand where they stood, or all stand
where the checkpoint was. What an uncommitted restore has left is ignored, and removed by the next one.

A process can be stopped for hours between its last look at its claim and this file. So each driver takes the number
that such a restore would get, with a *seal*, before it looks which restore counts: what began before the driver cannot
take place after it. A seal names the restore that counts, and a reader does not look at the numbers between them.

Format 2 added ``roll_back_sinks``. An older release refuses it, because it would start queries before their sinks are
set back. Format 3 is that of seals.

Threads: any.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import pydantic

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.files.json_records import read_json_record
from coord_control.errors import AlreadyExists, Fenced
from coord_control.ids import CheckpointId, Generation

__all__ = [
    "RestoreRecord",
    "commit_restore",
    "find_restore",
    "newest_restore",
    "next_number",
    "read_restore",
    "restore_before",
    "seal_restores",
    "standing_restores",
]

FORMAT_VERSION: Final = 2
_SEAL_VERSION: Final = 3

#: Seals further back than this many numbers are deleted: nothing is stopped for as many starts of the job.
_KEPT: Final = 100

_NAME: Final = re.compile(r"([1-9]\d*)\.json")


class RestoreRecord(pydantic.BaseModel):
    """One restore of a job.

    Attributes:
        number: from 1, per job.
        id: unlike that of any other restore.
        path: the folder of the checkpoint, as it was restored.
        job: the job that the checkpoint was taken of; another one than this: a fork.
        completed_at: of the checkpoint; with its number and path it tells whether this was the same one.
        ref: what was asked for.
        key: the idempotency key of the request, if it had one.
        generation: whose work it is.
        by_program: the driver of the job has done it when it started, because its program, or its user, asked for it.
        committed_at: for people; by the clock of the machine that did it.
        allow_missing_input: files that a source was to read again could be gone.
        roll_back_sinks: the sinks of these lineages are set back before a query starts.
        queries: the lineages that were built, by query.
        begun: lineages that are to begin empty: their queries existed, but not in the checkpoint.
        replaced: the lineages that counted before, by query; None if unknown, or if the record undoes a restore.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    format_version: Literal[2] = FORMAT_VERSION
    number: int
    id: str
    path: str
    checkpoint: CheckpointId
    job: str
    completed_at: pydantic.AwareDatetime
    ref: str
    key: str | None = None
    generation: Generation
    committed_at: datetime.datetime
    is_fork: bool = False
    by_program: bool = False
    allow_missing_input: bool = False
    roll_back_sinks: bool = False
    queries: dict[str, str]
    begun: dict[str, str] = {}
    replaced: dict[str, str] | None = None

    def lineage_of(self, query: str) -> str | None:
        """Return the lineage that this restore gives a query, or None if it does not include that query."""
        return self.queries.get(query) or self.begun.get(query)

    def is_of(self, path: str, checkpoint: CheckpointId, completed_at: datetime.datetime) -> bool:
        """Return whether it came from this checkpoint."""
        mine = (self.path.rstrip("/"), self.checkpoint, self.completed_at)
        return mine == (path.rstrip("/"), checkpoint, completed_at)


class _Seal(pydantic.BaseModel):
    """A number that no restore gets.

    Attributes:
        restore: the number of the restore that counts, or 0 if nothing was ever restored.
        generation: of the driver that has begun with it.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    format_version: Literal[3] = _SEAL_VERSION
    restore: int
    generation: Generation


class _Entry(pydantic.RootModel[RestoreRecord | _Seal]):
    """What a number stands for."""


def newest_restore(files: Files, job_folder: str) -> RestoreRecord | None:
    """Return the restore that counts, or None if nothing was ever restored.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be read.
    """
    return next(_newest_first(files, job_folder), None)


def find_restore(files: Files, job_folder: str, key: str) -> RestoreRecord | None:
    """Find the restore that was committed for a request, or return None.

    Args:
        key: of the request. Times would not do: the clocks of those who ask and of those who restore differ.

    Raises:
        DamagedRecord, UnsupportedFormat: a record cannot be read.
    """
    return next((each for each in _newest_first(files, job_folder) if each.key == key), None)


def standing_restores(files: Files, job_folder: str) -> Iterator[RestoreRecord]:
    """Yield the restores of a job that were not undone, newest first.

    Raises:
        DamagedRecord, UnsupportedFormat: a record cannot be read.
    """
    later: RestoreRecord | None = None
    for record in _newest_first(files, job_folder):
        is_undone = later is not None and later.replaced is None and later.queries == record.replaced
        if not is_undone:
            yield record
        later = record


def read_restore(files: Files, job_folder: str, number: int) -> RestoreRecord | None:
    """Return a committed restore, or None if it was never committed.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be read.
    """
    found = _read(files, job_folder, number)
    return found if isinstance(found, RestoreRecord) else None


def restore_before(files: Files, job_folder: str, restore: RestoreRecord) -> RestoreRecord | None:
    """Return the restore that counted before this one, or None if nothing was restored before.

    Raises:
        DamagedRecord, UnsupportedFormat: a record cannot be read.
    """
    return next((each for each in _newest_first(files, job_folder) if each.number < restore.number), None)


def next_number(files: Files, job_folder: str) -> int:
    """Return the number that the next restore of a job gets."""
    return max(_numbers(files, job_folder), default=0) + 1


def seal_restores(files: Files, job_folder: str, generation: Generation) -> None:
    """Keep restores that other processes have begun from taking place; before the driver looks which one counts.

    Raises:
        DamagedRecord, UnsupportedFormat: a record cannot be read.
        StoreUnavailable: the storage cannot be written.
    """
    while True:
        number, newest = next_number(files, job_folder), newest_restore(files, job_folder)
        seal = _Seal(restore=0 if newest is None else newest.number, generation=generation)
        try:
            files.create(_path(job_folder, number), seal.model_dump_json(indent=2).encode())
        except AlreadyExists:
            continue  # a restore has taken place before, and counts
        break
    for old in _numbers(files, job_folder):
        if seal.restore < old <= number - _KEPT:
            files.delete(_path(job_folder, old))


def commit_restore(files: Files, job_folder: str, job: str, record: RestoreRecord) -> None:
    """Let a restore take place.

    Raises:
        Fenced: another process has restored the job or started it meanwhile.
    """
    try:
        files.create(_path(job_folder, record.number), record.model_dump_json(indent=2).encode())
    except AlreadyExists:
        raise Fenced(job, record.generation, holder="a driver or another restore") from None


def _newest_first(files: Files, job_folder: str) -> Iterator[RestoreRecord]:
    below: int | None = None  # the numbers above do not count
    for number in sorted(_numbers(files, job_folder), reverse=True):
        if below is not None and number > below:
            continue
        found = _read(files, job_folder, number)
        if isinstance(found, RestoreRecord):
            yield found
        elif found is not None:
            below = found.restore


def _numbers(files: Files, job_folder: str) -> list[int]:
    return [int(match[1]) for name in files.list(_folder(job_folder)) if (match := _NAME.fullmatch(name))]


def _read(files: Files, job_folder: str, number: int) -> RestoreRecord | _Seal | None:
    entry = read_json_record(files, _path(job_folder, number), _Entry, _SEAL_VERSION, _upgraded)
    return None if entry is None else entry.root


def _upgraded(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    # The second version has one field more, which may be left out.
    return {**fields, "format_version": FORMAT_VERSION} if version == 1 else fields


def _folder(job_folder: str) -> str:
    return join(job_folder, "restores")


def _path(job_folder: str, number: int) -> str:
    return join(_folder(job_folder), f"{number}.json")
