"""Spark without its alarms, for what is tried on purpose and may be refused.

Spark reports what it does not finish as an error, with a stack trace, in half a dozen places. A reader of the log must
not be alarmed by an attempt that has served its purpose. Only these reports are switched off, only in the driver's JVM,
and only until the attempt has ended.

Threads: any; several at a time share one switch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

__all__ = ["quiet"]

#: The loggers that report what was not finished.
_LOGGERS: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",  # before 4.1
    "org.apache.spark.sql.execution.streaming.continuous.ContinuousExecution",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.state.BatchCommitTracker",
    "org.apache.spark.util.Utils",
)

_lock: Final = threading.Lock()
_levels: dict[str, Any] = {}  # while a switch is active: of the loggers with an explicit level
_users = 0


@contextlib.contextmanager
def quiet(spark: SparkSession) -> Iterator[None]:
    """Try something inside: what Spark reports of it is not logged."""
    _enter(spark)
    try:
        yield
    finally:
        _leave(spark)


def _enter(spark: SparkSession) -> None:
    global _users
    with _lock:
        if not _users:
            log4j, _, configured = _logging(spark)
            for name in _LOGGERS:
                if configured.containsKey(name):
                    _levels[name] = configured.get(name).getLevel()
                log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
        _users += 1  # not before: a switch that failed is tried again by the next


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
            else:  # an explicit level would exempt it from Spark's own rules
                context.getConfiguration().removeLogger(name)
        context.updateLoggers()
        _levels.clear()


def _logging(spark: SparkSession) -> tuple[Any, Any, Any]:
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    return log4j, context, context.getConfiguration().getLoggers()
