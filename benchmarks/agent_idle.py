"""A process with one agent whose job has nothing to do: ``python -m benchmarks.agent_idle FOLDER URL``."""

from __future__ import annotations

import sys

from coord_control.control.agent.agent import Agent
from coord_control.control.settings import ControlSettings
from coord_control.storage.database import Database
from coord_control.storage.store import ControlStore
from tests.agent_kit import ScriptedDriver


def main(folder: str, url: str) -> None:
    """Print a line when the agent is ready, and run until standard input ends."""
    driver = ScriptedDriver(folder)
    agent = Agent(driver, ControlStore(Database(url, application="benchmark idle")), ControlSettings.load(url))
    agent.start()
    driver.open_feed()
    print("ready", flush=True)
    sys.stdin.read()
    agent.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
