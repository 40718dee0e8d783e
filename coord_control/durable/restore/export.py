"""Export Spark's files of a checkpoint into a directory from which Spark starts.

Linked where source and target are on one storage that has links, copied and checked otherwise. Descriptions of
operators name their schemas by absolute paths: they are rewritten for the new directory. Linked files are compared with
the manifest by size; :func:`.preflight.check_files` checks their content.

Threads: one at a time.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from coord_control.durable.checkpoints.checkpoint_folder import stored_name
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource, check_content, missing_file
from coord_control.durable.checkpoints.metadata_file import FileEntry
from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.durable.job_folder.lineage import write_query_id
from coord_control.durable.spark_layout.layout import relocated
from coord_control.errors import SavepointTargetTaken
from coord_control.ids import QueryName

__all__ = ["SparkFiles", "export_query"]


@dataclass(slots=True)
class SparkFiles:
    """Puts the files of one checkpoint into place.

    Attributes:
        files: the storage of the places.
        linked, copied: bytes so far; linked ones take no space.
    """

    files: Files
    source: CheckpointSource
    linked: int = 0
    copied: int = 0

    def put(self, query: QueryName, checkpoint: str) -> None:
        """Put the files of a query into a new Spark checkpoint directory, all but the query id.

        Raises:
            DamagedRecord, MissingRecord: a file is not what the manifest says.
        """
        snapshot = self.source.metadata.queries[query]
        base = self.source.folder_of(query)
        files = snapshot.spark_files
        changed = self._relocate(base, files, checkpoint)
        # Spark's own checksum of a rewritten file would no longer match; without one Spark does not check it.
        skipped = {*changed, *(f"{path}.crc" for path in changed)}
        self._place(base, [entry for entry in files if entry.path not in skipped], checkpoint)

    def put_sink_log(self, query: QueryName, folder: str) -> None:
        """Put the log of a query's file sink below a folder, from which the sink is set back.

        Raises:
            DamagedRecord, MissingRecord: a file is not what the manifest says.
        """
        snapshot = self.source.metadata.queries[query]
        self._place(self.source.folder_of(query), list(snapshot.sink_files), folder)

    def _place(self, base: str, entries: list[FileEntry], folder: str) -> None:
        if self._is_same_storage():
            self._link(base, entries, folder)
        else:
            for entry in entries:
                self._copy(join(base, stored_name(entry)), entry, join(folder, entry.path))

    def _relocate(self, base: str, entries: tuple[FileEntry, ...], checkpoint: str) -> set[str]:
        changed = set()
        for entry in entries:
            if "/_metadata/" not in entry.path:
                continue
            path = join(base, stored_name(entry))
            content = self._read(path, entry)
            moved = relocated(entry.path, content, checkpoint)
            if moved != content:
                self.files.create(join(checkpoint, entry.path), moved)
                self.copied += len(moved)
                changed.add(entry.path)
        return changed

    def _read(self, path: str, entry: FileEntry) -> bytes:
        try:
            content = self.source.files.read(path)
        except FileNotFoundError:
            raise missing_file(path, self.source.path) from None
        check_content(path, entry, len(content), f"{zlib.crc32(content):08x}")
        return content

    def _link(self, base: str, entries: list[FileEntry], checkpoint: str) -> None:
        names = [(stored_name(entry), entry.path) for entry in entries]
        try:
            linked = self.files.link_all(base, checkpoint, names)
        except FileNotFoundError as error:
            raise missing_file(str(error.filename or error), self.source.path) from None
        for entry, (name, _), each in zip(entries, names, linked, strict=True):
            check_content(join(base, name), entry, each.size)
            if each.is_linked:
                self.linked += each.size
        copied = [entry for entry, each in zip(entries, linked, strict=True) if not each.is_linked]
        found = self.files.checksum_all(checkpoint, [entry.path for entry in copied])
        for entry, checksum in zip(copied, found, strict=True):
            path = join(base, stored_name(entry))
            if checksum is None:
                raise missing_file(path, self.source.path)
            check_content(path, entry, checksum.size, checksum.crc32)
            self.copied += entry.size

    def _copy(self, path: str, entry: FileEntry, target: str) -> None:
        size, crc = 0, 0

        def chunks() -> Iterator[bytes]:
            nonlocal size, crc
            for chunk in self.source.files.chunks(path):
                size, crc = size + len(chunk), zlib.crc32(chunk, crc)
                yield chunk

        try:
            self.files.write_chunks(target, chunks())
        except FileNotFoundError:
            raise missing_file(path, self.source.path) from None
        check_content(path, entry, size, f"{crc:08x}")
        self.copied += size

    def _is_same_storage(self) -> bool:
        ours, theirs = self.files, self.source.files
        return ours is theirs or (isinstance(ours, LocalFiles) and isinstance(theirs, LocalFiles))


def export_query(
    files: Files, source: CheckpointSource, query: QueryName, target: str, *, new_id: bool = False
) -> SparkFiles:
    """Make a Spark checkpoint directory that plain Spark can start from; it belongs to no job of ours.

    Args:
        files: the storage of the target.
        target: a folder that does not exist, or is empty.
        new_id: give the query a new id, because it is to run in parallel with the original.

    Returns:
        What was linked and copied.

    Raises:
        SavepointTargetTaken: there is something in the target.
        DamagedRecord, MissingRecord: a file is not what the manifest says.
    """
    if files.list(target):
        raise SavepointTargetTaken(target, "there is something in it")
    placed = SparkFiles(files, source)
    placed.put(query, target)
    # Last: Spark does not start in a directory with offsets and without an id.
    write_query_id(files, target, str(uuid.uuid4()) if new_id else source.metadata.queries[query].query_id)
    return placed
