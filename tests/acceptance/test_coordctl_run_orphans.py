"""A driver whose supervisor (`coordctl run`) is killed stops by itself, whatever became of its terminal."""

from __future__ import annotations

import contextlib

import psutil

from tests.acceptance.conftest import STOPPABLE, STUBBORN, Run, Write, await_line

# Stops when it is asked to, and takes until its supervisor has been killed.
_SLOW_TO_STOP = """
    import os, sys, threading, time
    from coord_control.spark.process import shutdown
    supervisor, stopped = os.getppid(), threading.Event()
    def stop(seconds):
        print("stopping", flush=True)
        while os.getppid() == supervisor:
            time.sleep(0.01)
        time.sleep(0.5)  # for the end of the lifeline
        stopped.set()
    shutdown.register(stop)
    print("ready", flush=True)
    stopped.wait()
    shutdown.unregister(stop)
    print("stopped cleanly", shutdown.lost_supervisor(), flush=True)
"""

# Before a script: its standard error takes nothing more, as at a terminal that was paused.
_FULL = """
    import contextlib, os
    os.set_blocking(2, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(2, b"x")
    os.set_blocking(2, True)
"""


def _kill(driver: psutil.Process) -> None:
    """Kill what a failed test would leave behind."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in (*driver.children(recursive=True), driver):
            each.kill()


def test_the_driver_stops_cleanly_when_its_supervisor_is_killed(script: Write, start: Run) -> None:
    process = start(script(STOPPABLE), options=["--grace", "1h"])
    await_line(process, "ready")
    process.kill()
    out, err = process.communicate()  # returns when the driver, too, has closed its output: when it is gone

    assert "stopped cleanly the supervisor (coordctl run) was killed or crashed" in out
    assert "the supervisor is gone: stopping" in err


def test_a_stop_that_was_requested_stays_one_when_the_supervisor_is_killed_meanwhile(script: Write, start: Run) -> None:
    process = start(script(_SLOW_TO_STOP), options=["--grace", "1h"])
    await_line(process, "ready")
    process.terminate()
    await_line(process, "stopping")
    process.kill()
    out, _ = process.communicate()

    assert out.splitlines()[-1] == "stopped cleanly None"


def test_a_driver_that_does_not_stop_ends_itself_when_its_supervisor_is_killed(script: Write, start: Run) -> None:
    process = start(script(STUBBORN), options=["--grace", "200ms"])
    await_line(process, "ready")
    process.kill()
    out, _ = process.communicate()

    assert out == ""


def test_a_driver_stops_when_its_supervisor_and_its_terminal_are_gone(script: Write, start: Run) -> None:
    """Bug: to say so failed, and the driver ran on without a supervisor."""
    process = start(script(STOPPABLE), options=["--grace", "1h"])
    await_line(process, "ready")
    [driver] = psutil.Process(process.pid).children()
    assert process.stderr is not None
    process.stderr.close()
    process.kill()
    try:
        driver.wait(300.0)
    finally:
        _kill(driver)
    assert process.stdout is not None
    assert "stopped cleanly the supervisor (coordctl run) was killed or crashed" in process.stdout.read()


def test_a_driver_is_killed_after_its_supervisor_although_its_output_is_not_read(script: Write, start: Run) -> None:
    """Bug: to say that the supervisor is gone waited for the reader, and the driver ran on."""
    process = start(script(_FULL + STUBBORN), options=["--grace", "200ms"])
    await_line(process, "ready")
    [driver] = psutil.Process(process.pid).children()
    process.kill()
    try:
        driver.wait(300.0)
    finally:
        _kill(driver)
