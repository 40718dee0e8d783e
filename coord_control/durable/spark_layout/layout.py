"""Which files of a Spark checkpoint directory an epoch needs: the one place that knows Spark's layouts.

A checkpoint of ours keeps just the files from which Spark restarts after epoch *b*, and no later ones: with a later
entry of the offset log Spark would skip data (spark-facts 8). The rules:

* ``offsets`` and ``commits``: *b*, and the newest entry before it (Spark asks the sources once more for the last
  batch). Of a query that does not run also ``offsets/b+1`` when there is one: a sink may have that epoch already, so it
  must be run again with the same rows.
* ``sources/<i>``: a file source's log up to its offset in the newest of these entries (a separate number, not the
  epoch); its newest compacted entry holds all before it, and the one before that is kept too: Spark takes the distance
  of the last two for the interval, and derives another one from a single entry. Everything of other sources is kept: it
  is written once, at the first start, and says where reading begins.
* ``state``: version *b* + 1 of every store (:mod:`~coord_control.durable.spark_layout.state_files`), and the
  descriptions and schemas that were written up to *b*
  (:mod:`~coord_control.durable.spark_layout.stateful_operators`). Before the first commit there is none.
* What we do not know is kept. ``metadata`` is not: the restore chooses the query id.

Never included: hidden files (Hadoop's checksums, ``.<name>.crc``) and temporary ones. A visible ``<name>.crc`` is
Spark's own checksum of ``<name>``, which it verifies; it goes with that file. Learnt from the sources of Spark 4.3
and from directories that it wrote; ``tests/spark/test_checkpoint_layouts.py`` restarts real queries from what is
named here.

Threads: pure functions, except for the reader they are given; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coord_control.durable.spark_layout.query_logs import (
    CommitEntry,
    OffsetEntry,
    Read,
    file_source_offset,
    parse_commit,
    parse_offsets,
    read_file,
)
from coord_control.durable.spark_layout.state_files import StateFiles, StoreKey, Stores
from coord_control.durable.spark_layout.stateful_operators import (
    OperatorDescription,
    describe,
    is_description,
    is_description_of,
    partitions_of,
    relocated,
)
from coord_control.errors import StateFileMissing
from coord_control.ids import Epoch

__all__ = ["EpochLayout", "OperatorDescription", "Read", "layout_of", "relocated"]

_LOG_ENTRY: Final = re.compile(r"(\d+)(\.compact)?")
_KNOWN_FOLDERS: Final = ("offsets/", "commits/", "sources/", "state/")
_QUERY_ID: Final = "metadata"
_CHECKSUM: Final = ".crc"


@dataclass(frozen=True, slots=True)
class EpochLayout:
    """What a checkpoint directory holds of one committed epoch, and of the planned one behind it.

    Attributes:
        epoch: -1: nothing is committed yet.
        files: those from which the query restarts after the epoch, on any machine: relative paths, sorted; without
            ``metadata``.
        operators: the stateful ones, ordered by their ids.
        offsets, commit: the epoch's entries in Spark's logs; None for epoch -1.
        planned: the offsets of the next epoch, or None if it is not included.
    """

    epoch: Epoch
    files: tuple[str, ...] = ()
    operators: tuple[OperatorDescription, ...] = ()
    offsets: OffsetEntry | None = None
    commit: CommitEntry | None = None
    planned: OffsetEntry | None = None


def layout_of(listing: Collection[str], epoch: Epoch, read: Read, planned: Epoch | None = None) -> EpochLayout:
    """Find what a query needs to restart after a committed epoch.

    Args:
        listing: the paths relative to the query's Spark checkpoint directory of all files below it, quick to look up;
            may be older than what `read` sees, and may hold files that are being written or removed.
        epoch: a committed epoch; -1: the query has not committed yet.
        read: gives the content of a file of the listing; raises FileNotFoundError when it is gone.
        planned: Spark's last planned epoch, of a query that does not run; ``epoch`` or None: none is wanted.

    Raises:
        StateFileMissing: a file that Spark would need is not there (any more). Spark removes old epochs while we look:
            list again, and if the epoch itself is gone, take a newer one.
        DamagedRecord: a file that says which others are needed cannot be understood.
    """
    paths = _visible(listing)
    upcoming = _planned(paths, epoch, planned, read)
    needed = {path for path in paths if not path.startswith(_KNOWN_FOLDERS) and path != _QUERY_ID}
    if upcoming is not None:
        needed.add(f"offsets/{planned}")
    if epoch < 0:
        needed.update(_source_files(paths, {} if upcoming is None else upcoming.by_source))
        return EpochLayout(epoch, _with_checksums(needed, listing), planned=upcoming)
    logged = frozenset(_numbers(paths, "commits"))
    offsets, commits = _entries(_numbers(paths, "offsets"), "offsets", epoch), _entries(logged, "commits", epoch)
    if epoch > 0 and len(offsets) == 1:
        raise StateFileMissing(f"offsets/{epoch - 1}", "Spark starts from the last two entries of the offset log")
    position = parse_offsets(offsets[0], read_file(read, offsets[0]))
    commit = parse_commit(commits[0], read_file(read, commits[0]))
    stores = Stores.of(path for path in paths if not is_description(path))
    operators = describe(stores, paths, epoch, read, position.settings, commit)
    needed.update(offsets, commits)
    needed.update(path for path in paths if is_description_of(path, epoch))
    needed.update(_source_files(paths, (upcoming or position).by_source))
    needed.update(stores.unknown)
    wanted = _wanted_stores(stores, operators, position, commit)
    needed.update(StateFiles(stores, read, logged).of_epoch(epoch, commit, wanted))
    return EpochLayout(epoch, _with_checksums(needed, listing), tuple(operators), position, commit, upcoming)


def _planned(paths: Collection[str], epoch: Epoch, planned: Epoch | None, read: Read) -> OffsetEntry | None:
    if planned is None or planned <= epoch:
        return None
    path = f"offsets/{planned}"
    if path not in paths:
        raise StateFileMissing(path, f"epoch {planned} was planned")
    return parse_offsets(path, read_file(read, path))


def _with_checksums(needed: Collection[str], listing: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted({*needed, *(path + _CHECKSUM for path in needed if path + _CHECKSUM in listing)}))


def _visible(listing: Collection[str]) -> list[str]:
    """Return the files that Spark means, sorted: no hidden or temporary ones, no checksums of others."""

    def is_noise(path: str) -> bool:
        if path.startswith(".") or "/." in path or path.endswith(".tmp"):
            return True
        return path.endswith(_CHECKSUM) and path.removesuffix(_CHECKSUM) in listing

    return sorted(path for path in listing if not is_noise(path))


def _entries(logged: Iterable[int], log: str, epoch: int) -> list[str]:
    """Return the entry of an epoch and the newest one before it, if there is one."""
    numbers = sorted(number for number in logged if number <= epoch)
    if epoch not in numbers[-1:]:
        raise StateFileMissing(f"{log}/{epoch}", f"epoch {epoch} is not in the log")
    return [f"{log}/{number}" for number in reversed(numbers[-2:])]


def _numbers(paths: list[str], log: str) -> Iterator[int]:
    prefix = f"{log}/"
    for path in paths:
        if path.startswith(prefix) and (name := path.removeprefix(prefix)).isdigit():
            yield int(name)


def _source_files(paths: list[str], by_source: Mapping[str, str | None]) -> Iterator[str]:
    folders: dict[str, list[str]] = {}
    for path in paths:
        if path.startswith("sources/"):
            folders.setdefault(path.split("/")[1], []).append(path)
    for name, files in folders.items():
        newest = file_source_offset(by_source.get(name))
        yield from files if newest is None else _up_to(f"sources/{name}", files, newest)


def _up_to(folder: str, files: list[str], newest: int) -> Iterator[str]:
    """Yield the entries of a file source's log up to one: the newest compacted one, all after it, and the compacted one
    before it, because Spark takes the distance of the last two for the interval.
    """
    entries: dict[int, tuple[str, bool]] = {}
    for path in files:
        match = _LOG_ENTRY.fullmatch(path.removeprefix(f"{folder}/"))
        if match is None:
            yield path
        elif int(match[1]) not in entries or match[2]:
            entries[int(match[1])] = (path, match[2] is not None)
    for number in range(newest, -1, -1):
        if number not in entries:
            raise StateFileMissing(f"{folder}/{number}", f"the source has read up to entry {newest} of this log")
        path, is_compacted = entries[number]
        yield path
        if is_compacted:
            before = [each for each, (_, is_compacted) in entries.items() if is_compacted and each < number]
            yield from (entries[each][0] for each in sorted(before)[-1:])
            return


def _wanted_stores(
    stores: Stores, operators: Sequence[OperatorDescription], position: OffsetEntry, commit: CommitEntry
) -> list[StoreKey]:
    return [
        StoreKey(operator.id, partition, name)
        for operator in operators
        if operator.provider != "unknown" or stores.of_operator(operator.id)
        for partition in sorted(partitions_of(stores, operator.id, position.settings, commit))
        for name in operator.stores
    ]
