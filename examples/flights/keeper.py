"""Runs a command, and ends it with all its child processes when the parent process ends.

``python -m examples.flights.keeper SECONDS COMMAND...`` starts a new session, runs the command in it, and reads its
standard input, a pipe. When the pipe is closed, which also happens when the parent process is killed, the command is
interrupted. After the given seconds, or as soon as it has ended, the rest of the session is killed: servers, daemons,
and the runs that they have started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the command. Never returns: it ends by killing its own session."""
    os.setsid()
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not ignored: that would be inherited by the command.
        signal.signal(number, lambda *_: ending.set())
    command = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL)
    for wait in (sys.stdin.buffer.read, command.wait):
        threading.Thread(target=_after, args=(wait, ending.set), daemon=True).start()
    ending.wait()
    if command.poll() is None:
        command.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(float(arguments[0]))
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("a process outlived SIGKILL")


def _after(wait: Callable[[], object], act: Callable[[], None]) -> None:
    wait()
    act()


if __name__ == "__main__":
    main(sys.argv[1:])
