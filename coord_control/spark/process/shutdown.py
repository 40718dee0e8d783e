"""Stopping a driver cleanly: who has to be told, and the one request that tells them.

A job registers how to stop it (at an epoch boundary, within a time) until it has ended, outcomes of commands included:
a request in its last moments waits for them. The driver's bootstrap turns SIGTERM, or the end
of its supervisor, into one ``request_stop``, and a job finds out here which of the two it was. The script then goes on
after its ``job.await_termination()`` and ends by itself.

Threading: all functions may be called from any thread, but inside a signal handler only those that take no lock
(``has_registered``, ``is_requested``); the stop functions are called at the same time, each on a thread of its own.
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

StopFunction = Callable[[float], None]  #: takes the seconds that it may use

_log = logging.getLogger(__name__)


class StopRegistry:
    """The functions that stop what runs in this process. The module's functions use the one of the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._functions: list[StopFunction] = []
        self._deadline: float | None = None  # set by the first request
        self._lost: SupervisorLost | None = None  # what the first request was for
        self._wants_restart = False
        self._was_commanded = False  # a command has ended a job
        self._has_stopped = False  # the request has ended a job, and no command had asked for its end

    def register(self, stop: StopFunction) -> None:
        """Have ``stop(seconds)`` called when the driver shall stop; at once, when that was requested already.

        ``stop`` runs on a thread of its own. It should return when the job has stopped, at the latest after the
        seconds it is given.
        """
        with self._lock:
            self._functions.append(stop)
            deadline = self._deadline
        if deadline is not None:
            self._call_in_thread(stop, deadline)

    def unregister(self, stop: StopFunction, *, on_command: bool = False) -> None:
        """Forget ``stop``: what it would stop has ended. Nothing happens when it is not registered.

        Args:
            on_command: a command (stop, restart, restore) has ended it.
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
        """Say whether anything is registered. Takes no lock, so that a signal handler may ask."""
        return bool(self._functions)

    def is_requested(self) -> bool:
        """Say whether a stop was requested. Takes no lock, so that a signal handler may ask."""
        return self._deadline is not None

    def request_restart(self) -> None:
        """Let the driver, when it has ended in good order, ask its supervisor for a new one."""
        self._wants_restart = True

    def is_restart_requested(self) -> bool:
        """Say whether that was requested."""
        return self._wants_restart

    def is_end_commanded(self) -> bool:
        """Say whether a command has ended the jobs of this process, and a request has cut nothing short.

        Then the command says what comes next: that was promised to whoever asked, and the request changes nothing."""
        return self._was_commanded and not self._has_stopped and not self._functions

    def lost_supervisor(self) -> SupervisorLost | None:
        """Return why the driver stops if the end of its supervisor is the reason, None otherwise."""
        return self._lost

    def request_stop(self, grace_seconds: float, lost: SupervisorLost | None = None) -> None:
        """Call every registered function and wait for all of them. A second request does nothing.

        Args:
            lost: the end of the supervisor, if that is why the driver must stop.
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
