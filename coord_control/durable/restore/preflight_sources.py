"""The second part of the check before a restore: whether the sources still have what will be read again.

After a restore Spark lists a file source again and reads each file that the checkpoint does not know. A file that was
read after the checkpoint and has been removed since (``cleanSource``, or by hand) is not missed by Spark: its rows are
lost. The names of these files are in the logs of the sources: in the checkpoint, for an epoch that was planned when it
was taken, and in each lineage of the job from that of the checkpoint on. Older lineages do not matter: rows that they
had read and the checkpoint does not know were already discarded by an earlier restore.

Only file sources log what they have read. For any other source, only its connector knows what it no longer has.

Threads: reads; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from coord_control.durable.checkpoints.checkpoint_folder import Storage, stored_name
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage_record import lineage_names, query_folder, read_record
from coord_control.durable.restore.checks import ALLOW_MISSING_INPUT, Check, Verdict
from coord_control.durable.spark_layout.query_logs import (
    Read,
    SourceFile,
    file_source_log,
    file_source_offset,
    is_wake_offset,
    parse_offsets,
    parse_source_files,
    read_file,
)
from coord_control.errors import CoordControlError, DamagedRecord, StateFileMissing
from coord_control.ids import Epoch, QueryName

__all__ = ["check_sources"]

_NAME: Final = "input"
#: So many files are named one by one.
_NAMED: Final = 5
#: Spark removes log entries that it has compacted; how often the log is then listed again.
_LOOKS: Final = 5

_PUT_BACK: Final = (
    "put them back under the same names (cleanSource=archive has moved them to sourceArchiveDir), restore a newer "
    f"checkpoint, or {ALLOW_MISSING_INPUT}"
)
_LOOK_YOURSELF: Final = "make sure that the source still has what came after the checkpoint: what is gone is lost"
_NOTHING_READ: Final = "no file was read after the checkpoint"
_OTHER_SOURCE: Final = (
    "it is not a file source: whether it still has what came after the checkpoint cannot be seen here"
)
_REPORTED: Final = (
    "Spark reports expired offsets when it reads, if the source can tell (Kafka: keep failOnDataLoss=true)"
)


def check_sources(
    files: Files, storage: Storage, root: str, source: CheckpointSource, *, allow_missing_input: bool
) -> list[Check]:
    """Look for the files that were read after the checkpoint and would be read again.

    Args:
        files: the storage of the jobs.
        storage: which files a path is on; sources are looked at through it.
        root: the folder of the jobs. The job of the checkpoint is looked for there, also for a fork.
        allow_missing_input: only warn of what is gone.
    """
    return [
        check
        for query in source.metadata.queries
        for check in _check_query(files, storage, root, source, query, allow_missing_input)
    ]


@dataclass(frozen=True, slots=True)
class _Place:
    """A Spark checkpoint directory, or what a checkpoint keeps of one."""

    names: Callable[[str], Iterable[str]]  # of the entries of a folder
    read: Read

    def log(self, name: str) -> list[SourceFile]:
        """Return what a file source has read."""
        folder = f"sources/{name}"
        for _ in range(_LOOKS):
            try:
                return [
                    entry
                    for each in file_source_log(self.names(folder))
                    for entry in parse_source_files(f"{folder}/{each}", self.read(f"{folder}/{each}"))
                ]
            except FileNotFoundError:
                continue
        raise StateFileMissing(folder, "its entries are removed while they are read")


def _check_query(
    files: Files, storage: Storage, root: str, source: CheckpointSource, query: QueryName, allow_missing_input: bool
) -> Iterator[Check]:
    kept = _kept(source, query)
    try:
        offsets = _offsets(kept, source.metadata.queries[query].epoch)
        later = _later(files, root, source, query)
        names = sorted({*offsets, *(name for place in (kept, *later) for name in place.names("sources"))})
    except CoordControlError as error:
        yield _unseen(query, error)
        return
    if not names and not later:
        yield _look(storage, query, (), allow_missing_input, is_known=False)
    for name in names:
        subject, offset = f"{query}/{name}", offsets.get(name)
        newest = file_source_offset(offset)
        other = Check(_NAME, subject, Verdict.WARNING, _OTHER_SOURCE, _REPORTED)
        if offset is not None and newest is None:
            if not is_wake_offset(offset):  # the source that wakes subtasks has nothing to be read again
                yield other
            continue
        try:
            needed = _read_after(-1 if newest is None else newest, kept.log(name), [place.log(name) for place in later])
        except CoordControlError as error:
            # Without an offset only the content of its folder tells what kind of source it is.
            is_other = offset is None and isinstance(error, DamagedRecord)
            yield other if is_other else _unseen(subject, error)
        else:
            yield _look(storage, subject, needed, allow_missing_input, is_known=bool(later))


def _kept(source: CheckpointSource, query: QueryName) -> _Place:
    folder = source.folder_of(query)
    stored = {entry.path: join(folder, stored_name(entry)) for entry in source.metadata.queries[query].files}

    def names(folder: str) -> set[str]:
        return {path.removeprefix(f"{folder}/").split("/")[0] for path in stored if path.startswith(f"{folder}/")}

    def read(path: str) -> bytes:
        return source.files.read(stored[path])

    return _Place(names, read)


def _offsets(kept: _Place, epoch: Epoch) -> Mapping[str, str | None]:
    """Return up to where the checkpoint has read each source."""
    if str(epoch) not in kept.names("offsets"):
        return {}  # nothing was committed yet
    path = f"offsets/{epoch}"
    return parse_offsets(path, read_file(kept.read, path)).by_source


def _later(files: Files, root: str, source: CheckpointSource, query: QueryName) -> list[_Place]:
    """Return the lineages of the query from that of the checkpoint on; none if the checkpoint is not of this root."""
    snapshot = source.metadata.queries[query]
    folder = query_folder(join(root, source.metadata.job), query)
    names = lineage_names(files, folder)
    if snapshot.lineage not in names:
        return []
    records = [read_record(files, folder, name) for name in names[names.index(snapshot.lineage) :]]
    if records[0] is None or records[0].query_id != snapshot.query_id:
        return []
    return [_live(files, record.checkpoint_location) for record in records if record is not None]


def _live(files: Files, checkpoint: str) -> _Place:
    return _Place(lambda folder: files.list(join(checkpoint, folder)), lambda path: files.read(join(checkpoint, path)))


def _read_after(newest: int, kept: Iterable[SourceFile], later: Iterable[Iterable[SourceFile]]) -> set[str]:
    """Return the files that were read after an offset of the checkpoint, as URIs."""
    before = {file.path for file in kept if file.batch <= newest}
    return {file.path for log in (kept, *later) for file in log} - before


def _look(
    storage: Storage, subject: str, needed: Collection[str], allow_missing_input: bool, *, is_known: bool
) -> Check:
    gone: list[str] = []
    notes = (
        []
        if is_known
        else ["which files were read after the checkpoint is not known here: this root has no logs of it"]
    )
    for folder, names in _by_folder(needed).items():
        try:
            there = set(storage(folder).list(folder))
        except (
            Exception
        ) as error:  # schemes without their libraries, no Spark here: each storage says it in its own way
            notes.append(f"{len(names)} files cannot be looked at: {error}")
        else:
            gone += [join(folder, name) for name in sorted(names - there)]
    if gone:
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        lost = (
            f"{len(gone)} of {len(needed)} files that were read after the checkpoint are gone, and would not be read "
            f"again: {', '.join(gone[:_NAMED])}{more}"
        )
        verdict = Verdict.WARNING if allow_missing_input else Verdict.REFUSED
        return Check(_NAME, subject, verdict, "; ".join([lost, *notes]), "" if allow_missing_input else _PUT_BACK)
    if notes:
        return Check(_NAME, subject, Verdict.WARNING, "; ".join(notes), _LOOK_YOURSELF)
    found = f"all {len(needed)} files that were read after the checkpoint are there" if needed else _NOTHING_READ
    return Check(_NAME, subject, Verdict.OK, found)


def _by_folder(paths: Iterable[str]) -> Mapping[str, set[str]]:
    """Return the names by folder, as the storage knows them: a log has URIs, a storage decodes nothing."""
    found: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = unquote(path).rpartition("/")
        found.setdefault(folder, set()).add(name)
    return found


def _unseen(subject: str, error: CoordControlError) -> Check:
    return Check(_NAME, subject, Verdict.WARNING, f"it cannot be looked at: {error}", _LOOK_YOURSELF)
