"""Registers a driver in the database, and tells its job from another one with the same name.

A job's row belongs to the job's folder, where its generations are claimed. If the folder was emptied or not mounted, or
a job of the same name has another root, generations start again at 1, and a higher one in the row does not mean a
newer driver. The storage decides: a higher generation claimed in our folder would have fenced us there. Such a driver
is refused: the history of the other folder says where its savepoints are.

Threads: the agent's.
"""

from __future__ import annotations

from coord_control.control.execution.driver_port import DriverPort
from coord_control.errors import DatabaseNotFound, JobNameTaken, JobNotFound, JobRootMismatch, SchemaMismatch
from coord_control.storage.records import JobRecord, JobRegistration
from coord_control.storage.store import ControlStore

__all__ = ["register"]


def register(port: DriverPort, store: ControlStore, registration: JobRegistration, *, may_create: bool) -> None:
    """Register a driver, for the first time or again.

    Args:
        may_create: whether to create a missing embedded database, and the tables of an empty one. False once the
            database has been used: if it was moved away, an empty one must not take its place.

    Raises:
        GenerationSuperseded: a newer driver of the job is running.
        JobNameTaken: a job with the same name but another folder is running; it keeps its row.
        JobRootMismatch: the row has the history of another folder, or of this one before it was emptied.
        StoreUnavailable: the storage cannot be read to decide whether this driver is the newest.
        DatabaseError: nothing was written.
    """
    row = _row(store, registration.name, may_create)
    if row is not None and row.is_alive and row.folder != registration.folder:
        raise JobNameTaken(row.name, row.folder, row.host)
    if row is not None and _is_another(port, row, registration):
        raise JobRootMismatch(row.name, registration.folder, registration.generation, row.folder, row.generation)
    store.jobs.register(registration)


def _row(store: ControlStore, name: str, may_create: bool) -> JobRecord | None:
    try:
        return store.jobs.get(name)
    except JobNotFound:
        return None
    except (DatabaseNotFound, SchemaMismatch) as error:
        is_empty = isinstance(error, DatabaseNotFound) or error.found is None
        if not (is_empty and may_create):
            raise
        return None


def _is_another(port: DriverPort, row: JobRecord, mine: JobRegistration) -> bool:
    if row.generation < mine.generation:
        return False  # also if the folder was moved: then the numbers continue
    if row.generation > mine.generation:
        return port.is_current()
    return (row.folder, row.host, row.pid) != (mine.folder, mine.host, mine.pid)
