"""A driver with an agent on any control database, as a process of its own: ``python -m tests.kill.chaos_driver``.

Arguments: the root, the address of the database, the job's name. It runs epochs whenever events wait, until it is
killed, asked to end, or fenced; its exit code is what a supervisor would see.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

from coord_control.control.settings import ControlSettings
from coord_control.exit_codes import ExitCode
from coord_control.ids import OperatorUid
from tests.agent_kit import OPERATOR, ScriptedDriver, make_agent, open_store

#: Quick enough for a test: what a client waits for is noticed soon, and a lease is over soon.
QUICK: Final = {"heartbeat_seconds": 0.2, "lease_seconds": 3.0}


def main(root: str, url: str, job: str) -> int:
    settings = ControlSettings.load(url, **QUICK)
    driver = ScriptedDriver(root, job, waits=True)
    agent = make_agent(driver, settings, open_store(settings), is_supervised=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
