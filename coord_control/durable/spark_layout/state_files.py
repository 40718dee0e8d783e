"""Which files of the state stores hold one version.

A store lies in ``state/<operator>/<partition>`` (the store ``default``) or in a folder of its name below that (each
of the four stores of a stream-stream join). Column families (``transformWithState``, join format 3) share one store.
A store's version *n* is what its first *n* epochs made of it: epoch *e* writes version *e* + 1, also without new
data.

==================  ==========================================  =====================================
provider            a version by itself                         what one epoch changed
==================  ==========================================  =====================================
HDFS-backed         ``n.snapshot``                              ``n.delta``
RocksDB             ``n.zip`` and the files that it names       ``n.changelog`` (when switched on)
... format 2        ``n_<id>.zip`` and the files that it names  ``n_<id>.changelog``
==================  ==========================================  =====================================

So one rule serves them all: from *n* downwards, take the changes until a version stands by itself (or version 0,
which is empty). A zip holds RocksDB's small files and an index, ``metadata``, of those it shares with other
versions, in ``SSTs/`` and ``logs/``.

In format 2 an epoch that was tried several times leaves several files of one version; the commit log says which ids
count. A store of version *e* + 1 was made from what epoch *e* - 1 committed, so the ids of the changes below *n*
stand in the commit log as well. Spark purges that log earlier than the changes: where an entry is gone and the ids
of a version are not unique, all its files are taken, which is more than needed and never wrong.

Threads: pure functions, except for the reader.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coord_control.durable.spark_layout.query_logs import (
    CommitEntry,
    Read,
    parse_commit,
    parse_versioned_json,
    read_file,
)
from coord_control.errors import DamagedRecord, StateFileMissing

__all__ = ["DEFAULT_STORE", "StateFiles", "Store", "StoreKey", "Stores", "VersionFile"]

DEFAULT_STORE: Final = "default"

_VERSION_FILE: Final = re.compile(r"(\d+)(?:_(.+))?\.(snapshot|delta|zip|changelog)")
_COMPLETE: Final = frozenset({"snapshot", "zip"})
#: Folders of a store that are not stores themselves.
_INSIDE_A_STORE: Final = frozenset({"SSTs", "logs"})
#: Lists in the index of a RocksDB snapshot -> their field with the stored name, and the folder.
_SHARED_FILES: Final = {"sstFiles": ("dfsSstFileName", "SSTs"), "logFiles": ("dfsLogFileName", "logs")}
_MISSING: Final = "version {} of the store cannot be put together without it"


class StoreKey(NamedTuple):
    operator: int
    partition: int
    name: str


class VersionFile(NamedTuple):
    """A file that makes, or leads to, one version of a store."""

    version: int
    id: str | None  # format 2
    kind: str  # snapshot, delta, zip, changelog
    path: str

    @property
    def complete(self) -> bool:
        return self.kind in _COMPLETE


@dataclass(slots=True)
class Store:
    """The files of one store."""

    folder: str
    versions: dict[int, list[VersionFile]] = field(default_factory=lambda: defaultdict(list))
    shared: set[str] = field(default_factory=set)  # in SSTs/ and logs/

    def add(self, path: str) -> bool:
        """Take a file; False: it belongs to no provider of Spark's."""
        name = path.removeprefix(f"{self.folder}/")
        if match := _VERSION_FILE.fullmatch(name):
            version = int(match[1])
            self.versions[version].append(VersionFile(version, match[2], match[3], path))
        elif name.startswith(("SSTs/", "logs/")):
            self.shared.add(path)
        else:
            return False
        return True

    def kinds(self) -> set[str]:
        return {file.kind for files in self.versions.values() for file in files}


class Stores:
    """All stores of a query's checkpoint directory."""

    def __init__(self, stores: Mapping[StoreKey, Store], unknown: Collection[str]) -> None:
        self._stores = dict(sorted((key, store) for key, store in stores.items() if store.versions))
        self.unknown = frozenset(unknown)  #: files below ``state`` that are of no known kind

    @classmethod
    def of(cls, paths: Iterable[str]) -> Stores:
        """Sort the files below ``state`` into their stores.

        Args:
            paths: without descriptions of operators and schemas.
        """
        stores: dict[StoreKey, Store] = {}
        by_folder: dict[str, Store | None] = {}
        unknown = []
        for path in paths:
            if not path.startswith("state/"):
                continue
            folder = path.rpartition("/")[0]
            if folder not in by_folder:
                by_folder[folder] = _store_of(stores, folder.split("/"))
            store = by_folder[folder]
            if store is None or not store.add(path):
                unknown.append(path)
        return cls(stores, unknown)

    def __iter__(self) -> Iterator[StoreKey]:
        return iter(self._stores)

    def __contains__(self, key: object) -> bool:
        return key in self._stores

    def __getitem__(self, key: StoreKey) -> Store:
        return self._stores[key]

    def of_operator(self, operator: int) -> list[StoreKey]:
        return [key for key in self._stores if key.operator == operator]


