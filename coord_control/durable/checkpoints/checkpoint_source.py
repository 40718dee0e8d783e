"""Read a checkpoint or savepoint: it is held against removal meanwhile, and checked as far as it is read.

Threads: any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from coord_control.durable.checkpoints.checkpoint_folder import files_folder, read_metadata
from coord_control.durable.checkpoints.holds import hold
from coord_control.durable.checkpoints.metadata_file import METADATA_NAME, CheckpointMetadata, FileEntry
from coord_control.durable.files.filesystem import Files, join
from coord_control.errors import DamagedRecord, MissingRecord
from coord_control.ids import QueryName

__all__ = ["CheckpointSource", "check_content", "missing_file", "open_checkpoint"]

_ANOTHER: Final = "Nothing was changed; `coordctl savepoint list` shows what can be restored"
_REMEDY: Final = "Nothing was changed; restore from another checkpoint, or put the file back from a copy of the storage"


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """A checkpoint that can be restored.

    Attributes:
        path: the folder that holds its ``_metadata``.
        files: the storage of that folder.
    """

    path: str
    metadata: CheckpointMetadata
    files: Files

    def folder_of(self, query: QueryName) -> str:
        """Return the folder below which the files of a query lie, each under its stored name."""
        return files_folder(self.path, self.metadata, query)


@contextlib.contextmanager
def open_checkpoint(files: Files, path: str, purpose: str = "it is being restored") -> Iterator[CheckpointSource]:
    """Open a checkpoint for reading, and protect it from removal meanwhile.

    Args:
        files: the storage of ``path``, the folder of its ``_metadata``.
        purpose: the reason that an attempt to remove it reports.

    Raises:
        MissingRecord: there is none, or it was aborted.
        DamagedRecord, UnsupportedFormat: what it says about itself cannot be used.
    """
    with hold(files, path, purpose):
        name = join(path, METADATA_NAME)
        try:
            metadata = read_metadata(files, path)
        except FileNotFoundError:
            raise MissingRecord(
                name, "there is no checkpoint here, or it was removed or never completed", _ANOTHER
            ) from None
        if metadata is None:
            raise MissingRecord(name, "this checkpoint was aborted before it was complete", _ANOTHER)
        yield CheckpointSource(path, metadata, files)


def missing_file(path: str, checkpoint: str) -> MissingRecord:
    """Return the error for a file that the manifest names and that is not there."""
    return MissingRecord(path, f"the manifest of {checkpoint} names it", _REMEDY)


def check_content(path: str, entry: FileEntry, size: int, crc32: str | None = None) -> None:
    """Compare a file with the manifest.

    Args:
        path: for the error.
        crc32: None: it was not read.

    Raises:
        DamagedRecord: it is another one.
    """
    if size != entry.size:
        raise DamagedRecord(path, f"it has {size} bytes, the manifest says {entry.size}", _REMEDY)
    if crc32 not in (None, entry.crc32):
        raise DamagedRecord(path, "its checksum is not the one in the manifest", _REMEDY)
