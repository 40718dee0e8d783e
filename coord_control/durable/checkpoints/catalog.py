"""Resolve a reference to a checkpoint: an id, a label, ``latest``, or the path of a savepoint.

Threads: reads; any thread.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Sequence
from typing import Final, Self

from coord_control.durable.checkpoints.checkpoint_folder import (
    CheckpointEntry,
    Storage,
    StoredState,
    list_entries,
    look,
    read_metadata,
    taken_labels,
)
from coord_control.durable.checkpoints.holds import hold
from coord_control.durable.checkpoints.metadata_file import METADATA_NAME, CheckpointMetadata
from coord_control.durable.files.filesystem import Files, join, scheme
from coord_control.errors import CheckpointNotFound, DamagedRecord
from coord_control.ids import LATEST, CheckpointId

__all__ = ["Catalog"]

#: The reference that means another checkpoint with every new one.

#: How many names like a wrong one an error proposes, and in how many folders it looks for a checkpoint to find them.
_PROPOSED: Final = 3
_LOOKS: Final = 10

_WHY: Final = {
    StoredState.UNFINISHED: "it is not complete: it is being made, or its driver died",
    StoredState.VOID: "it was aborted before it was complete",
    StoredState.MISSING: "it was moved or removed, or its storage cannot be reached; name it by its path",
    StoredState.DAMAGED: "what it says about itself is damaged",
}


class Catalog:
    """The checkpoints and savepoints of a job, as its storage has them now.

    Args:
        files: the job's storage.
        job_folder: the job's folder.
        storage: returns the storage of a path; None if everything is on ``files``.
    """

    def __init__(self, files: Files, job_folder: str, storage: Storage | None = None) -> None:
        self._files = files
        self._folder = job_folder
        self._storage = storage or (lambda path: files)

    @classmethod
    def of_paths(cls, path: str, storage: Storage) -> Self:
        """Return a catalog that resolves this path only: a savepoint can be anywhere, and need not be in any job."""
        return cls(storage(path), join(path, "no-job"), storage)

    def entries(self) -> list[CheckpointEntry]:
        """Return all checkpoints and savepoints, oldest first, including incomplete ones but not aborted ones."""
        found = list_entries(self._files, self._folder, self._storage)
        return [entry for entry in found if entry.state is not StoredState.VOID]

    def labels(self) -> set[str]:
        """Return the labels that are taken, including those of incomplete checkpoints; reads the job's storage only.

        Raises:
            StoreUnavailable: the storage.
        """
        return taken_labels(self._files, self._folder)

    def resolve(self, reference: str) -> CheckpointEntry:
        """Return the complete checkpoint or savepoint that ``reference`` names.

        ``latest`` is the one with the highest id, whatever it is. A reference with a ``/`` is the path of a folder, or
        of the ``_metadata`` in it. Digits are an id; anything else is a label.

        Raises:
            CheckpointNotFound: there is none, or it is not complete, or several have that label; the message names
                what is there.
            DamagedRecord, UnsupportedFormat: it is there, and cannot be used.
            StoreUnavailable: the storage.
        """
        if "/" in reference or scheme(reference) is not None:
            return self._at(reference)
        if reference.isdigit():
            return self._of_id(CheckpointId(int(reference)))
        entries = self.entries()
        completed = [entry for entry in entries if entry.is_completed]
        if reference == LATEST:
            if not completed:
                raise CheckpointNotFound(reference, "the job has no complete checkpoint or savepoint")
            return completed[-1]
        return self._of_label(reference, entries)

    def read(self, entry: CheckpointEntry) -> CheckpointMetadata:
        """Read all that a complete one says about itself.

        Raises:
            CheckpointNotFound: it was removed meanwhile.
            DamagedRecord, UnsupportedFormat: it cannot be used.
        """
        metadata = None
        with contextlib.suppress(FileNotFoundError):
            metadata = read_metadata(self._storage(entry.path), entry.path)
        if metadata is None or metadata.checkpoint != entry.checkpoint:
            raise CheckpointNotFound(str(entry.checkpoint), f"it was removed from {entry.path} just now")
        return metadata

    @contextlib.contextmanager
    def hold(self, reference: str, purpose: str = "it is being restored") -> Iterator[CheckpointEntry]:
        """Protect the named checkpoint from removal while the block runs.

        Raises:
            As :meth:`resolve`.
        """
        entry = self.resolve(reference)
        with hold(self._storage(entry.path), entry.path, purpose):
            # Held first and read then: it may have been removed in between.
            self.read(entry)
            yield entry

    def files_of(self, entry: CheckpointEntry) -> Files:
        """Return the storage of an entry."""
        return self._storage(entry.path)

    def _at(self, path: str) -> CheckpointEntry:
        folder = path.rstrip("/").removesuffix(f"/{METADATA_NAME}")
        for entry in self.entries():
            if entry.is_completed and entry.path.rstrip("/") == folder:
                return entry
        metadata = None
        with contextlib.suppress(FileNotFoundError):
            metadata = read_metadata(self._storage(folder), folder)
        if metadata is None:
            raise CheckpointNotFound(path, f"there is no {METADATA_NAME} in {folder}", self._beside(folder))
        return CheckpointEntry.of(folder, metadata)

    def _beside(self, folder: str) -> list[str]:
        """Return the checkpoints next to a folder whose names are like its own."""
        parent, _, name = folder.rpartition("/")
        files = self._storage(parent)
        near = [join(parent, other) for other in _near(name, files.list(parent), _LOOKS)]
        return [path for path in near if files.exists(join(path, METADATA_NAME))][:_PROPOSED]

    def _of_id(self, checkpoint: CheckpointId) -> CheckpointEntry:
        found = look(self._files, self._folder, checkpoint, self._storage)
        if found is not None and found[0].is_completed:
            return found[0]
        if found is not None:
            self._refuse(str(checkpoint), found[0])
        completed = [entry.checkpoint for entry in self.entries() if entry.is_completed]
        near = sorted(completed, key=lambda other: (abs(other - checkpoint), -other))[:_PROPOSED]
        raise CheckpointNotFound(str(checkpoint), "there is none of that number", map(str, sorted(near)))

    def _of_label(self, label: str, entries: Sequence[CheckpointEntry]) -> CheckpointEntry:
        labelled = [entry for entry in entries if entry.label == label]
        completed = [entry for entry in labelled if entry.is_completed]
        if len(completed) > 1:
            ids = [str(entry.checkpoint) for entry in completed]
            raise CheckpointNotFound(label, "several have that label, name one by its id", ids)
        if completed:
            return completed[0]
        if labelled:
            self._refuse(label, labelled[-1])
        labels = {entry.label for entry in entries if entry.label is not None and entry.is_completed}
        raise CheckpointNotFound(label, "there is none of that label", _near(label, sorted(labels | {LATEST})))

    def _refuse(self, reference: str, entry: CheckpointEntry) -> None:
        if entry.state is StoredState.DAMAGED:
            raise DamagedRecord(join(entry.path, METADATA_NAME), entry.problem, "Restore from another checkpoint")
        raise CheckpointNotFound(reference, _WHY[entry.state])


def _near(name: str, others: Sequence[str], most: int = _PROPOSED) -> list[str]:
    return difflib.get_close_matches(name, others, n=most)
