"""Processes that begin with everything imported: forks of one server, in milliseconds where a start takes a second.

Each is a process like any other: it can be killed, and it kills itself when the test that has started it is gone.

Threads: the test's own; in the process one more.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final

from tests.patience import SECONDS

__all__ = ["Forked"]

_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.kill.agent_process", "tests.kill.chaos_driver"])


class Forked:
    """A process that runs a function, and ends with the exit code that it returns."""

    def __init__(self, main: Callable[..., int], *arguments: object) -> None:
        self._process = _SERVER.Process(target=_run, args=(main, arguments))
        self._process.start()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float = SECONDS) -> int | None:
        """Wait for its end; return the exit code, or None when it runs for longer."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        """``kill -9``."""
        self._process.kill()


def _run(main: Callable[..., int], arguments: tuple[object, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main(*arguments))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
