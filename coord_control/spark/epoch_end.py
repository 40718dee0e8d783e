"""The end of a query at the end of its epoch: nothing is interrupted, and no epoch is begun that is not finished.

Spark's own ``stop`` interrupts the thread of a stream wherever it is, which cuts the running batch off: a
``foreachBatch`` function in the middle of its work, or tasks whose cancellation fills the log. But between two epochs
that thread asks whether the stream is still active. It is not when its state is *terminated*; so the state is set, as
``stop`` does it first, and the interrupt is left out. The running batch is committed, then the stream ends in good
order. A stream that sleeps until its next trigger would notice at that trigger: it may be woken by ``stop``, for it
cannot begin a batch any more (tests/spark/test_spark_facts_ending.py).

Threads: any.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["end_after_epoch", "is_asleep"]

_MICRO_BATCHES: Final = "MicroBatchExecution"  # and the one with asynchronous progress tracking
_TERMINATED: Final = "TERMINATED$"  # a Scala object beside the one that stands for the current state


def end_after_epoch(query: StreamingQuery) -> bool:
    """Let the running epoch be committed and no other begin. Returns at once.

    Returns:
        False: Spark runs no micro-batches here (continuous processing); nothing was done.

    Raises:
        Py4JError, OSError: the JVM is gone, or this Spark keeps the state of a stream elsewhere.
    """
    stream = _stream(query)
    if not str(stream.getClass().getSimpleName()).endswith(_MICRO_BATCHES):
        return False
    state = stream.state()
    current = state.get().getClass()
    package = str(current.getName()).rpartition(".")[0]  # not the same one in every Spark
    terminated = current.getClassLoader().loadClass(f"{package}.{_TERMINATED}")
    state.set(terminated.getField("MODULE$").get(None))
    return True


def is_asleep(query: StreamingQuery) -> bool:
    """Whether a query that was told to end waits for its next trigger, as far as one look can tell.

    Raises:
        Py4JError, OSError: the JVM is gone.
    """
    if query.status["isTriggerActive"]:
        return False
    return str(_stream(query).queryExecutionThread().getState()) == "TIMED_WAITING"


def _stream(query: StreamingQuery) -> Any:
    return query._jsq.streamingQuery()
