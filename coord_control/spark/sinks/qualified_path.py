"""Paths of sinks as Hadoop resolves them: with scheme, and from the root.

Threads: any.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

__all__ = ["qualified"]


def qualified(spark: SparkSession, path: Any) -> str:
    """Return a Hadoop ``Path`` of the JVM with its scheme; a relative one begins in the driver's working directory."""
    session: Any = spark
    configuration = session._jsparkSession.sessionState().newHadoopConf()
    return str(path.getFileSystem(configuration).makeQualified(path).toString())
