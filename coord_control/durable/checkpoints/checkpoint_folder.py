"""The layout of checkpoints and savepoints on the storage, and how to read it.

::

    <job>/checkpoints/<id>/_claim       who makes it, under which generation; each id is claimed once
    <job>/checkpoints/<id>/_metadata    of a checkpoint; its files lie in <job>/shared/<query>/<lineage>/<path>.<tag>
    <job>/checkpoints/<id>/_completed   of a savepoint: it was complete, wherever its folder may be by now
    <savepoint>/_claim, _metadata, queries/<query>/spark/<path>     self-contained, can be moved
    <either>/_holds/<n>                 it is being read right now (:mod:`.holds`)

A checkpoint is complete when ``_claim`` and ``_metadata`` are there. Both are made by create-if-absent. A driver that
aborts another driver's unfinished checkpoint creates its ``_metadata`` as void: exactly one of the two drivers
succeeds, so a driver that was believed dead either has completed it or never will. For a savepoint, whose ``_metadata``
can be moved away, that is decided by ``_completed`` in the same way.

Threads: values and reads; any thread.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import pydantic

from coord_control.durable.checkpoints.metadata_file import (
    METADATA_NAME,
    CheckpointMetadata,
    FileEntry,
    Kind,
    Trigger,
    decode_metadata,
)
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.files.json_records import read_json_record
from coord_control.errors import DamagedRecord, StoreUnavailable, UnsupportedFormat
from coord_control.ids import CheckpointId, Epoch, Generation, QueryName

__all__ = [
    "CLAIM_NAME",
    "COMPLETED_NAME",
    "QUERIES_NAME",
    "VOID",
    "CheckpointClaim",
    "CheckpointEntry",
    "Storage",
    "StoredState",
    "checkpoint_folder",
    "checkpoint_ids",
    "encode_claim",
    "files_folder",
    "job_folder_of",
    "list_entries",
    "look",
    "read_claim",
    "read_metadata",
    "shared_folder",
    "shared_names",
    "stored_name",
    "taken_labels",
]

CLAIM_NAME: Final = "_claim"
COMPLETED_NAME: Final = "_completed"
QUERIES_NAME: Final = "queries"

#: The content of a `_metadata`, or `_completed`, of an aborted checkpoint: no driver can complete it any more.
VOID: Final = b'{"void":true}\n'

_CLAIM_FORMAT: Final = 1

#: Which files a path is on: a savepoint's target may be on another storage than the job.
Storage: TypeAlias = Callable[[str], Files]


class CheckpointClaim(pydantic.BaseModel):
    """The content of ``_claim``.

    Attributes:
        target: the folder of a savepoint; None for a checkpoint.
        requested_target: as requested; None for the job's default folder.
        token: tells this savepoint's folder from another one that stands in its place by now.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = _CLAIM_FORMAT
    checkpoint: CheckpointId
    kind: Kind
    label: str | None = None
    generation: Generation
    target: str | None = None
    requested_target: str | None = None
    token: str = pydantic.Field(default_factory=lambda: uuid.uuid4().hex)
    claimed_at: pydantic.AwareDatetime = pydantic.Field(default_factory=lambda: datetime.datetime.now(datetime.UTC))


