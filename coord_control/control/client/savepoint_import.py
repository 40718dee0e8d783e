"""Reads a savepoint from its path as a record for the database.

Threads: any; reads one file.
"""

from __future__ import annotations

import os
from dataclasses import replace

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry, Storage
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.durable.files.by_scheme import without_spark
from coord_control.durable.files.filesystem import join, scheme
from coord_control.errors import CheckpointNotFound
from coord_control.storage.records import SavepointRecord

__all__ = ["read_savepoint", "savepoint_record"]


def read_savepoint(path: str, storage: Storage | None = None) -> SavepointRecord:
    """Read the metadata of a savepoint.

    Args:
        path: the folder of the savepoint.
        storage: returns the file system of a path; by default those that need no Spark.

    Raises:
        CheckpointNotFound: there is no savepoint, or it is a retained checkpoint, which needs its job.
        DamagedRecord, UnsupportedFormat: its metadata cannot be read.
    """
    place = os.path.abspath(path) if scheme(path) is None else path.rstrip("/")
    files = without_spark(place) if storage is None else storage(place)
    if files is None:
        raise CheckpointNotFound(path, "it cannot be read without Spark; coordctl savepoint import reads it")
    # Not from the list of a job, because savepoints can be anywhere.
    catalog = Catalog(files, join(place, "no-job"), storage)
    entry = catalog.resolve(place)
    if entry.kind != "savepoint":
        raise CheckpointNotFound(path, "it is a retained checkpoint, whose files belong to its job; take a savepoint")
    return replace(savepoint_record(entry, catalog.read(entry)), imported=True)


def savepoint_record(entry: CheckpointEntry, metadata: CheckpointMetadata) -> SavepointRecord:
    """Return the record of a complete savepoint."""
    return SavepointRecord(
        path=entry.path,
        job=metadata.job,
        checkpoint=int(metadata.checkpoint),
        label=metadata.label,
        size=stored_statistics(metadata, entry.path).state_bytes,
        created_at=metadata.completed_at,
        applied_numbers={
            str(uid): operator.applied_events.get(metadata.job, 0) for uid, operator in metadata.operators.items()
        },
    )
