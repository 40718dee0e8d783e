"""A hard time limit for database queries in the code server, which must stay responsive.

A database that drops packets can block for much longer than the retry settings allow, because connecting alone takes
long.

Threads: one for each call, abandoned if there is no answer in time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["within"]

_T = TypeVar("_T")


def within(seconds: float, ask: Callable[[], _T]) -> _T:
    """Call ``ask``, and return what it returns or raise what it raises.

    Raises:
        TimeoutError: there is no answer within ``seconds``.
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
