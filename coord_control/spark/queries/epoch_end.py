"""The end of a query at the end of its epoch: nothing is interrupted, and no epoch is begun that is not finished.

Spark's own ``stop`` interrupts the thread of a stream wherever it is, which cuts the running batch off: a
``foreachBatch`` function in the middle of its work, or tasks whose cancellation fills the log. But between two batches
that thread asks whether the stream is still active. It is not when its state is *terminated*; so the state is set, as
``stop`` does it first, and the interrupt is left out. The stream then ends in good order.

The moment matters. Between planning a batch and giving it to the sink, the thread asks once more and interrupts itself
when the stream has been terminated. So the state is set while the thread waits for a lock that we hold, Spark's lock of
progress, which it takes three times per trigger:

```
active?  [plan]  planned, active?  sink  [commit]  [say that the trigger is over]  active?  sleep
          not here                        here      or here                                 or while it sleeps
```

A stream that sleeps until its next trigger cannot begin a batch any more and is woken by ``stop``. All of this is
tested against Spark in ``tests/spark/test_spark_facts_ending.py``.

Threads: any, but the lock is given back by the thread that has taken it, so py4j must pin threads, as it does unless
told otherwise.
"""

from __future__ import annotations

import time
from typing import Any, Final

from py4j.clientserver import ClientServer
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["end_after_epoch"]

_MICRO_BATCHES: Final = "MicroBatchExecution"  # and the one with asynchronous progress tracking
_PLANS: Final = "constructNextBatch"  # in the stack of a thread that plans
# How long the lock is held at a time. The stream passes it between two holds only if it is very quick, and then we meet
# at the end of its next epoch.
_HOLD_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.01


def end_after_epoch(query: StreamingQuery) -> bool:
    """Let the running epoch be committed and no other begin; where Spark knows no such end, stop the query at once.

    Returns:
        Whether it will end; False: its epoch does not end soon, and it is to be asked for again.

    Raises:
        Py4JError, OSError: the JVM is gone, or this Spark keeps the state of a stream elsewhere.
    """
    stream, gateway = query._jsq.streamingQuery(), SparkContext._gateway
    is_known = str(stream.getClass().getSimpleName()).endswith(_MICRO_BATCHES)
    if not (is_known and isinstance(gateway, ClientServer)):
        query.stop()
        return True
    active, terminated = _state(stream, "ACTIVE"), _state(stream, "TERMINATED")
    if stream.state().compareAndSet(_state(stream, "INITIALIZING"), terminated):
        return True  # it finds that out before its first batch
    lock, thread = stream.awaitProgressLock(), stream.queryExecutionThread()
    milliseconds = gateway.jvm.java.util.concurrent.TimeUnit.MILLISECONDS
    # Waits in turn: a thread that waited before us is served first.
    if not lock.tryLock(int(_HOLD_SECONDS * 1000), milliseconds):
        return False
    sleeps = False
    try:
        until = time.monotonic() + _HOLD_SECONDS
        while thread.isAlive():
            if lock.hasQueuedThread(thread):
                if any(_PLANS in str(frame.getMethodName()) for frame in thread.getStackTrace()):
                    return False
                stream.state().set(terminated)
                return True
            if _sleeps(query, thread):
                stream.state().set(terminated)
                if sleeps := _sleeps(query, thread):  # so it had not asked whether it is active
                    break
                stream.state().compareAndSet(terminated, active)
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
    finally:
        lock.unlock()
    if sleeps:
        query.stop()
    return True


def _state(stream: Any, name: str) -> Any:
    """Return one of Spark's states: Scala objects in the package of the current one, which is not the same
    everywhere."""
    current = stream.state().get().getClass()
    package = str(current.getName()).rpartition(".")[0]
    return current.getClassLoader().loadClass(f"{package}.{name}$").getField("MODULE$").get(None)


def _sleeps(query: StreamingQuery, thread: Any) -> bool:
    return not query.status["isTriggerActive"] and str(thread.getState()) == "TIMED_WAITING"
