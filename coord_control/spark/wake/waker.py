"""Wakes subtasks without rows in one driver: it learns that events wait, and says which ones an epoch brings.

The protocol core decides both (:meth:`.JobCore.to_wake`). Nothing of what it says is written down here: Spark makes the
answer durable as the offset of an epoch, before the epoch runs.

```
core: events wait -> flag up -> Spark's next trigger asks -> core: these subtasks -> offset -> epoch
                     flag down: nothing asks, nothing is planned
```

Threads: the core's loop says that events wait; the flag is put up on a separate thread, because the JVM may take its
time; streams ask on their threads, and wait there until the answer rests on a check of the generation.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from functools import partial

from coord_control.errors import CoordControlError, Fenced, JobClosed
from coord_control.ids import OperatorUid, RunId
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.wake import wake_source
from coord_control.spark.wake.waking_rows import WakingRows

__all__ = ["Waker"]

_log = logging.getLogger("coord_control.wake")


class Waker:
    """The operators of one job that are declared with ``wake``."""

    def __init__(self) -> None:
        self._keys: dict[OperatorUid, str] = {}
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="coord-wake", daemon=True)

    def declare(self, operator: OperatorUid, parallelism: int, runtime: JobRuntime) -> WakingRows:
        """Return the rows that wake an operator."""
        key = self._keys[operator] = uuid.uuid4().hex
        wake_source.connect(key, partial(_to_wake, runtime, operator))
        if self._thread.ident is None:
            self._thread.start()
        return WakingRows(key, operator, parallelism)

    def events_wait(self, operator: OperatorUid) -> None:
        """Let the streams of an operator ask before their next epoch. Never blocks."""
        self._waiting.put(self._keys[operator])

    def close(self, timeout_seconds: float) -> None:
        """Wake nothing any more, and end the thread."""
        for key in self._keys.values():
            wake_source.forget(key)
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (key := self._waiting.get()) is not None:
            try:
                wake_source.put_up(key)
            except Exception as error:  # the JVM is gone, and with it the stream
                _log.warning("x nothing can be woken: %s", error)


def _to_wake(runtime: JobRuntime, operator: OperatorUid, run: str) -> tuple[int, ...] | None:
    try:
        return runtime.call(lambda core, now: core.to_wake(operator, RunId(run)), is_answer=True)
    except (Fenced, JobClosed):
        return ()
    except (CoordControlError, TimeoutError) as error:
        # The storage hangs or has failed; the query is about to fail for it, or works again soon.
        _log.warning("= operator %s: it is not known whom to wake: %s", operator, error)
        return None
