"""A driver with an agent as a process of its own, that kills itself at one named step."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import Any, Final

from coord_control.control.commands import restore
from coord_control.exit_codes import ExitCode
from coord_control.protocol.scheduler.tickets import CheckpointRequest
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
    "restore": (restore, "restore_job"),
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


def skew_the_clock(seconds: float) -> None:
    """Let everything in this process but the database see another time."""
    delta, real, now = datetime.timedelta(seconds=seconds), datetime.datetime, time.time

    class Skewed(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.now(tz) + delta

    module = types.ModuleType("datetime")
    module.__dict__.update({**vars(datetime), "datetime": Skewed})
    time.time = lambda: now() + seconds
    for name, loaded in list(sys.modules.items()):
        if name.startswith("coord_control.") and not name.startswith("coord_control.storage"):
            for attribute, value in list(vars(loaded).items()):
                if value is datetime or value is real:
                    setattr(loaded, attribute, module if value is datetime else Skewed)


def main(root: str, database: str, step: str | None, skew_seconds: float, is_under_way: bool) -> int:
    """Run until the job has ended, and return the exit code that a supervisor would see.

    Args:
        step: ``before:`` or ``after:`` and the name of what is called then, for the first time.
        skew_seconds: sets this driver's clock forward, or back; the database keeps its own.
        is_under_way: begin a checkpoint that never becomes complete by itself.
    """
    if step:
        die_at(step)
    if skew_seconds:
        skew_the_clock(skew_seconds)
    settings = control_settings(database)
    driver = ScriptedDriver(root, is_automatic=not is_under_way)
    agent = make_agent(driver, settings, open_store(settings), is_supervised=True)
    if agent.start() is not None:
        driver.stop()
        return ExitCode.FINISHED
    driver.open_feed()
    if is_under_way:
        driver.submit(CheckpointRequest())
    while not driver.ended.wait(0.05):
        if driver.feed_status("threshold").waiting:  # type: ignore[arg-type]
            driver.run_epoch()
    return ExitCode.RESTART if driver.is_restarting else ExitCode.FINISHED
