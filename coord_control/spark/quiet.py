"""A clean stop without Spark's alarms.

A query without a pause between its epochs has begun the next one when it is stopped at the end of an epoch. Nothing of
that epoch has been processed, its tasks wait; but Spark reports each task that it cancels as an error, with a stack
trace, in half a dozen places. Whoever reads the log of an ordered stop must not be alarmed by it.

Only these reports are switched off, only in the driver's JVM, and only until the cancelled tasks have ended.

Threads: any; stops of several queries at a time share one switch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

__all__ = ["quiet"]

#: Who reports a cancelled task.
_LOGGERS: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.state.BatchCommitTracker",
    "org.apache.spark.util.Utils",
)
_PATIENCE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.05

_lock: Final = threading.Lock()
_levels: dict[str, Any] = {}  # while anybody is quiet: of the loggers that have a level of their own
_users = 0


@contextlib.contextmanager
def quiet(spark: SparkSession, *, has_tasks: bool = True) -> Iterator[None]:
    """Stop a query inside: what Spark reports of its cancelled tasks is not logged.

    Args:
        has_tasks: wait for them to end; False: there are none.
    """
    _enter(spark)
    try:
        yield
        if has_tasks:
            _wait_for_tasks(spark)
    finally:
        _leave(spark)


def _enter(spark: SparkSession) -> None:
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        log4j, _, configured = _logging(spark)
        for name in _LOGGERS:
            if configured.containsKey(name):
                _levels[name] = configured.get(name).getLevel()
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def _leave(spark: SparkSession) -> None:
    global _users
    with _lock:
        _users -= 1
        if _users:
            return
        log4j, context, _ = _logging(spark)
        for name in _LOGGERS:
            if name in _levels:
                log4j.core.config.Configurator.setLevel(name, _levels[name])
            else:  # a level of its own would take it out of Spark's own rules
                context.getConfiguration().removeLogger(name)
        context.updateLoggers()
        _levels.clear()


def _logging(spark: SparkSession) -> tuple[Any, Any, Any]:
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    return log4j, context, context.getConfiguration().getLoggers()


def _wait_for_tasks(spark: SparkSession) -> None:
    # The scheduler itself, because Spark's status API hears of tasks late. Twice, because what the query has just asked
    # for is cancelled by another thread of Spark's.
    scheduler: Any = spark.sparkContext._jsc.sc().taskScheduler()
    if scheduler is None:
        return  # Spark itself is ending, on a signal that its JVM got as well
    deadline = time.monotonic() + _PATIENCE_SECONDS
    idle = 0
    while idle < 2 and time.monotonic() < deadline:
        counts = str(scheduler.runningTasksByExecutors().values().mkString(" ")).split()
        idle = 0 if any(map(int, counts)) else idle + 1
        time.sleep(_POLL_SECONDS)
