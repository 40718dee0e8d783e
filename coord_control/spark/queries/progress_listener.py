"""Spark's word that an epoch is committed, as cheaply as it can be had.

Spark posts a progress event after it has written ``commits/e`` (spark-facts 7). PySpark's own listener builds the
whole progress as Python objects, dozens of calls into the JVM for each event; this one asks for one JSON string.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

__all__ = ["ProgressListener"]

_log = logging.getLogger("coord_control.progress")


class ProgressListener:
    """Tells what Spark reports of queries, on a thread of its listener bus.

    Args:
        heard: ``heard(query id, batch id, progress)``, for every progress event.
        idle: ``idle(query id)``, for a query that has had nothing to do for a while: ten seconds, unless
            ``spark.sql.streaming.noDataProgressEventInterval`` says otherwise.

    Remove it with :meth:`close` before the driver exits: a callback into a Python that is gone fails noisily
    (spark-facts 14).
    """

    def __init__(
        self, spark: SparkSession, heard: Callable[[str, int, dict[str, Any]], None], idle: Callable[[str], None]
    ) -> None:
        context = spark.sparkContext
        gateway: Any = context._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        # The wrapper belongs to Spark; only the Python side of it is ours.
        self._listener = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(
            _JvmSide(heard, idle)
        )
        self._manager: Any = spark.streams._jsqm
        self._manager.addListener(self._listener)

    def close(self) -> None:
        try:
            self._manager.removeListener(self._listener)
        except (Py4JError, OSError) as error:
            _log.debug("x the JVM is gone and calls no listener: %s", error)


class _JvmSide:
    """Called by the JVM through py4j."""

    def __init__(self, heard: Callable[[str, int, dict[str, Any]], None], idle: Callable[[str], None]) -> None:
        self._heard = heard
        self._idle = idle

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        try:
            progress = json.loads(event.progress().json())
            self._heard(progress["id"], progress["batchId"], progress)
        except Exception:
            # The next hello implies the commit as well, so nothing is lost but time.
            _log.exception("a progress event could not be read")

    def onQueryIdle(self, event: Any) -> None:
        try:
            self._idle(str(event.id()))
        except Exception:
            _log.exception("an idle event could not be read")

    def onQueryTerminated(self, event: Any) -> None:
        pass

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
