"""What becomes of the commands that an older driver had claimed, and has given no outcome.

How far that driver came is not known. So each kind is made such that it can be done again, or what it has done can be
seen: checkpoints and restores by the command's key on the storage, events by their number, and the end of a driver by
the mere fact that another one runs.

| command             | what is seen                                           | then                              |
| ------------------- | ------------------------------------------------------ | --------------------------------- |
| restart             | this driver runs                                       | completed                         |
| stop                | the old driver ended in good order, or it has expired  | completed                         |
|                     | neither: the driver died                               | this job ends as well             |
| stop with savepoint | its savepoint, and the driver ended, or it has expired | completed                         |
|                     | its savepoint, and the driver died                     | this job ends as well             |
|                     | none, and the driver ended, or it has expired          | refused: the job ended otherwise  |
|                     | none, and the driver died                              | again                             |
| restore             | a restore with its key                                 | completed                         |
|                     | in place: the newest restore went to its folder, and   | completed                         |
|                     | is of a later generation                               |                                   |
|                     | neither                                                | again, to the folder found first  |
| trigger checkpoint, | (nothing is looked for here)                           | again; the storage knows the keys |
| trigger savepoint   |                                                        | of what is complete               |
| abort               |                                                        | again; a checkpoint that failed   |
|                     |                                                        | with its driver is given up       |
| dispose             |                                                        | again, of the folder found first; |
|                     |                                                        | if that is gone, it is done       |
| verify              |                                                        | again; it changes nothing         |
| send event          |                                                        | again; with a number it is handed |
|                     |                                                        | over, and the recorded state says |
|                     |                                                        | if it was applied, or refused     |

No time of one clock is compared with a time of another one: a restore says which key it was for and which generation
made it, and a command expires by the database's clock alone.

Threads: the agent's; looks at the storage.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from coord_control.control.checkpointing import command_key, find_by_key, stored_result
from coord_control.control.commands import (
    CheckpointResult,
    CommandKind,
    RestartResult,
    Restore,
    RestoreResult,
    StopResult,
    parse_command,
)
from coord_control.control.execution import job_closed
from coord_control.control.outcomes import completed
from coord_control.control.port import DriverPort
from coord_control.control.reconcile import catalog_of
from coord_control.durable.files import join
from coord_control.durable.restore_log import RestoreRecord, find_restore, newest_restore
from coord_control.ids import Generation
from coord_control.storage.records import CommandRecord, Outcome

__all__ = ["Again", "Stop", "decide"]


@dataclass(frozen=True, slots=True)
class Again:
    """Carry it out as if it had just been claimed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The job ends: that was asked for, and the driver that was asked died on the way.

    Attributes:
        savepoint: what that driver has taken before.
    """

    savepoint: CheckpointResult | None = None


def decide(port: DriverPort, command: CommandRecord, now: datetime.datetime) -> Outcome | Again | Stop:
    """What to do with a command that an older driver had claimed.

    Args:
        now: by the clock of the database.

    Raises:
        StoreUnavailable: the storage does not tell; ask again later.
        ValidationError: the command is none that this release knows.
    """
    match command.kind:
        case CommandKind.RESTART:
            return completed(RestartResult(generation=port.facts.generation))
        case CommandKind.STOP:
            if _has_ended(port, command) or command.expires_at < now:
                return completed(StopResult())
            return Stop()
        case CommandKind.STOP_WITH_SAVEPOINT:
            return _stop_with_savepoint(port, command, now)
        case CommandKind.RESTORE:
            return _restore(port, command)
        case _:
            return Again()


def _has_ended(port: DriverPort, command: CommandRecord) -> bool:
    assert command.generation is not None, "it was claimed"
    return port.was_released(Generation(command.generation))


def _stop_with_savepoint(port: DriverPort, command: CommandRecord, now: datetime.datetime) -> Outcome | Again | Stop:
    catalog = catalog_of(port)
    entry = find_by_key(catalog, command)
    if entry is not None:
        savepoint = stored_result(catalog, entry)
        if _has_ended(port, command) or command.expires_at < now:
            return completed(StopResult(savepoint=savepoint), savepoint.checkpoint)
        return Stop(savepoint)
    return job_closed(command) if _has_ended(port, command) or command.expires_at < now else Again()


def _restore(port: DriverPort, command: CommandRecord) -> Outcome | Again:
    payload = parse_command(command.kind, command.payload)
    assert isinstance(payload, Restore), "its kind says so"
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
