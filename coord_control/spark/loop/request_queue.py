"""The requests from outside that wait for one operator's coordinator.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

from pydantic import JsonValue

from coord_control.coordinators.requests import Request
from coord_control.errors import CoordControlError, NotAnswered, RequestFailed, UserDataError
from coord_control.ids import OperatorUid

__all__ = ["MAX_WAITING", "RequestQueue", "failure_of"]

_log = logging.getLogger("coord_control.coordinators")

#: Requests that may wait for one operator, for example while its query is being restarted.
MAX_WAITING: Final = 100


class RequestQueue:
    """The requests that wait, in order."""

    def __init__(self, operator: OperatorUid) -> None:
        self._operator = operator
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Request[Any], Future[JsonValue]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: Request[Any]) -> Future[JsonValue]:
        """Let a request wait; the future is its answer.

        Raises:
            NotAnswered: too many wait already.
        """
        future: Future[JsonValue] = Future()
        with self._lock:
            self._waiting = deque(each for each in self._waiting if not each[1].cancelled())
            if len(self._waiting) >= MAX_WAITING:
                raise NotAnswered(self._operator, f"{MAX_WAITING} requests wait for its coordinator")
            self._waiting.append((request, future))
        return future

    def take(self) -> tuple[Request[Any], Future[JsonValue]] | None:
        """Take the first request that was not withdrawn; from here on it cannot be."""
        with self._lock:
            while self._waiting:
                request, future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    return request, future
        return None


def failure_of(operator: OperatorUid, request: Request[Any], error: BaseException) -> CoordControlError:
    """Return the error that the sender of a request gets when its coordinator raised."""
    if isinstance(error, UserDataError):
        return error
    trace = "".join(traceback.format_exception(error))
    _log.warning("= operator %r did not answer the request %s:\n%s", operator, type(request).__name__, trace)
    return RequestFailed(operator, type(request).__name__, trace)
