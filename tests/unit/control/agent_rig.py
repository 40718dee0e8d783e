"""A database, a storage and drivers of one job, for the tests of the agent."""

from __future__ import annotations

import contextlib
import shutil
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
        self.cleanup.callback(driver.release)
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
        with contextlib.closing(sqlite3.connect(self.database, timeout=SECONDS)) as database, database:
            database.execute("UPDATE commands SET expires_at = requested_at WHERE id = ?", (command,))

    @property
    def database(self) -> Path:
        """The database's file, alone in its folder."""
        return database_file(self.folder)

    def away(self) -> None:
        """There is something else where the database should be, and connections are lost."""
        (self.folder / "other" / self.database.name).mkdir(parents=True)
        self._swap(there="other", kept="away")
        for store in (self.store, *self.stores):
            store.close()

    def back(self) -> None:
        self._swap(there="away", kept="other")
        shutil.rmtree(self.folder / "other")

    def _swap(self, *, there: str, kept: str) -> None:
        # The whole folder at once: who opens a database of which some files are missing damages it.
        self.database.parent.rename(self.folder / kept)
        (self.folder / there).rename(self.database.parent)


def database_file(folder: Path) -> Path:
    return folder / "database" / "control.db"


def submit_periodic(driver: ScriptedDriver, count: int) -> None:
    for _ in range(count):
        driver.submit(CheckpointRequest(periodic=True, cause="periodic"))