class StoredState(enum.Enum):
    """The state of a stored checkpoint."""

    COMPLETED = "completed"
    UNFINISHED = "unfinished"  #: being made, or left by a driver that died
    VOID = "void"  #: aborted
    MISSING = "missing"  #: a savepoint that was moved or removed by hand, or whose storage cannot be reached
    DAMAGED = "damaged"  #: what it says about itself cannot be used


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One line in the list of a job's checkpoints.

    Attributes:
        path: the folder of its ``_metadata``.
        claim: None if it is not in the job's list (a savepoint that was named by its path).
        problem: what is damaged, or why it cannot be reached.
        epochs: the last epoch in it, by query.
        size: bytes of all its files.
    """

    checkpoint: CheckpointId
    kind: Kind
    state: StoredState
    path: str
    label: str | None = None
    claim: CheckpointClaim | None = None
    problem: str = ""
    generation: Generation | None = None
    trigger: Trigger | None = None
    completed_at: datetime.datetime | None = None
    epochs: tuple[tuple[QueryName, Epoch], ...] = ()
    file_count: int = 0
    size: int = 0

    @classmethod
    def of(cls, path: str, metadata: CheckpointMetadata, claim: CheckpointClaim | None = None) -> CheckpointEntry:
        """Return the entry of a complete checkpoint."""
        return cls(
            checkpoint=metadata.checkpoint,
            kind=metadata.kind,
            state=StoredState.COMPLETED,
            path=path,
            label=metadata.label,
            claim=claim,
            generation=metadata.generation,
            trigger=metadata.trigger,
            completed_at=metadata.completed_at,
            epochs=tuple((name, query.epoch) for name, query in metadata.queries.items()),
            file_count=metadata.file_count,
            size=metadata.size,
        )

    @property
    def is_completed(self) -> bool:
        return self.state is StoredState.COMPLETED

    @property
    def requested_by(self) -> str | None:
        """The actor that asked for it, if it is complete and one did."""
        actor = None if self.trigger is None else self.trigger.details.get("requested_by")
        return actor if isinstance(actor, str) else None


def checkpoint_folder(job_folder: str, checkpoint: CheckpointId) -> str:
    """Return the folder of a checkpoint, and of the claim of a savepoint."""
    return join(job_folder, "checkpoints", str(checkpoint))


def job_folder_of(path: str) -> str:
    """Return the folder of the job that a checkpoint, named by its path, belongs to."""
    return path.rstrip("/").rsplit("/", 2)[0]


def shared_folder(job_folder: str) -> str:
    """Return the folder of the files that checkpoints share."""
    return join(job_folder, "shared")


def files_folder(path: str, metadata: CheckpointMetadata, query: QueryName) -> str:
    """Return the folder below which the files of a query lie, each under its :func:`stored_name`.

    Args:
        path: the folder of the checkpoint or savepoint.
    """
    if metadata.kind == "savepoint":
        return join(path, QUERIES_NAME, query, "spark")
    return join(shared_folder(job_folder_of(path)), query, metadata.queries[query].lineage)


def stored_name(entry: FileEntry) -> str:
    """Return the name of a file below that folder."""
    return entry.path if entry.tag is None else f"{entry.path}.{entry.tag}"


def shared_names(metadata: CheckpointMetadata) -> Iterator[str]:
    """Yield the files of a checkpoint, as paths relative to the :func:`shared_folder`."""
    for name, query in metadata.queries.items():
        prefix = f"{name}/{query.lineage}/"
        for entry in query.files:
            yield prefix + stored_name(entry)


def checkpoint_ids(files: Files, job_folder: str) -> list[CheckpointId]:
    """Return the ids that have a folder, in order."""
    return sorted(CheckpointId(int(name)) for name in files.list(join(job_folder, "checkpoints")) if name.isdigit())


def list_entries(files: Files, job_folder: str, storage: Storage | None = None) -> Iterator[CheckpointEntry]:
    """Yield all checkpoints and savepoints of a job that have a claim, in the order of their ids.

    Args:
        storage: returns the storage of a savepoint's path; None if everything is on ``files``.
    """
    for checkpoint in checkpoint_ids(files, job_folder):
        found = look(files, job_folder, checkpoint, storage or (lambda path: files))
        if found is not None:
            yield found[0]


def look(
    files: Files, job_folder: str, checkpoint: CheckpointId, storage: Storage
) -> tuple[CheckpointEntry, CheckpointMetadata | None] | None:
    """Return a checkpoint's entry, and its metadata if it is complete; None if it has no claim."""
    folder = checkpoint_folder(job_folder, checkpoint)
    try:
        claim = read_claim(files, folder)
    except (DamagedRecord, UnsupportedFormat) as error:
        problem = str(error)
        return CheckpointEntry(checkpoint, "checkpoint", StoredState.DAMAGED, folder, problem=problem), None
    if claim is None:
        return None
    path = claim.target or folder

    def entry(state: StoredState, problem: str = "") -> CheckpointEntry:
        return CheckpointEntry(
            checkpoint, claim.kind, state, path, claim.label, claim, problem, generation=claim.generation
        )

    outcome = _content(files, folder, COMPLETED_NAME) if claim.kind == "savepoint" else None
    if outcome == VOID:
        return entry(StoredState.VOID), None
    try:
        metadata = read_metadata(storage(path), path)
    except FileNotFoundError:
        return entry(StoredState.UNFINISHED if outcome is None else StoredState.MISSING), None
    except StoreUnavailable as error:
        if claim.target is None:
            raise
        return entry(StoredState.MISSING, str(error)), None
    except (DamagedRecord, UnsupportedFormat) as error:
        return entry(StoredState.DAMAGED, str(error)), None
    if metadata is None:
        return entry(StoredState.VOID), None
    if (metadata.checkpoint, metadata.generation) != (checkpoint, claim.generation):
        found = f"{join(path, METADATA_NAME)} belongs to checkpoint {metadata.checkpoint} of another driver"
        return entry(StoredState.DAMAGED, found), None
    return CheckpointEntry.of(path, metadata, claim), metadata


def taken_labels(files: Files, job_folder: str) -> set[str]:
    """Return the labels of all checkpoints of a job that were not aborted, as their claims say."""
    labels = set()
    for checkpoint in checkpoint_ids(files, job_folder):
        folder = checkpoint_folder(job_folder, checkpoint)
        with contextlib.suppress(DamagedRecord, UnsupportedFormat):
            claim = read_claim(files, folder)
            if claim is None or claim.label is None:
                continue
            if _content(files, folder, COMPLETED_NAME if claim.kind == "savepoint" else METADATA_NAME) != VOID:
                labels.add(claim.label)
    return labels


def _content(files: Files, folder: str, name: str) -> bytes | None:
    try:
        return files.read(join(folder, name))
    except FileNotFoundError:
        return None


def encode_claim(claim: CheckpointClaim) -> bytes:
    """Return the content of ``_claim``."""
    return claim.model_dump_json(indent=2).encode()


def read_claim(files: Files, folder: str) -> CheckpointClaim | None:
    """Read the claim of a folder, or return None if it has none.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be read.
    """
    return read_json_record(files, join(folder, CLAIM_NAME), CheckpointClaim, _CLAIM_FORMAT)


def read_metadata(files: Files, path: str) -> CheckpointMetadata | None:
    """Read the metadata in a folder, or return None if it is void.

    Raises:
        FileNotFoundError: there is none.
        DamagedRecord, UnsupportedFormat: it cannot be used.
    """
    name = join(path, METADATA_NAME)
    data = files.read(name)
    return None if data == VOID else decode_metadata(name, data)
