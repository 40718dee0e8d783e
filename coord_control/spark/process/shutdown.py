"""Stops the jobs of a driver cleanly: a registry of their stop functions.

A job registers a function that stops it, at an epoch boundary and within a time limit, until it has ended and has
recorded the outcomes of its commands: a request in its last moments waits for that. The driver's bootstrap turns
SIGTERM, or the end of its supervisor, into one ``request_stop``; a job can ask here which of the two it was. The script
then returns from ``job.await_termination()`` and ends normally.

Threads: all functions may be called from any thread, but a signal handler may only call those that take no lock
(``has_registered``, ``is_requested``). The stop functions are called in parallel, each on its own thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from coord_control.errors import SupervisorLost

__all__ = [
    "StopFunction",
    "has_registered",
    "is_end_commanded",
    "is_requested",
    "is_restart_requested",
    "lost_supervisor",
    "register",
    "request_restart",
    "request_stop",
    "unregister",
]

StopFunction = Callable[[float], None]  #: takes the time limit in seconds

_log = logging.getLogger(__name__)


class StopRegistry:
    """The stop functions of the jobs in this process. The functions of the module use one registry per process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._functions: list[StopFunction] = []
        self._deadline: float | None = None  # set by the first request
        self._lost: SupervisorLost | None = None  # the reason of the first request
        self._wants_restart = False
        self._was_commanded = False  # a command ended a job
        self._has_stopped = False  # the request ended a job that no command was ending

    def register(self, stop: StopFunction) -> None:
        """Have ``stop(seconds)`` called when the driver must stop; at once if that was already requested.

        ``stop`` runs on its own thread. It should return when the job has stopped, after ``seconds`` at the latest.
        """
        with self._lock:
            self._functions.append(stop)
            deadline = self._deadline
        if deadline is not None:
            self._call_in_thread(stop, deadline)

    def unregister(self, stop: StopFunction, *, on_command: bool = False) -> None:
        """Remove ``stop``, because its job has ended. Do nothing if it is not registered.

        Args:
            on_command: a command (stop, restart, restore) ended the job.
        """
        with self._lock:
            if stop not in self._functions:
                return
            self._functions.remove(stop)
            if on_command:
                self._was_commanded = True
            elif self._deadline is not None:
                self._has_stopped = True

    def has_registered(self) -> bool:
        """Return whether any function is registered. Takes no lock, for signal handlers."""
        return bool(self._functions)

    def is_requested(self) -> bool:
        """Return whether a stop was requested. Takes no lock, for signal handlers."""
        return self._deadline is not None

    def request_restart(self) -> None:
        """Let the driver, when it ends without an error, ask its supervisor for a new one."""
        self._wants_restart = True

    def is_restart_requested(self) -> bool:
        """Return whether :meth:`request_restart` was called."""
        return self._wants_restart

    def is_end_commanded(self) -> bool:
        """Return whether commands, and not a stop request, ended all jobs of this process.

        If so, the command decides what happens next, as it promised its caller."""
        return self._was_commanded and not self._has_stopped and not self._functions

    def lost_supervisor(self) -> SupervisorLost | None:
        """Return the error if the driver stops because its supervisor ended, otherwise None."""
        return self._lost

    def request_stop(self, grace_seconds: float, lost: SupervisorLost | None = None) -> None:
        """Call every registered function and wait for all of them. A second request does nothing.

        Args:
            lost: the error, if the driver stops because its supervisor ended.
        """
        with self._lock:
            if self._deadline is not None:
                return
            deadline = self._deadline = self._clock() + grace_seconds
            self._lost = lost
            functions = list(self._functions)
        for thread in [self._call_in_thread(stop, deadline) for stop in functions]:
            thread.join()

    def _call_in_thread(self, stop: StopFunction, deadline: float) -> threading.Thread:
        thread = threading.Thread(target=self._call, args=(stop, deadline), name="coord-stop", daemon=True)
        thread.start()
        return thread

    def _call(self, stop: StopFunction, deadline: float) -> None:
        try:
            stop(max(0.0, deadline - self._clock()))
        except Exception:
            _log.exception("stopping failed; the driver's supervisor will kill it after the grace period")


_process: Final = StopRegistry()
register = _process.register
unregister = _process.unregister
has_registered = _process.has_registered
is_end_commanded = _process.is_end_commanded
is_requested = _process.is_requested
is_restart_requested = _process.is_restart_requested
lost_supervisor = _process.lost_supervisor
request_restart = _process.request_restart
request_stop = _process.request_stop