def _store_of(stores: dict[StoreKey, Store], folder: list[str]) -> Store | None:
    """Return the store that a folder belongs to, created on first use, or None if it belongs to none."""
    if len(folder) < 3 or not (folder[1].isdigit() and folder[2].isdigit()):
        return None
    named = len(folder) > 3 and folder[3] not in _INSIDE_A_STORE
    key = StoreKey(int(folder[1]), int(folder[2]), folder[3] if named else DEFAULT_STORE)
    if key not in stores:
        stores[key] = Store("/".join(folder[: 4 if named else 3]))
    return stores[key]


class StateFiles:
    """Finds the state files of one epoch."""

    def __init__(self, stores: Stores, read: Read, commits: Collection[int]) -> None:
        """Look at the stores of one listing.

        Args:
            read: reads indexes of RocksDB snapshots, and commit log entries of epochs below the one that is asked for.
            commits: the epochs whose commit log entries are there.
        """
        self._stores = stores
        self._read = read
        self._commits = commits
        self._entries: dict[int, CommitEntry] = {}

    def of_epoch(self, epoch: int, commit: CommitEntry, needed: Iterable[StoreKey]) -> Iterator[str]:
        """Name the files that make version `epoch` + 1.

        Args:
            commit: the commit log entry of `epoch`.
            needed: the stores that hold state at `epoch`.

        Raises:
            StateFileMissing: a file is needed that is not there.
            DamagedRecord: the index of a RocksDB snapshot cannot be read.
        """
        self._entries[epoch] = commit
        for key in needed:
            if key not in self._stores:
                store = "" if key.name == DEFAULT_STORE else f"/{key.name}"
                raise StateFileMissing(f"state/{key.operator}/{key.partition}{store}", "the store has no files")
            yield from self._of_store(key, epoch + 1)

    def _of_store(self, key: StoreKey, wanted: int) -> Iterator[str]:
        store = self._stores[key]
        uncertain = False
        for version in range(wanted, 0, -1):
            files = self._that_count(key, version)
            if not files:
                if uncertain:
                    return
                raise self._missing(key, version, wanted)
            by_id: dict[str | None, VersionFile] = {}
            for file in files:
                # What stands by itself needs no change, and nothing below it.
                if file.id not in by_id or file.complete:
                    by_id[file.id] = file
            for file in by_id.values():
                yield file.path
                if file.kind == "zip":
                    yield from self._shared_files(store, file.path)
            complete = [file.complete for file in by_id.values()]
            if all(complete):
                return
            uncertain = uncertain or any(complete)

    def _that_count(self, key: StoreKey, version: int) -> list[VersionFile]:
        files = self._stores[key].versions.get(version, [])
        entry = self._entry(version - 1)
        if entry is None:
            return files
        if entry.state_ids is None:
            return [file for file in files if file.id is None]
        partitions = entry.state_ids.get(key.operator, ())
        ids = partitions[key.partition] if key.partition < len(partitions) else frozenset()
        return [file for file in files if file.id in ids]

    def _entry(self, epoch: int) -> CommitEntry | None:
        if epoch not in self._entries and epoch in self._commits:
            path = f"commits/{epoch}"
            try:
                self._entries[epoch] = parse_commit(path, self._read(path))
            except FileNotFoundError:
                return None
        return self._entries.get(epoch)

    def _shared_files(self, store: Store, path: str) -> Iterator[str]:
        for name in _index_of(path, read_file(self._read, path)):
            shared = f"{store.folder}/{name}"
            if shared not in store.shared:
                raise StateFileMissing(shared, f"{path} refers to it")
            yield shared

    def _missing(self, key: StoreKey, version: int, wanted: int) -> StateFileMissing:
        store = self._stores[key]
        kinds = store.kinds()
        kind = "delta" if kinds & {"delta", "snapshot"} else "changelog" if "changelog" in kinds else "zip"
        return StateFileMissing(f"{store.folder}/{version}.{kind}", _MISSING.format(wanted))


def _index_of(path: str, content: bytes) -> Iterator[str]:
    """Yield the names below the store's folder of the files that a RocksDB snapshot shares with other versions."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            index = archive.read("metadata")
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DamagedRecord(path, f"not a snapshot of RocksDB: {error}") from None
    _, fields = parse_versioned_json(path, index)
    for entries, (stored_name, folder) in _SHARED_FILES.items():
        for file in fields.get(entries) or ():
            try:
                yield f"{folder}/{file[stored_name]}"
            except (KeyError, TypeError):
                raise DamagedRecord(path, f"an entry of {entries} in its index has no {stored_name}") from None
