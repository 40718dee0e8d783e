"""What a triggerer does for deferred tasks: waits for a command, or until a job has a fresh checkpoint.

Every trigger can start again in another triggerer, with the same deadline. Only a user who clears the task, or marks it
as failed or successful, cancels the command; a triggerer that is stopped or lost does not.

Threads: the event loop of the triggerer; the database is read in other threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from coord_control.airflow.cancelling import cancel
from coord_control.airflow.freshness import fresh_checkpoint
from coord_control.airflow.hook import CoordControlHook
from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.progress_lines import ProgressLines
from coord_control.errors import CoordControlError, DatabaseUnavailable

__all__ = ["CommandTrigger", "FreshnessTrigger"]

_MODULE: Final = __name__


class CommandTrigger(BaseTrigger):
    """Fires when a command has finished, or at the deadline.

    The payload names the command; the task reads its outcome, because a triggerer should not decide about a task.

    Args:
        conn_id: the connection.
        actor: who asks, for the audit trail.
        command: the id of the command.
        deadline: when to stop waiting, in seconds since the epoch.
    """

    def __init__(self, *, conn_id: str, actor: str, command: str, deadline: float) -> None:
        super().__init__()
        self.conn_id, self.actor, self.command, self.deadline = conn_id, actor, command, deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class, and its arguments."""
        names = ("conn_id", "actor", "command", "deadline")
        return f"{_MODULE}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield one event."""
        client = await self._client()
        try:
            await self._wait(client)
        finally:
            await asyncio.to_thread(client.close)
        yield TriggerEvent({"command": self.command})

    async def on_kill(self) -> None:
        """Cancel the command: a user has stopped the task."""
        client = await self._client()
        try:
            await asyncio.to_thread(cancel, client, self.command, self.log.info)
        finally:
            await asyncio.to_thread(client.close)

    async def _client(self) -> ControlClient:
        return await CoordControlHook(self.conn_id).aclient(self.actor)

    async def _wait(self, client: ControlClient) -> None:
        lines = ProgressLines(self.log.info)
        while True:
            try:
                await client.wait_async(self.command, max(self.deadline - time.time(), 0.0), on_progress=lines)
            except DatabaseUnavailable as error:
                if time.time() < self.deadline:
                    self.log.warning("%s; still waiting for command %s", error, self.command)
                    continue
            except CoordControlError:
                pass  # the task reads the outcome
            return


class FreshnessTrigger(BaseTrigger):
    """Fires when a job has a checkpoint or savepoint that is young enough.

    Args:
        conn_id: the connection.
        job: the job.
        kind: ``checkpoint``, ``savepoint``, or None for either.
        max_age_seconds: the largest age.
        poke_seconds: how often to look.
    """

    def __init__(
        self, *, conn_id: str, job: str, kind: str | None, max_age_seconds: float, poke_seconds: float
    ) -> None:
        super().__init__()
        self.conn_id, self.job, self.kind = conn_id, job, kind
        self.max_age_seconds, self.poke_seconds = max_age_seconds, poke_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class, and its arguments."""
        names = ("conn_id", "job", "kind", "max_age_seconds", "poke_seconds")
        return f"{_MODULE}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is one, and yield one event with its number, or without one if the job is unknown."""
        client = await CoordControlHook(self.conn_id).aclient()
        try:
            found = None
            while found is None:
                await asyncio.sleep(self.poke_seconds)
                try:
                    found = await asyncio.to_thread(
                        fresh_checkpoint, client, self.job, self.kind, self.max_age_seconds, self.log.info
                    )
                except DatabaseUnavailable as error:
                    self.log.warning("%s; looking again", error)
                except CoordControlError:
                    break  # the task meets the same error, and reports it
        finally:
            await asyncio.to_thread(client.close)
        yield TriggerEvent({"checkpoint": None if found is None else found.id})
