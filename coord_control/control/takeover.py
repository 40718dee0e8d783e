"""What becomes of the commands that an older driver had claimed, and has given no outcome.

Nobody knows how far that driver came. So each kind is made such that it can be done again, or what it has done can be
seen: checkpoints by their key on the storage, events by their number, a restore by its record, and the end of a driver
by the mere fact that another one runs.

| command               | what is seen                                        | then                      |
| --------------------- | --------------------------------------------------- | ------------------------- |
| restart               | this driver runs                                    | completed                 |
| stop                  | the old driver ended in good order, or long ago     | completed                 |
|                       | it died on the way                                  | this job ends as well     |
| stop with savepoint   | the savepoint exists, and the driver ended          | completed                 |
|                       | the savepoint exists, the driver died               | this job ends as well     |
|                       | no savepoint, and the driver ended in another way   | failed                    |
|                       | neither                                             | again                     |
| restore               | the job was restored from there since               | completed                 |
|                       | it was not                                          | again                     |
| all others            |                                                     | again, with the same key  |

Threads: the agent's; looks at the storage.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from coord_control.control.checkpointing import find_by_key, result_of_entry
from coord_control.control.commands import CommandKind, RestartResult, Restore, RestoreResult, StopResult, parse_command
from coord_control.control.execution import job_closed
from coord_control.control.outcomes import completed
from coord_control.control.port import DriverPort
from coord_control.control.reconcile import catalog_of
from coord_control.durable.checkpoint_folder import CheckpointEntry
from coord_control.durable.files import join
from coord_control.durable.restore_log import newest_restore
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

    savepoint: CheckpointEntry | None = None


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
    savepoint = find_by_key(catalog_of(port), command)
    if savepoint is not None:
        if _has_ended(port, command) or command.expires_at < now:
            return completed(StopResult(savepoint=result_of_entry(savepoint)), savepoint.checkpoint)
        return Stop(savepoint)
    return job_closed(command) if _has_ended(port, command) or command.expires_at < now else Again()


def _restore(port: DriverPort, command: CommandRecord) -> Outcome | Again:
    payload = parse_command(command.kind, command.payload)
    assert isinstance(payload, Restore), "its kind says so"
    path = (command.progress or {}).get("path")
    job = payload.as_name or port.facts.name
    newest = newest_restore(port.files, join(port.facts.root, job))
    if path is None or newest is None or newest.path.rstrip("/") != str(path).rstrip("/"):
        return Again()
    assert command.generation is not None, "it was claimed"
    # A restore from the same place, long before anybody asked for this one, is another one.
    if newest.committed_at < command.requested_at:
        return Again()
    return completed(RestoreResult(path=newest.path, checkpoint=newest.checkpoint, job=job), newest.checkpoint)
