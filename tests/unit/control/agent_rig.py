"""A database, a storage and drivers of one job, for the tests of the agent."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coord_control.control.agent.agent import Agent
from coord_control.control.settings import ControlSettings
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.storage.records import CommandKind, CommandRecord
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.agent_kit import OPERATOR, ScriptedDriver, make_agent, open_store
from tests.patience import SECONDS, eventually


@dataclass
class AgentRig:
    """A database, a storage, and drivers."""

    folder: Path
    settings: ControlSettings
    store: ControlStore
    cleanup: contextlib.ExitStack
    stores: list[ControlStore] = field(default_factory=list)

    def driver(
        self, *, is_supervised: bool = False, is_ready_to_start: bool = True, **options: Any
    ) -> tuple[ScriptedDriver, Agent]:
        driver = ScriptedDriver(self.folder / "jobs", **options)
        store = open_store(self.settings)
        self.stores.append(store)
        agent = make_agent(driver, self.settings, store, is_supervised=is_supervised)
        if is_ready_to_start:
            self.start(driver, agent)
        return driver, agent

    def start(self, driver: ScriptedDriver, agent: Agent) -> None:
        self.cleanup.callback(agent.close)
        assert agent.start() is None
        driver.open_feed()

    def ask(self, kind: CommandKind, **payload: Any) -> str:
        request = records.request(
            kind, operator=payload.get("operator"), payload=payload, requested_from="here", expires_seconds=SECONDS
        )
        return self.store.commands.submit(request).id

    def send(self, minutes: object, operator: str = OPERATOR, event_type: str = "Threshold") -> str:
        event = {"event_type": event_type, "payload": {"minutes": minutes}, "subtask": None}
        return self.ask(CommandKind.SEND_EVENT, operator=operator, **event)

    def outcome(self, command: str) -> CommandRecord:
        eventually(lambda: self.store.commands.get(command).is_finished)
        return self.store.commands.get(command)

    def expire(self, command: str) -> None:
        """Let the time of a command be over, as if it had been requested long ago."""
        with contextlib.closing(sqlite3.connect(self.folder / "control.db", timeout=SECONDS)) as database, database:
            database.execute("UPDATE commands SET expires_at = requested_at WHERE id = ?", (command,))

    def away(self) -> None:
        """There is something else where the database should be, and connections are lost."""
        for path in self.folder.glob("control.db*"):
            path.rename(path.with_name(f"away-{path.name}"))
        (self.folder / "control.db").mkdir()
        for store in (self.store, *self.stores):
            store.close()

    def back(self) -> None:
        (self.folder / "control.db").rmdir()
        for path in self.folder.glob("away-control.db*"):
            path.rename(path.with_name(path.name.removeprefix("away-")))


def submit_periodic(driver: ScriptedDriver, count: int) -> None:
    for _ in range(count):
        driver.submit(CheckpointRequest(periodic=True, cause="periodic"))
