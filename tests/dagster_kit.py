"""A control database with scripted drivers on it, as Dagster's definitions see them: real agents, real storage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coord_control.control.agent.agent import Agent
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.dagster.resource import ControlPlaneResource
from coord_control.storage.store import ControlStore
from tests.agent_kit import ScriptedDriver, control_settings, make_agent, open_store
from tests.patience import eventually


@dataclass
class Plane:
    """A control database, the storage of its jobs, and whoever drives them."""

    folder: Path
    settings: ControlSettings
    cleanup: contextlib.ExitStack
    agents: list[Agent] = field(default_factory=list)

    @property
    def database(self) -> Path:
        return self.folder / "control.db"

    @property
    def root(self) -> Path:
        return self.folder / "jobs"

    @property
    def resource(self) -> ControlPlaneResource:
        return ControlPlaneResource(database=self.settings.url, retry_seconds=1.0)

    def client(self, actor: str = "ada") -> ControlClient:
        client = ControlClient(actor=actor, settings=self.settings)
        self.cleanup.callback(client.close)
        return client

    def store(self) -> ControlStore:
        store = open_store(self.settings)
        self.cleanup.callback(store.close)
        return store

    def driver(self, *, is_supervised: bool = False, **options: Any) -> ScriptedDriver:
        """A job that runs."""
        driver = ScriptedDriver(self.root, **options)
        agent = make_agent(driver, self.settings, self.store(), is_supervised=is_supervised)
        self.cleanup.callback(agent.close)
        assert agent.start() is None
        driver.open_feed()
        client = self.client()
        eventually(lambda: client.job(driver.facts.name).operators)
        return driver


@contextmanager
def plane_in(folder: Path) -> Iterator[Plane]:
    with contextlib.ExitStack() as cleanup:
        yield Plane(folder, control_settings(folder / "control.db"), cleanup)
