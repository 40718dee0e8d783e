"""Removing checkpoints and savepoints; each step can be repeated after a crash.

``_metadata`` goes first: from then on nothing can be restored. The claim goes last: by it the rest is found again. Only
what we have written is removed from a savepoint's folder, and only while its claim is in it: the user may have moved it
away and put something else in its place.

Threads: any.
"""

from __future__ import annotations

import contextlib
from typing import Final

from coord_control.durable.checkpoints.checkpoint_folder import (
    CLAIM_NAME,
    COMPLETED_NAME,
    QUERIES_NAME,
    VOID,
    CheckpointClaim,
    CheckpointEntry,
    Storage,
    StoredState,
    checkpoint_folder,
    checkpoint_ids,
    job_folder_of,
    list_entries,
    read_claim,
)
from coord_control.durable.checkpoints.holds import HOLDS_NAME, active_hold
from coord_control.durable.checkpoints.metadata_file import METADATA_NAME, Kind
from coord_control.durable.files.filesystem import Files, join
from coord_control.errors import AlreadyExists, CheckpointInUse
from coord_control.ids import CheckpointId

__all__ = [
    "NEWEST",
    "dispose_of_savepoint",
    "dispose_without_owner",
    "refuse_if_held",
    "remove_claim",
    "remove_savepoint",
]

#: Why the newest one stays.
NEWEST: Final = "it is the newest completed checkpoint of the job, a recovery would need it; take another one first"

_UNFINISHED: Final = "it is being made, or a driver that died has left it: then the next driver of the job removes it"


def refuse_if_held(storage: Storage, path: str) -> None:
    """Raise CheckpointInUse if it is being read."""
    held = active_hold(storage(path), path)
    if held is not None:
        raise CheckpointInUse(path, str(held))


def remove_savepoint(files: Files, path: str, claim: CheckpointClaim | None = None) -> None:
    """Remove a savepoint, complete or not. Do nothing if it is already gone.

    Args:
        path: its folder.
        claim: the savepoint that it must be; None for any savepoint.

    Raises:
        CheckpointInUse: it no longer exists, but its files are still being read: repeat it later.
        DamagedRecord: the folder's claim is unreadable.
    """
    found = read_claim(files, path)
    if claim is not None and found is not None and found.token != claim.token:
        return
    if claim is None or found is not None:
        files.delete(join(path, METADATA_NAME))
        refuse_if_held(lambda path: files, path)
        files.delete(join(path, QUERIES_NAME))
        files.delete(join(path, HOLDS_NAME))
    # The folder goes with its last file. If anything of the user is in it, also what is never listed, it stays.
    parent, _, name = path.rpartition("/")
    files.delete_all(parent, [f"{name}/{CLAIM_NAME}"])
    if claim is not None and claim.requested_target is None and not files.list(path):
        files.delete(path)  # a folder of the job: what is hidden there was left by a crash


def dispose_of_savepoint(files: Files, job_folder: str, claim: CheckpointClaim, storage: Storage) -> None:
    """Remove a savepoint of the job's list, but for its claim. Repeatable.

    Raises:
        CheckpointInUse: it no longer exists, but its files are still being read: repeat it later.
        DamagedRecord: the folder's claim is unreadable.
    """
    assert claim.target is not None, "savepoints have one"
    target = storage(claim.target)
    found = read_claim(target, claim.target)
    if found is not None and found.token == claim.token:
        target.delete(join(claim.target, METADATA_NAME))
        refuse_if_held(storage, claim.target)
    # This distinguishes it from a savepoint that the user has moved.
    files.replace(join(checkpoint_folder(job_folder, claim.checkpoint), COMPLETED_NAME), VOID)
    remove_savepoint(target, claim.target, claim)


def remove_claim(files: Files, job_folder: str, checkpoint: CheckpointId, kind: Kind, highest: CheckpointId) -> bool:
    """Remove the folder of an id, the last that is left of it; that of the highest id stays, void.

    Returns:
        Whether it was removed.
    """
    folder = checkpoint_folder(job_folder, checkpoint)
    if checkpoint < highest:
        # Without its claim nothing in it counts, so that goes first.
        files.delete(join(folder, CLAIM_NAME))
        files.delete(folder)
        return True
    if kind == "checkpoint":
        with contextlib.suppress(AlreadyExists):
            files.create(join(folder, METADATA_NAME), VOID)
    else:
        files.replace(join(folder, COMPLETED_NAME), VOID)
    files.delete(join(folder, HOLDS_NAME))
    return False


def dispose_without_owner(files: Files, job_folder: str, entry: CheckpointEntry, storage: Storage) -> bool:
    """Remove one while another driver may own the job, or none does.

    The files that a checkpoint shares with others are left: only the job's owner knows which checkpoints need them. The
    next driver removes them.

    Args:
        entry: of the job's list, or one that was named by its path: a savepoint, or a checkpoint of another job.

    Returns:
        Whether all its files are gone.

    Raises:
        CheckpointInUse: it is being made, or read, or is the newest completed checkpoint of its job.
        StoreUnavailable: something may be left; repeat it.
    """
    if entry.state is StoredState.UNFINISHED:
        raise CheckpointInUse(entry.path, _UNFINISHED)
    if entry.kind == "checkpoint" and entry.is_completed:
        owner = job_folder_of(entry.path)  # each job numbers its checkpoints from 1
        completed = [one.path for one in list_entries(storage(owner), owner, storage) if _is_checkpoint(one)]
        if completed[-1:] == [entry.path.rstrip("/")]:
            raise CheckpointInUse(entry.path, NEWEST)
    refuse_if_held(storage, entry.path)
    if entry.kind == "checkpoint":
        storage(entry.path).delete(join(entry.path, METADATA_NAME))
        return False
    if entry.claim is None:
        remove_savepoint(storage(entry.path), entry.path)
    else:
        dispose_of_savepoint(files, job_folder, entry.claim, storage)
        remove_claim(files, job_folder, entry.checkpoint, entry.kind, max(checkpoint_ids(files, job_folder)))
    return True


def _is_checkpoint(entry: CheckpointEntry) -> bool:
    return entry.kind == "checkpoint" and entry.is_completed
