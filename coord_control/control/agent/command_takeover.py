"""Decides what happens to commands that an older driver had claimed but not finished.

How far that driver got is unknown. So each kind of command can either be repeated, or leaves a trace: checkpoints and
restores the command's key on the storage, events their number, and the end of a driver the mere fact that another one
is running.

| command             | what is found                                          | then                              |
| ------------------- | ------------------------------------------------------ | --------------------------------- |
| restart             | this driver is running                                 | completed                         |
| stop                | the job has ended since                                | completed                         |
|                     | it has not: the driver died                            | this job ends as well             |
| stop with savepoint | its savepoint, and the job has ended since             | completed                         |
|                     | its savepoint, and the driver died;                    |                                   |
|                     | no epoch has run since                                 | this job ends as well             |
|                     | an epoch has run since, or may have                    | again: queries that are beyond    |
|                     |                                                        | the savepoint get a new one       |
|                     | none, and the job has ended since                      | refused: the job ended otherwise  |
|                     | none, and the driver died                              | again                             |
| restore             | a restore with its key                                 | completed                         |
|                     | in place: the newest restore went to its folder, and   | completed                         |
|                     | is of a later generation                               |                                   |
|                     | neither                                                | again, to the folder found first  |
| trigger checkpoint, | (nothing is looked for here)                           | again; the storage knows the keys |
| trigger savepoint   |                                                        | of what is complete               |
| abort               |                                                        | again; a checkpoint that failed   |
|                     |                                                        | with its driver counts as aborted |
| dispose             |                                                        | again, of the folder found first; |
|                     |                                                        | if that is gone, it is done       |
| verify              |                                                        | again; it changes nothing         |
| send event          |                                                        | again; with a number it is handed |
|                     |                                                        | over, and the recorded state says |
|                     |                                                        | if it was applied, or refused     |

A job *has not ended since* if the supervisor of the driver that claimed the command has also started this driver.
Otherwise it has, if that driver or a later one ended cleanly, or if the command has expired: then the job was probably
started manually.

Times of different clocks are never compared: a restore records its key and its generation, and a command expires by the
database's clock alone.

Threads: the agent's; reads the storage.
"""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import dataclass

from coord_control.control.agent.checkpoint_commands import command_key, find_by_key, stored_result
from coord_control.control.agent.driver_port import DriverPort
from coord_control.control.agent.execution import job_closed
from coord_control.control.agent.outcomes import completed
from coord_control.control.agent.reconciliation import catalog_of
from coord_control.control.commands import (
    CheckpointResult,
    CommandKind,
    RestartResult,
    Restore,
    RestoreResult,
    StopResult,
    parse_command,
)
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, QuerySnapshot
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import recorded_lineage, spark_position
from coord_control.durable.job_folder.lineage_record import query_folder
from coord_control.durable.job_folder.restore_log import RestoreRecord, find_restore, newest_restore
from coord_control.durable.restore.prepared_restore import queries_of
from coord_control.errors import CheckpointNotFound
from coord_control.ids import Generation, QueryName
from coord_control.storage.records import CommandRecord, Outcome

__all__ = ["Again", "Stop", "decide"]


@dataclass(frozen=True, slots=True)
class Again:
    """Carry the command out as if it had just been claimed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the job, because the driver that was stopping it died before it had finished.

    Attributes:
        savepoint: the savepoint that the driver had taken before.
    """

    savepoint: CheckpointResult | None = None


def decide(port: DriverPort, command: CommandRecord, now: datetime.datetime) -> Outcome | Again | Stop:
    """Decide what to do with a command that an older driver had claimed.

    Args:
        now: the time by the clock of the database.

    Raises:
        StoreUnavailable: the storage cannot be read; try again later.
        ValidationError: the command is not a valid command of this release.
    """
    match command.kind:
        case CommandKind.RESTART:
            return completed(RestartResult(generation=port.facts.generation))
        case CommandKind.STOP:
            return completed(StopResult()) if _has_ended(port, command, now) else Stop()
        case CommandKind.STOP_WITH_SAVEPOINT:
            return _stop_with_savepoint(port, command, now)
        case CommandKind.RESTORE:
            return _restore(port, command)
        case _:
            return Again()


def _has_ended(port: DriverPort, command: CommandRecord, now: datetime.datetime) -> bool:
    assert command.generation is not None, "it was claimed"
    if port.has_same_supervisor(Generation(command.generation)):
        return False
    if command.expires_at < now:
        return True
    return any(port.was_released(Generation(each)) for each in range(command.generation, port.facts.generation))


def _stop_with_savepoint(port: DriverPort, command: CommandRecord, now: datetime.datetime) -> Outcome | Again | Stop:
    catalog = catalog_of(port)
    savepoint, metadata = None, None
    if (entry := find_by_key(catalog, command)) is not None:
        with contextlib.suppress(CheckpointNotFound):  # it was removed meanwhile
            savepoint, metadata = stored_result(catalog, entry), catalog.read(entry)
    if _has_ended(port, command, now):
        if savepoint is None:
            return job_closed(command)
        return completed(StopResult(savepoint=savepoint), savepoint.checkpoint)
    if metadata is None or not _is_last(port, metadata):
        return Again()
    return Stop(savepoint)


def _is_last(port: DriverPort, savepoint: CheckpointMetadata) -> bool:
    """Return whether nothing has run since: another driver may have run, unknown to the database, and died as well."""
    folder = port.facts.folder
    names = queries_of(port.files, folder)
    return savepoint.queries.keys() == set(names) and all(
        _is_at(port.files, query_folder(folder, name), name, savepoint.queries[name]) for name in names
    )


def _is_at(files: Files, folder: str, name: QueryName, snapshot: QuerySnapshot) -> bool:
    found = recorded_lineage(files, folder, name)
    assert found is not None, "it was just listed"
    position = spark_position(files, found[0].checkpoint)
    return found[0].name == snapshot.lineage and position == (snapshot.epoch, snapshot.planned)


def _restore(port: DriverPort, command: CommandRecord) -> Outcome | Again:
    payload = parse_command(command.kind, command.payload)
    assert isinstance(payload, Restore), "its kind is restore"
    job = payload.as_name or port.facts.name
    folder = join(port.facts.root, job)
    done = None if payload.as_name else _restored_by_others(port, command, folder)
    done = done or find_restore(port.files, folder, command_key(command))
    if done is None:
        return Again()
    return completed(RestoreResult(path=done.path, checkpoint=done.checkpoint, job=job), done.checkpoint)


def _restored_by_others(port: DriverPort, command: CommandRecord, folder: str) -> RestoreRecord | None:
    """Return the newest restore if it went where this command wanted to go, after the driver that had claimed it."""
    assert command.generation is not None, "it was claimed"
    newest, path = newest_restore(port.files, folder), (command.progress or {}).get("path")
    if newest is None or path is None or newest.generation <= command.generation:
        return None
    return newest if newest.path.rstrip("/") == str(path).rstrip("/") else None
