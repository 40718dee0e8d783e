"""The source that wakes subtasks, as Python sees it: ``WakeSource.java`` in Spark's JVM, and how that asks.

Each operator of each job has a key, which is never written down. While a flag in the JVM is down, the streams of the
operator plan no epoch for it and ask nothing; when it is up they ask who is to be woken.

Threads: any; the JVM calls back on a thread of a stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from coord_control.spark.compiled_java import compiled

__all__ = ["Question", "connect", "forget", "put_up", "rows"]

_SOURCE: Final = Path(__file__).with_name("WakeSource.java")
_CLASS: Final = "coordcontrol.wake.WakeSource"

#: Asked with a run; returns the subtasks that its next epoch has to wake, or None if that is not known now.
Question: TypeAlias = Callable[[str], tuple[int, ...] | None]

_lock: Final = threading.Lock()
_questions: Final[dict[str, Question]] = {}  # by key
_flags: Final[dict[str, Any]] = {}  # by key: the flags of the JVM that has its rows


def connect(key: str, question: Question) -> None:
    """Let the streams of an operator ask."""
    with _lock:
        _questions[key] = question


def forget(key: str) -> None:
    """Wake nothing for this operator any more."""
    with _lock:
        _questions.pop(key, None)
        _flags.pop(key, None)


def rows(session: SparkSession, key: str, operator: str, parallelism: int) -> DataFrame:
    """Return the streaming rows that wake an operator: their only column is a subtask's id plus the parallelism."""
    jvm: Any = session._jvm
    loaded = compiled(session, _SOURCE, _prepare).loadClass(_CLASS)
    gateway: Any = session.sparkContext._gateway
    arguments = gateway.new_array(jvm.java.lang.Object, 4)
    arguments[0], arguments[1], arguments[2] = session._jsparkSession, key, operator
    arguments[3] = jvm.java.lang.Long.valueOf(parallelism)
    read = next(method for method in loaded.getMethods() if method.getName() == "read")
    frame = DataFrame(read.invoke(None, arguments), session)
    flags = loaded.getField("WAITING").get(None)
    flags.put(key, True)
    with _lock:
        _flags[key] = flags
    return frame


def put_up(key: str) -> None:
    """Let the streams of an operator ask before their next epoch; without its rows nothing happens.

    Raises:
        Py4JError, OSError: the JVM is gone.
    """
    with _lock:
        flags = _flags.get(key)
    if flags is not None:
        flags.put(key, True)


def _prepare(loader: Any) -> None:
    loader.loadClass(_CLASS).getField("source").set(None, _Asked())


class _Asked:
    """Called by the JVM through py4j, on the thread of a stream that looks for something to do."""

    def apply(self, text: str) -> str:
        key, run = text.split(" ")
        with _lock:
            question = _questions.get(key)
        if question is None:
            return ""
        subtasks = question(run)
        return "?" if subtasks is None else ",".join(map(str, subtasks))

    class Java:
        implements = ("java.util.function.Function",)
