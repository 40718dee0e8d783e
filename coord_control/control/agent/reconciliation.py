"""Makes the history agree with the storage, which is the source of truth if records were lost.

At the start of a driver, and after each outage of the database:

* every complete checkpoint and savepoint on the storage is marked complete in the history, with its stored statistics,
  unless those cannot be read (nothing is restored from the history, so one damaged state must not block the job);
* a checkpoint that is complete in the history but no longer on the storage is marked discarded;
* an incomplete checkpoint of an older driver is marked failed, because no driver will complete it.

Threads: the caller's; reads the storage, which may take a while if it is remote.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from coord_control.control.agent.driver_records import checkpoint_record, savepoint_record
from coord_control.control.execution.checkpoint_execution import catalog_of
from coord_control.control.execution.driver_port import DriverPort
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry, StoredState
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.errors import CheckpointNotFound, DamagedRecord, UnsupportedFormat
from coord_control.storage.records import CheckpointRecord, CheckpointState
from coord_control.storage.store import ControlStore

__all__ = ["reconcile"]

_log = logging.getLogger("coord_control.control")

_PAGE: Final = 500
_REASON: Final = "driver_ended"


def reconcile(port: DriverPort, store: ControlStore) -> None:
    """Make the history of the port's job agree with its storage.

    Raises:
        StoreUnavailable: the storage cannot be read; the rest is done the next time.
        DatabaseError: the database cannot be used; the rest is done the next time.
    """
    job, generation = port.facts.name, port.facts.generation
    catalog = catalog_of(port)
    # Read the history first, so that a checkpoint that completes meanwhile is on the storage and not marked discarded.
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
            store.checkpoints.save(job, _failed(record))


def _is_kept(entry: CheckpointEntry | None) -> bool:
    # A missing savepoint may have been moved, or its storage may be unavailable: it was not necessarily removed.
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
    store.checkpoints.save(job, record)
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
