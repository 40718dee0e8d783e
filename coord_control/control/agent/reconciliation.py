"""Making the history agree with the storage: what is there is the truth, whatever was lost on the way to the database.

At the start of a driver, and after each time the database was away:

* every complete checkpoint and savepoint on the storage is complete in the history, with its stored statistics,
  unless those cannot be read: nothing is restored by the history, so one damaged state keeps no job out of it;
* one that the history calls complete and that the storage does not have any more was discarded;
* one that an older driver had begun and that is not complete has failed with it: nobody will complete it.

Threads: the caller's; reads the storage, which may take a while on a remote one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from coord_control.control.agent.driver_port import DriverPort
from coord_control.control.agent.driver_records import checkpoint_record, savepoint_record, subtask_records
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointState as StoredState
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.errors import CheckpointNotFound, DamagedRecord, UnsupportedFormat
from coord_control.storage.records import CheckpointRecord, CheckpointState
from coord_control.storage.store import ControlStore

__all__ = ["catalog_of", "reconcile"]

_log = logging.getLogger("coord_control.control")

_PAGE: Final = 500
_REASON: Final = "driver_ended"


def catalog_of(port: DriverPort) -> Catalog:
    """The checkpoints of the port's job on its storage."""
    return Catalog(port.files, port.facts.folder, port.storage)


def reconcile(port: DriverPort, store: ControlStore) -> None:
    """Make the history of the port's job agree with its storage.

    Raises:
        StoreUnavailable: the storage; what was done stays done, and the rest is done the next time.
        DatabaseError: the database, likewise.
    """
    job, generation = port.facts.name, port.facts.generation
    catalog = catalog_of(port)
    # The history first: what becomes complete between the two looks is on the storage, and is not called discarded.
    known = {record.id for record in _all(store, job, CheckpointState.COMPLETED)}
    unfinished = list(_all(store, job, CheckpointState.IN_PROGRESS))
    stored = {int(entry.checkpoint): entry for entry in catalog.entries()}
    for checkpoint, entry in stored.items():
        if entry.is_completed and checkpoint not in known:
            _complete(catalog, store, job, entry)
    gone = [checkpoint for checkpoint in known if not _is_kept(stored.get(checkpoint))]
    if gone:
        store.checkpoints.discarded(job, gone)
    for record in unfinished:
        entry_of = stored.get(record.id)
        if (record.generation or 0) < generation and not (entry_of is not None and entry_of.is_completed):
            store.checkpoints.save(job, _failed(record), ())


def _is_kept(entry: CheckpointEntry | None) -> bool:
    # A savepoint that cannot be found may have been moved, or its storage is away; nobody has disposed of it.
    return entry is not None and entry.state in (StoredState.COMPLETED, StoredState.MISSING, StoredState.DAMAGED)


def _complete(catalog: Catalog, store: ControlStore, job: str, entry: CheckpointEntry) -> None:
    try:
        metadata = catalog.read(entry)
        statistics = stored_statistics(metadata, entry.path)
    except CheckpointNotFound:
        return  # retention has removed it meanwhile
    except (DamagedRecord, UnsupportedFormat) as error:
        _log.warning("= job %s: the history lacks checkpoint %s: %s", job, entry.checkpoint, error)
        return
    record = checkpoint_record(job, metadata.generation, statistics)
    store.checkpoints.save(job, record, subtask_records(statistics))
    if (savepoint := savepoint_record(record)) is not None:
        store.savepoints.save(savepoint)


def _failed(record: CheckpointRecord) -> CheckpointRecord:
    message = f"the driver of generation {record.generation} ended before it was complete"
    return replace(record, state=CheckpointState.FAILED, reason=_REASON, message=message)


def _all(store: ControlStore, job: str, state: CheckpointState) -> Iterator[CheckpointRecord]:
    before: int | None = None
    while page := store.checkpoints.list(job, state=state, limit=_PAGE, before_id=before):
        yield from page
        before = page[-1].id
