"""Pinning: the files of one query's Spark directory get names of ours, so that Spark may purge its own.

Spark never writes into a file that it has finished, it replaces it; so a hard link is as good as a copy, takes no
space, and no time that depends on its size. Every file goes into the manifest with its checksum. What is retained
already is neither linked nor read again.

Where requests cost, a driver keeps in memory what it has read to find out which files an epoch needs: a store that
names contents (etags) says whether they are still the same.

Meanwhile the query keeps running and Spark purges old versions. A file that vanished, or was replaced since the
directory was listed, is :class:`~coord_control.errors.StateFileMissing`: the caller cuts again at a newer epoch.

Threads: any; several queries may be pinned side by side.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from coord_control import collector
from coord_control.durable.checkpoints.metadata_file import FileEntry, QuerySnapshot
from coord_control.durable.checkpoints.query_snapshot import describe_query
from coord_control.durable.checkpoints.shared_files import SharedFiles
from coord_control.durable.files.filesystem import Checksum, FileInfo, Files, Linked, LocalFiles, join
from coord_control.durable.job_folder.lineage_record import Reached
from coord_control.durable.spark_layout.file_sink_log import entries_up_to, newest_entry
from coord_control.durable.spark_layout.layout import EpochLayout, layout_of
from coord_control.errors import MissingRecord, StateFileMissing
from coord_control.ids import CheckpointId, Epoch

__all__ = ["MANY_FILES", "Contents", "LiveFiles", "Pinned", "pin_savepoint", "pin_shared"]

#: Above these, the garbage collector is not let loose on their names, all of which stay.
MANY_FILES: Final = 10_000

#: Contents of files by path and etag.
Contents: TypeAlias = Mapping[tuple[str, str | None], bytes]


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The files to pin of a query.

    Attributes:
        files: the storage.
        folder: the query's Spark checkpoint directory.
        infos: the files that the epoch needs, as they were listed.
        layout: what is known of the epoch, the boundary.
        lineage: the name of the folder of the query's lineage.
        contents: of those files that were read to find out; none where the storage has no etags.
    """

    files: Files
    folder: str
    infos: Sequence[FileInfo]
    layout: EpochLayout
    lineage: str
    contents: Contents = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        files: Files,
        folder: str,
        boundary: Epoch,
        lineage: str,
        planned: Epoch | None = None,
        known: Contents | None = None,
    ) -> LiveFiles:
        """List the files that an epoch needs.

        Args:
            planned: see :func:`layout_of`.
            known: contents that were read for an earlier checkpoint of this lineage.

        Raises:
            StateFileMissing: Spark has removed a file of it.
            DamagedRecord: a file of Spark that says which others are needed cannot be understood.
            StoreUnavailable: the storage.
        """
        listing = files.listing(folder)
        seen: dict[str, FileInfo] = {}
        contents: dict[tuple[str, str | None], bytes] = {}

        def read(path: str) -> bytes:
            # Stat before reading, so that a later replacement, which names other files, is noticed.
            [seen[path]] = listing.infos([path])
            if (etag := seen[path].etag) is None:
                return files.read(join(folder, path))
            content = (known or {}).get((path, etag))
            contents[path, etag] = files.read(join(folder, path)) if content is None else content
            return contents[path, etag]

        with collector.paused(len(listing.names) > MANY_FILES):
            layout = layout_of(listing.names, boundary, read, planned)
            try:
                found = iter(listing.infos([path for path in layout.files if path not in seen]))
                infos = [seen.get(path) or next(found) for path in layout.files]
            except FileNotFoundError as error:
                raise StateFileMissing(str(error.filename), "it was removed before it could be pinned") from None
        return cls(files, folder, infos, layout, lineage, contents)

    @classmethod
    def of_sink_log(
        cls, files: Files, folder: str, boundary: Epoch, lineage: str, planned: Epoch | None = None
    ) -> LiveFiles:
        """List the files of a file sink's log from which an epoch is read: the planned one, or the boundary.

        The log may have later entries; without that of the planned epoch it ends at the boundary. The newest entry is
        in ``layout``.

        Args:
            planned: see :func:`layout_of`.

        Raises:
            MissingRecord: the log ends before the boundary, or is not to be seen from here.
            StateFileMissing: Spark has removed a file of it.
            StoreUnavailable: the storage.
        """
        listing = files.listing(folder)
        names = entries_up_to(listing.names, boundary if planned is None else planned)
        # Each committed epoch has an entry. A folder that is away, or listed while Spark compacts, must not pass for a
        # log that ends earlier: setting the sink back to that would take rows out of the output.
        if (newest := newest_entry(names)) < boundary:
            why = f"epoch {boundary} is committed, and the log has no entry after {newest} that can be seen from here"
            raise MissingRecord(join(folder, str(boundary)), why, "Is the output of the query where it was?")
        try:
            infos = listing.infos(names)
        except FileNotFoundError as error:
            raise StateFileMissing(str(error.filename), "it was removed before it could be pinned") from None
        return cls(files, folder, infos, EpochLayout(newest), lineage)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(info.size for info in self.infos)

    def checksum(self, info: FileInfo) -> Checksum | None:
        """Return the checksum of a file that was read to find out what the epoch needs, or None."""
        content = self.contents.get((info.path, info.etag))
        return None if content is None else Checksum(len(content), f"{zlib.crc32(content):08x}")


