"""Waiting for an answer no longer than one can, where a code server has to answer for everything else as well.

A database that drops packets answers much later than any retry says: connecting alone takes its time.

Threads: one for each question, left behind when there is no answer in time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["within"]

_T = TypeVar("_T")


def within(seconds: float, ask: Callable[[], _T]) -> _T:
    """What ``ask`` returns, or raises.

    Raises:
        TimeoutError: there is no answer yet.
    """
    answers: queue.SimpleQueue[tuple[_T] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(),))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=run, name="coord-question", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"there was no answer within {seconds:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer[0]
