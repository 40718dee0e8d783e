"""``<job>/live/``: the log of a job's live values, one record for each change, and what they are after a restore.

It has the form of an epoch store (:mod:`coord_control.durable.epochs.epoch_store`), with the same fencing: each driver
copies what counts into a log of its generation, and what an older one still writes is never read.

A record names the restore that counted when it was made. So a restore takes place for live values when it does for the
queries, and needs no record here: changes that were made before it do not count any more, and its checkpoint says what
does. The driver that starts next makes that a change, with a version above all others, because a client that has
compared a version before the restore must not take it for the same one afterwards. When the restore is undone, the
changes before it count again.

Threads: one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage_record import query_folder
from coord_control.durable.job_folder.restore_log import RestoreRecord, newest_restore, restore_before
from coord_control.durable.restore.seeds import read_seed
from coord_control.ids import Generation, QueryName
from coord_control.protocol.records import LiveChanged, LiveValue, Record

__all__ = ["LiveLog", "stored_live_values"]

_FOLDER: Final = "live"
#: Changes belong to no epoch.
_NO_EPOCHS: Final = 0


class LiveLog:
    """The log of one job, for one generation. Call :meth:`open` first."""

    def __init__(self, files: Files, job_folder: str, generation: Generation) -> None:
        self._files = files
        self._job_folder = job_folder
        self._store = _store(files, job_folder, generation)
        self._restore = 0
        self._changes: list[LiveChanged] = []

    def open(self, defaults: Mapping[str, bytes]) -> dict[str, LiveChanged]:
        """Take over the log, after the restore that the job waits for has taken place.

        Args:
            defaults: the values of those that the job has never had, by name.

        Returns:
            The values that count, by name; all are durable.

        Raises:
            DamagedRecord, MissingRecord, UnsupportedFormat: nothing was written; the message names the file.
            StoreUnavailable: may be tried again.
        """
        self._changes = _changes(self._store.open())
        restore = newest_restore(self._files, self._job_folder)
        self._restore = 0 if restore is None else restore.number
        found = _standing(self._files, self._job_folder, restore, self._changes)
        by = "the default of the job" if restore is None else f"the restore of {restore.path}"
        own = {change.name: change for change in self._changes if change.restore == self._restore}
        new = [
            LiveChanged(
                name=name,
                version=self._next_version(name, found.get(name)),
                value=found[name].value if name in found else defaults[name],
                restore=self._restore,
                by=by if name in found else "the default of the job",
                at_seconds=time.time(),
            )
            for name in sorted({*found, *defaults} - set(own))
        ]
        self._append(new)
        return own | {change.name: change for change in new}

    def change(self, name: str, value: bytes, *, key: str = "", by: str = "") -> LiveChanged:
        """Make a change durable; a request that was carried out before is not carried out again.

        Raises:
            StoreUnavailable: it may be durable or not; repeat it with the same key.
        """
        if (before := self.find(key)) is not None:
            return before
        change = LiveChanged(name, self._next_version(name), value, self._restore, key, by, time.time())
        self._append([change])
        return change

    def find(self, key: str) -> LiveChanged | None:
        """Return the change that a request has made, or None."""
        return next((change for change in reversed(self._changes) if key and change.key == key), None)

    def history(self, name: str) -> list[LiveChanged]:
        """Return the changes of a value, oldest first, as far as they are known."""
        return [change for change in self._changes if change.name == name]

    def _next_version(self, name: str, given: LiveValue | None = None) -> int:
        versions = [change.version for change in self._changes if change.name == name]
        return max([*versions, 0 if given is None else given.version]) + 1

    def _append(self, changes: Sequence[LiveChanged]) -> None:
        self._store.append(changes)
        self._changes += changes


def stored_live_values(files: Files, job_folder: str, generation: Generation) -> dict[str, LiveValue]:
    """Return the live values of a job that does not run, by name; for the owner of its generation.

    Raises:
        DamagedRecord, MissingRecord, UnsupportedFormat, StoreUnavailable: they cannot be read.
    """
    has_log = bool(files.list(join(job_folder, _FOLDER)))
    changes = _changes(_store(files, job_folder, generation).open()) if has_log else []
    return _standing(files, job_folder, newest_restore(files, job_folder), changes)


def _store(files: Files, job_folder: str, generation: Generation) -> EpochStore:
    return EpochStore(files, join(job_folder, _FOLDER), generation, _NO_EPOCHS)


def _changes(records: Iterable[Record]) -> list[LiveChanged]:
    return [record for record in records if isinstance(record, LiveChanged)]


def _standing(
    files: Files, job_folder: str, restore: RestoreRecord | None, changes: Sequence[LiveChanged]
) -> dict[str, LiveValue]:
    """Return what counts since a restore."""
    number = 0 if restore is None else restore.number
    own = {change.name: LiveValue(change.version, change.value) for change in changes if change.restore == number}
    if own or restore is None:  # the first driver after a restore has written all of them
        return own
    if restore.replaced is not None:
        if not restore.queries:
            return {}
        query, name = min(restore.queries.items())
        return dict(read_seed(files, join(query_folder(job_folder, QueryName(query)), name)).live)
    undone = restore_before(files, job_folder, restore)
    before = None if undone is None else restore_before(files, job_folder, undone)
    return _standing(files, job_folder, before, changes)