@dataclass(frozen=True, slots=True)
class Pinned:
    """The files of one query in a checkpoint.

    Attributes:
        entries: the manifest.
        linked_bytes, copied_bytes: of files that were given a new name; only copies take space. What is in neither was
            pinned by another retained checkpoint.
    """

    live: LiveFiles
    entries: tuple[FileEntry, ...]
    linked_bytes: int
    copied_bytes: int

    def snapshot(
        self, *, query_id: str, spark_version: str, earlier: Reached | None, sources: tuple[str, ...] = ()
    ) -> QuerySnapshot:
        """Describe the query as it was pinned."""
        return describe_query(
            self.live.layout,
            self.entries,
            query_id=query_id,
            lineage=self.live.lineage,
            spark_version=spark_version,
            sources=sources,
            earlier=earlier,
        )


def pin_savepoint(live: LiveFiles, target: Files, folder: str, known: Sequence[Checksum | None]) -> Pinned:
    """Link or copy files into a separate folder.

    Args:
        target: the storage of that folder.
        known: checksums of the files, as far as they are known.

    Raises:
        StateFileMissing: a file has vanished or was replaced.
        StoreUnavailable: the storage; the owner of the folder removes it.
    """
    if _is_same_storage(live.files, target):
        names = [info.path for info in live.infos]
        known = [one or live.checksum(info) for one, info in zip(known, live.infos, strict=True)]
        linked = _link(live, folder, live.infos, names, known)
        checksums = _completed(target, folder, names, linked, known)
    else:
        checksums = [_copy_across(live, info, target, folder, info.path) for info in live.infos]
        linked = [Linked(info.size, info.modified, False) for info in live.infos]
    entries = tuple(
        FileEntry(info.path, checksum.size, checksum.crc32)
        for info, checksum in zip(live.infos, checksums, strict=True)
    )
    return _pinned(live, entries, linked)


