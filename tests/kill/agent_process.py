"""A driver with an agent as a process of its own, that kills itself at one named step.

``python -m tests.kill.agent_process ROOT DATABASE [STEP] [under-way]``: runs until the job has ended, with the exit
code that a supervisor would see. A step is ``before:`` or ``after:`` and the name of what is called then, for the first
time. With ``under-way`` it begins a checkpoint that never becomes complete by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from coord_control.control import ending
from coord_control.exit_codes import ExitCode
from coord_control.protocol.tickets import CheckpointRequest
from coord_control.storage.commands import Commands
from coord_control.storage.jobs import Jobs
from tests.agent_kit import ScriptedDriver, control_settings, make_agent, open_store

#: What can be called a step, by its name.
STEPS: Final[dict[str, tuple[Any, str]]] = {
    "claim": (Commands, "claim"),
    "adopt": (Commands, "adopt"),
    "accept": (Commands, "accept_event"),
    "progress": (Commands, "progress"),
    "finish": (Commands, "finish"),
    "ended": (Jobs, "ended"),
    "submit": (ScriptedDriver, "submit"),
    "dispose": (ScriptedDriver, "dispose"),
    "epoch": (ScriptedDriver, "run_epoch"),
    "stop": (ScriptedDriver, "stop"),
    "restore": (ending, "restore_job"),
}


def die_at(step: str) -> None:
    """Let this process be killed at a step; an empty claim is none."""
    when, _, name = step.partition(":")
    owner, attribute = STEPS[name]
    original: Callable[..., Any] = getattr(owner, attribute)

    def replaced(*args: Any, **options: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **options)
        if result != ():
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, replaced)


def main(root: str, database: str, step: str | None = None, checkpoint: str | None = None) -> int:
    if step is not None:
        die_at(step)
    settings = control_settings(database)
    driver = ScriptedDriver(root, is_automatic=checkpoint is None)
    agent = make_agent(driver, settings, open_store(settings), is_supervised=True)
    if agent.start() is not None:
        driver.stop()
        return ExitCode.FINISHED
    driver.open_feed()
    if checkpoint is not None:
        driver.submit(CheckpointRequest())
    threading.Thread(target=_parent_is_gone, daemon=True).start()
    while not driver.ended.wait(0.05):
        if driver.feed_status("threshold").waiting:  # type: ignore[arg-type]
            driver.run_epoch()
    return ExitCode.RESTART if driver.is_restarting else ExitCode.FINISHED


def _parent_is_gone() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
