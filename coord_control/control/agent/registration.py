"""Entering a driver into the database, and telling it from another job that only has the same name.

A job's row belongs to the job's folder: there the generations are claimed that the row repeats. When somebody removes
the folder and begins anew, or drives a job of the same name below another root, the numbers begin anew as well, and the
row's higher one does not mean a newer driver. The storage tells: a generation above ours that was claimed in our folder
would have fenced us there.

Threads: the agent's.
"""

from __future__ import annotations

import logging

from coord_control.control.agent.driver_port import DriverPort
from coord_control.errors import DatabaseNotFound, JobNameTaken, JobNotFound, SchemaMismatch
from coord_control.storage.records import JobRecord, JobRegistration
from coord_control.storage.store import ControlStore

__all__ = ["register"]

_log = logging.getLogger("coord_control.control")


def register(port: DriverPort, store: ControlStore, registration: JobRegistration, *, may_create: bool) -> None:
    """Enter a driver, or enter it again.

    Args:
        may_create: make an embedded database that does not exist, and the tables of an empty one. A database that was
            there a moment ago was moved away by somebody, and an empty one must not stand in its place when it comes
            back.

    Raises:
        GenerationSuperseded: a newer driver of the job runs.
        JobNameTaken: a job of the same name and another folder runs; it keeps its row.
        StoreUnavailable: the storage does not say whether we are the newest.
        DatabaseError: nothing was written.
    """
    row = _row(store, registration.name, may_create)
    if row is not None and row.is_alive and row.folder != registration.folder:
        raise JobNameTaken(row.name, row.folder, row.host)
    if row is not None and _is_another(port, row, registration):
        _log.info("= the history of an earlier job %s in %s is replaced", row.name, row.folder)
        store.jobs.forget(row.name, force=True)  # who is alive in our own folder is us, or was fenced there
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
        return False  # also when the folder was moved: then the numbers went on
    if row.generation > mine.generation:
        return port.is_current()
    return (row.folder, row.host, row.pid) != (mine.folder, mine.host, mine.pid)
