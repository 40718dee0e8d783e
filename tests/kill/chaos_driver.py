"""A driver with an agent on any control database, as a process of its own."""

from __future__ import annotations

from typing import Final

from coord_control.control.settings import ControlSettings
from coord_control.exit_codes import ExitCode
from coord_control.ids import OperatorUid
from tests.agent_kit import OPERATOR, ScriptedDriver, make_agent, open_store

#: Quick enough for a test: what a client waits for is noticed soon, and a lease is over soon.
QUICK: Final = {"heartbeat_seconds": 0.2, "lease_seconds": 3.0}


def main(root: str, url: str, job: str) -> int:
    """Run epochs whenever events wait, until the driver is killed, asked to end, or fenced.

    Returns:
        The exit code that a supervisor would see.
    """
    settings = ControlSettings.load(url, **QUICK)
    driver = ScriptedDriver(root, job, waits=True)
    agent = make_agent(driver, settings, open_store(settings), is_supervised=True)
    if agent.start() is not None:
        driver.stop()
        return ExitCode.FINISHED
    driver.open_feed()
    while not driver.ended.wait(0.03):
        if driver.fenced_by is not None or not driver.is_current():
            return ExitCode.FENCED
        if driver.feed_status(OperatorUid(OPERATOR)).waiting:
            driver.run_epoch()
    return ExitCode.RESTART if driver.is_restarting else ExitCode.FINISHED