def pin_shared(live: LiveFiles, shared: SharedFiles, owner: CheckpointId, prefix: str) -> Pinned:
    """Link or copy those files that no retained checkpoint has yet.

    Args:
        shared: on the same storage as the live files, unless these are few.
        owner: the checkpoint; release it when it is aborted.
        prefix: query and lineage, the folder among the shared files.

    Raises:
        StateFileMissing: a file has vanished or was replaced.
        StoreUnavailable: the storage.
    """
    acquired = shared.acquire(owner, prefix, live.infos)
    places = [place for place, one in enumerate(acquired) if one.is_missing]
    new = [live.infos[place] for place in places]
    names = [f"{live.infos[place].path}.{acquired[place].tag}" for place in places]
    folder = shared.path(prefix)
    known = [acquired[place].checksum or live.checksum(live.infos[place]) for place in places]
    if _is_same_storage(live.files, shared.files):
        linked = _link(live, folder, new, names, known)
        checksums = _completed(live.files, folder, names, linked, known)
    else:
        checksums = [
            _copy_across(live, info, shared.files, folder, name) for info, name in zip(new, names, strict=True)
        ]
        linked = [Linked(info.size, info.modified, False) for info in new]
    shared.ready((f"{prefix}/{name}" for name in names), checksums)
    fresh = iter(checksums)
    entries = tuple(
        FileEntry(
            info.path,
            info.size,
            (next(fresh) if one.is_missing else _present(folder, info.path, one.checksum)).crc32,
            one.tag,
        )
        for info, one in zip(live.infos, acquired, strict=True)
    )
    return _pinned(live, entries, linked)


def _pinned(live: LiveFiles, entries: tuple[FileEntry, ...], linked: Sequence[Linked]) -> Pinned:
    linked_bytes = sum(one.size for one in linked if one.is_linked)
    copied_bytes = sum(one.size for one in linked if not one.is_linked)
    return Pinned(live, entries, linked_bytes, copied_bytes)


def _link(
    live: LiveFiles,
    target: str,
    infos: Sequence[FileInfo],
    names: Sequence[str],
    known: Sequence[Checksum | None],
) -> Sequence[Linked]:
    pairs = [(info.path, name) for info, name in zip(infos, names, strict=True)]
    summed = {info.path for info, checksum in zip(infos, known, strict=True) if checksum is not None}
    try:
        linked = live.files.link_all(live.folder, target, pairs, summed, infos)
    except FileNotFoundError as error:
        why = "it was removed or replaced before it could be pinned"
        raise StateFileMissing(str(error.filename), why) from None
    for info, one in zip(infos, linked, strict=True):
        if (one.size, one.modified) != (info.size, info.modified):
            raise StateFileMissing(join(live.folder, info.path), "it was replaced before it could be pinned")
    return linked


def _completed(
    files: Files, folder: str, names: Sequence[str], linked: Sequence[Linked], known: Sequence[Checksum | None]
) -> list[Checksum]:
    """Compute the checksums that are neither known nor were computed by copying."""
    checksums = [
        checksum or (None if one.crc32 is None else Checksum(one.size, one.crc32))
        for one, checksum in zip(linked, known, strict=True)
    ]
    unknown = [name for name, checksum in zip(names, checksums, strict=True) if checksum is None]
    computed = dict(zip(unknown, files.checksum_all(folder, unknown), strict=True))
    return [checksum or _present(folder, name, computed[name]) for name, checksum in zip(names, checksums, strict=True)]


def _present(folder: str, name: str, checksum: Checksum | None) -> Checksum:
    if checksum is None:
        raise StateFileMissing(join(folder, name), "it was removed while the checkpoint was being taken")
    return checksum


def _copy_across(live: LiveFiles, info: FileInfo, target: Files, folder: str, name: str) -> Checksum:
    path = join(live.folder, info.path)
    size, crc = 0, 0

    def counted(chunks: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal size, crc
        for chunk in chunks:
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            yield chunk

    try:
        target.write_chunks(join(folder, name), counted(live.files.chunks(path)))
    except FileNotFoundError:
        raise StateFileMissing(path, "it was removed before it could be pinned") from None
    if size != info.size:
        raise StateFileMissing(path, "it was replaced before it could be pinned")
    return Checksum(size, f"{crc:08x}")


def _is_same_storage(source: Files, target: Files) -> bool:
    return source is target or (isinstance(source, LocalFiles) and isinstance(target, LocalFiles))
