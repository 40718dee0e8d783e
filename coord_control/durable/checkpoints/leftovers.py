"""Take over the checkpoints that earlier drivers have left.

The complete ones are counted: which shared files they need, and which requests they answered. The driver of an
incomplete one may still be alive, so it is first made void: either that driver was faster, and then the checkpoint is
complete, or it can never complete it (:mod:`.checkpoint_folder`). Then it is removed, together with the shared files
that no checkpoint names.

As long as the metadata of any checkpoint cannot be read, what it needs is unknown, and all shared files of earlier
drivers stay.

Threads: one, before anything is made.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from coord_control.durable.checkpoints.checkpoint_folder import (
    COMPLETED_NAME,
    VOID,
    CheckpointClaim,
    CheckpointEntry,
    Storage,
    StoredState,
    checkpoint_folder,
    checkpoint_ids,
    encode_claim,
    look,
    read_claim,
    shared_names,
)
from coord_control.durable.checkpoints.holds import active_hold
from coord_control.durable.checkpoints.metadata_file import METADATA_NAME, CheckpointMetadata
from coord_control.durable.checkpoints.removal import dispose_of_savepoint, remove_claim
from coord_control.durable.checkpoints.shared_files import SharedFiles
from coord_control.durable.files.filesystem import Checksum, Files, join
from coord_control.errors import AlreadyExists, DamagedRecord, Fenced
from coord_control.ids import CheckpointId, CheckpointKind, Generation
from coord_control.protocol.scheduler.tickets import CheckpointRequest

__all__ = ["Found", "take_over"]

_log = logging.getLogger("coord_control.checkpoints")


@dataclass(slots=True)
class Found:
    """What earlier drivers have left.

    Attributes:
        highest: the highest id; 0: none.
        retained: the completed checkpoints.
        completed: the completed checkpoints and savepoints: what was asked for, id and folder, oldest first.
        emptied: the highest id, when nothing but its claim is left.
    """

    highest: CheckpointId
    retained: set[CheckpointId] = field(default_factory=set)
    completed: list[tuple[CheckpointRequest, CheckpointId, str]] = field(default_factory=list)
    emptied: dict[CheckpointId, CheckpointClaim] = field(default_factory=dict)


def take_over(files: Files, folder: str, generation: Generation, storage: Storage, shared: SharedFiles) -> Found:
    """Take over the checkpoints of a job. Repeatable after an error, with another ``shared``.

    Args:
        folder: the job's.
        generation: ours, claimed before.
        shared: learns which files are needed, and loses the others.

    Raises:
        Fenced: a newer driver has claimed an id.
        StoreUnavailable: the storage.
    """
    return _TakeOver(files, folder, generation, storage, shared).run()


class _TakeOver:
    def __init__(
        self, files: Files, folder: str, generation: Generation, storage: Storage, shared: SharedFiles
    ) -> None:
        self._files = files
        self._folder = folder
        self._generation = generation
        self._storage = storage
        self._shared = shared
        self._ids = checkpoint_ids(files, folder)
        self._found = Found(max([*self._ids, CheckpointId(0)]))

    def run(self) -> Found:
        is_known = True
        for checkpoint in self._ids:
            one = look(self._files, self._folder, checkpoint, self._storage)
            if one is None:
                self._remove_remains(checkpoint)
            else:
                is_known = self._take(*one) and is_known
        if is_known:
            self._shared.sweep()
        else:
            self._shared.keep_older()
        return self._found

    def _take(self, entry: CheckpointEntry, metadata: CheckpointMetadata | None) -> bool:
        """Return whether it is known which shared files it needs."""
        if entry.generation is not None and entry.generation > self._generation:
            raise Fenced(self._folder.rstrip("/").rpartition("/")[2], self._generation, entry.generation)
        if entry.state is StoredState.COMPLETED:
            assert metadata is not None, "it is complete"
            self._count(entry, metadata)
        elif entry.state is StoredState.DAMAGED:
            _log.warning("= %s %d: %s", entry.kind, entry.checkpoint, entry.problem)
            return entry.kind == "savepoint"
        else:
            assert entry.claim is not None, "it was found by its claim"
            try:
                return self._clear(entry, entry.claim)
            except DamagedRecord as error:
                _log.warning("= %s %d is left as it is: %s", entry.kind, entry.checkpoint, error)
                return entry.kind == "savepoint"
        return True

    def _count(self, entry: CheckpointEntry, metadata: CheckpointMetadata) -> None:
        assert entry.claim is not None, "it was found by its claim"
        self._found.completed.append((_request(entry, entry.claim), entry.checkpoint, entry.path))
        if entry.kind == "savepoint":
            self._note_completed(entry.claim)
            return
        self._found.retained.add(entry.checkpoint)
        checksums = (Checksum(file.size, file.crc32) for query in metadata.queries.values() for file in query.files)
        self._shared.load(entry.checkpoint, zip(shared_names(metadata), checksums, strict=True))

    def _note_completed(self, claim: CheckpointClaim) -> None:
        """Write the ``_completed`` that its driver may have died before writing."""
        path = join(checkpoint_folder(self._folder, claim.checkpoint), COMPLETED_NAME)
        if not self._files.exists(path):
            try:
                self._files.create(path, encode_claim(claim))
            except AlreadyExists:
                return

    def _clear(self, entry: CheckpointEntry, claim: CheckpointClaim) -> bool:
        """Remove an incomplete checkpoint. Return the same as :meth:`_take`."""
        if entry.state is StoredState.MISSING and not self._was_disposed_of(entry, claim):
            return True  # the user has moved it
        if active_hold(self._storage(entry.path), entry.path) is not None:
            return entry.kind == "savepoint"  # disposed of while it was being read; the next driver looks again
        if entry.state is StoredState.UNFINISHED and not self._make_void(claim):
            found = look(self._files, self._folder, entry.checkpoint, self._storage)
            return found is None or self._take(*found)
        if claim.target is not None:
            dispose_of_savepoint(self._files, self._folder, claim, self._storage)
        if not remove_claim(self._files, self._folder, entry.checkpoint, claim.kind, self._found.highest):
            self._found.emptied[entry.checkpoint] = claim
        return True

    def _was_disposed_of(self, entry: CheckpointEntry, claim: CheckpointClaim) -> bool:
        """Return whether its removal was interrupted: its folder is still there, without metadata."""
        if entry.problem:
            return False  # its storage cannot be reached
        found = read_claim(self._storage(entry.path), entry.path)
        return found is not None and found.token == claim.token

    def _make_void(self, claim: CheckpointClaim) -> bool:
        """Return False if its driver was faster: then it is complete."""
        name = METADATA_NAME if claim.kind == "checkpoint" else COMPLETED_NAME
        path = join(checkpoint_folder(self._folder, claim.checkpoint), name)
        try:
            self._files.create(path, VOID)
        except AlreadyExists:
            return self._files.read(path) == VOID
        return True

    def _remove_remains(self, checkpoint: CheckpointId) -> None:
        """Remove a folder without a claim, left by an interrupted removal."""
        if checkpoint < self._found.highest:
            self._files.delete(checkpoint_folder(self._folder, checkpoint))
        else:
            claim = CheckpointClaim(checkpoint=checkpoint, kind="checkpoint", generation=self._generation)
            self._found.emptied[checkpoint] = claim


def _request(entry: CheckpointEntry, claim: CheckpointClaim) -> CheckpointRequest:
    trigger = entry.trigger
    assert trigger is not None, "it is complete"
    return CheckpointRequest(
        kind=CheckpointKind(entry.kind),
        key=trigger.key,
        label=entry.label,
        target=claim.requested_target,
        cause=trigger.cause,
    )
