"""Verify that a checkpoint or savepoint is what its manifest says: every file, its size, its checksum.

Whether Spark can load them is not checked here; a flipped bit that Spark would load without noticing is found.

Threads: any; memory does not grow with the size of the files.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from coord_control.durable.checkpoints.checkpoint_folder import QUERIES_NAME, files_folder, stored_name
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, FileEntry
from coord_control.durable.files.filesystem import Files, join
from coord_control.ids import QueryName

__all__ = ["Problem", "ProblemKind", "verify_files"]


class ProblemKind(enum.Enum):
    """What is wrong with a file."""

    MISSING = "missing"
    SIZE = "size"  #: it is longer or shorter than it was
    CHECKSUM = "checksum"  #: its content has changed
    EXTRA = "extra"  #: a savepoint's folder holds it, the manifest does not; a restore ignores it


@dataclass(frozen=True, slots=True)
class Problem:
    """One file that is not what it should be.

    Attributes:
        path: where it lies.
        detail: what was expected, and what was found.
    """

    query: QueryName
    kind: ProblemKind
    path: str
    detail: str

    @property
    def is_fatal(self) -> bool:
        """Whether it must not be restored from."""
        return self.kind is not ProblemKind.EXTRA

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


def verify_files(files: Files, path: str, metadata: CheckpointMetadata) -> Iterator[Problem]:
    """Read all files of a checkpoint and compare them with its manifest.

    Args:
        files: the storage of its folder.
        path: its folder.

    Raises:
        StoreUnavailable: the storage.
    """
    for query, snapshot in metadata.queries.items():
        folder = files_folder(path, metadata, query)
        names = [stored_name(entry) for entry in snapshot.files]
        found = files.checksum_all(folder, names)
        for entry, name, checksum in zip(snapshot.files, names, found, strict=True):
            if checksum is None:
                yield Problem(query, ProblemKind.MISSING, join(folder, name), "the file is missing")
            elif checksum.size != entry.size:
                detail = f"it has {checksum.size} bytes instead of {entry.size}"
                yield Problem(query, ProblemKind.SIZE, join(folder, name), detail)
            elif checksum.crc32 != entry.crc32:
                yield Problem(query, ProblemKind.CHECKSUM, join(folder, name), _changed(entry, checksum.crc32))
    if metadata.kind == "savepoint":
        yield from _extra(files, path, metadata)


def _changed(entry: FileEntry, crc32: str) -> str:
    return f"its content has changed: the checksum is {crc32} instead of {entry.crc32}"


def _extra(files: Files, path: str, metadata: CheckpointMetadata) -> Iterator[Problem]:
    folder = join(path, QUERIES_NAME)
    known = {f"{query}/spark/{entry.path}" for query, snapshot in metadata.queries.items() for entry in snapshot.files}
    for info in files.walk(folder):
        if info.path not in known:
            query = QueryName(info.path.partition("/")[0])
            detail = "the manifest does not name it, and a restore ignores it"
            yield Problem(query, ProblemKind.EXTRA, join(folder, info.path), detail)
