"""Java of ours in Spark's JVM: compiled by the driver with the compiler that Spark has for its own code.

There is no jar to ship, and neither the session's settings nor executors know of it. What is compiled can be called back
from Java through py4j, because the server for callbacks is started with it.

Threads: any; one compilation at a time.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

__all__ = ["compiled"]

_lock: Final = threading.Lock()
_loaders: Final[dict[tuple[Any, Path], Any]] = {}  # by JVM and source


def compiled(spark: SparkSession, source: Path) -> tuple[Any, bool]:
    """Return the class loader of a Java file in a session's JVM, and whether it was compiled just now."""
    gateway: Any = spark.sparkContext._gateway
    with _lock:
        is_new = (gateway, source) not in _loaders
        if is_new:
            jvm: Any = spark._jvm
            session: Any = spark._jsparkSession
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(session.getClass().getClassLoader())
            compiler.cook(source.read_text(encoding="utf-8"))
            ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
            _loaders[gateway, source] = compiler.getClassLoader()
        return _loaders[gateway, source], is_new
