"""One request for all attempts at it: the commands of an orchestrator's step or task, numbered under one base key.

A step may run several times: it is retried, or its worker was lost. All attempts use the same base, and find the
command of an earlier attempt: they wait for it, or take its result. A command that failed is not reused; the next
attempt makes a new request, under the next number:

    attempt 1 -> base#1   the worker is killed
    attempt 2 -> base#1   the same savepoint; it fails
    attempt 3 -> base#2   a new one

Two concurrent attempts also use the same key, and the database lets only one of them create the command.

Threads: any; calls block on the control database.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import Command
from coord_control.storage.records import CommandRecord, CommandState

__all__ = ["Asked", "ask_once", "newest_request"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A command, and whether an earlier attempt had requested it."""

    command: CommandRecord
    was_known: bool


def ask_once(
    client: ControlClient,
    job: str,
    base: str,
    command: Command[Any],
    expires_seconds: float | None = None,
    *,
    reported: Collection[str] = (),
) -> Asked:
    """Send a request, unless that of an earlier attempt is pending or has succeeded.

    Args:
        base: the common prefix of the keys of all attempts.
        expires_seconds: see :class:`~coord_control.control.client.control_client.ControlClient`.
        reported: the ids of commands whose results earlier attempts have reported: they are not reused.

    Raises:
        KeyReused: the request of the earlier attempt was a different one.
        CoordControlError: see :meth:`~coord_control.control.client.control_client.ControlClient.submit`.
    """
    key, known = _newest(client, job, base)
    if known is not None and known.is_finished and (known.state is not CommandState.COMPLETED or known.id in reported):
        key, known = _key(base, _number(known.key) + 1), None
    # Also sent if the command exists: that returns it, provided that the request is the same.
    return Asked(client.submit(job, command, key=key, expires_seconds=expires_seconds), was_known=known is not None)


def newest_request(client: ControlClient, job: str, base: str) -> CommandRecord | None:
    """Return the newest command of this base, finished or not, or None if no request was sent yet."""
    return _newest(client, job, base)[1]


def _newest(client: ControlClient, job: str, base: str) -> tuple[str, CommandRecord | None]:
    newest, number = None, 1
    while (found := client.command_of_key(job, _key(base, number))) is not None:
        newest, number = found, number + 1
    return (_key(base, 1), None) if newest is None else (newest.key, newest)


def _key(base: str, number: int) -> str:
    return f"{base}#{number}"


def _number(key: str) -> int:
    return int(key.rpartition("#")[2])
