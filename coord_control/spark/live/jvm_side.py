"""Live values in Spark's JVM: the rule that replaces them by literals, and how it asks.

``LiveRule.java`` is compiled by the driver with the compiler that Spark has for its own code: there is no jar to ship,
and neither the session's settings nor executors know of it. The rule belongs to a session; its streams inherit it with
the copy of the session that they make. Values are named by functions without arguments that are registered in the
session, so they can be used in SQL text as well.

Threads: those that declare values and start queries; the JVM calls back on a thread of a stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from pyspark.sql import SparkSession

from coord_control.errors import CoordControlError, LiveModelInvalid
from coord_control.spark.compiled_java import compiled

__all__ = ["CHECK_RUN", "Question", "connect", "forget", "install", "register"]

#: What is the run of a query whose plan is only compared with its state: its values are null.
CHECK_RUN: Final = "check"

_SOURCE: Final = Path(__file__).with_name("LiveRule.java")
_RULE: Final = "coordcontrol.live.LiveRule"
_USE: Final = "coordcontrol.live.LiveRule$Use"

#: Asked with a run and an epoch; returns the texts of all values by the names of their functions.
Question: TypeAlias = Callable[[str, int], Mapping[str, str | None]]

_lock: Final = threading.Lock()
_owners: Final[dict[str, tuple[str, str]]] = {}  # of functions, in lower case: live value and field
_queries: Final[dict[str, Question]] = {}  # by Spark's id


def register(spark: SparkSession, function: str, value: str, field: str, type_name: str) -> None:
    """Register the function that stands for a field of a live value.

    Args:
        type_name: a field of ``DataTypes``.

    Raises:
        LiveModelInvalid: another live value and field have this name.
    """
    with _lock:
        if _owners.setdefault(function.lower(), (value, field)) != (value, field):
            taken = ".".join(_owners[function.lower()])
            raise LiveModelInvalid(
                value, f"field {field!r} and {taken} have the same function {function}(); rename one"
            )
    jvm: Any = spark._jvm
    loader = _loader(spark)
    use = loader.loadClass(_USE).getDeclaredConstructors()[0]
    type_: Any = getattr(jvm.org.apache.spark.sql.types.DataTypes, type_name)
    gateway: Any = spark.sparkContext._gateway
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0], arguments[1] = function, type_
    session: Any = spark._jsparkSession
    session.udf().register(function, use.newInstance(arguments), type_)
    note = next(method for method in loader.loadClass(_RULE).getMethods() if method.getName() == "noteEpochs")
    arguments[0], arguments[1] = session.sessionState().functionRegistry(), function
    note.invoke(None, arguments)
    loader.loadClass(_RULE).getField("NAMES").get(None).put(function, True)


def install(spark: SparkSession) -> None:
    """Let a session, and the streams that are started in it from now on, replace live values."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    experimental = session.experimental()
    rules = experimental.extraOptimizations()
    before = [rules.apply(index) for index in range(rules.size())]
    if any(rule.getClass().getName() == _RULE for rule in before):
        return
    rule = _loader(spark).loadClass(_RULE).getDeclaredConstructors()[0]
    gateway: Any = spark.sparkContext._gateway
    ours = rule.newInstance(gateway.new_array(jvm.java.lang.Object, 0))
    getattr(experimental, "extraOptimizations_$eq")(jvm.org.apache.spark.api.python.PythonUtils.toSeq([*before, ours]))


def connect(query_id: str, question: Question) -> None:
    """Let the epochs of a query ask for their values."""
    with _lock:
        _queries[query_id] = question


def forget(query_id: str, question: Question) -> None:
    """Let this question answer no epoch of the query any more; one that a later driver has connected stays."""
    with _lock:
        if _queries.get(query_id) is question:
            del _queries[query_id]


def _loader(spark: SparkSession) -> Any:
    return compiled(spark, _SOURCE, lambda loader: loader.loadClass(_RULE).getField("source").set(None, _Answering()))


def _form(values: Mapping[str, str | None]) -> str:
    pairs = (name if text is None else f"{name}={quote(text, safe='')}" for name, text in values.items())
    return "&".join(pairs)


class _Answering:
    """Called by the JVM through py4j, on the thread of a stream that plans an epoch."""

    def apply(self, question: str) -> str:
        query_id, run, epoch = question.split(" ")
        found = _queries.get(query_id)
        if found is None:
            return "!a live value is known only in queries that were started with job.start(), while the job runs"
        try:
            return _form(found(run, int(epoch)))
        except CoordControlError as error:
            return f"!{error}"
        except Exception as error:
            return f"!{type(error).__name__}: {error}"

    class Java:
        implements = ("java.util.function.Function",)
