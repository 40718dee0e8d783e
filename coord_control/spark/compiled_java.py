"""Java of ours in Spark's JVM: compiled by the driver with the compiler that Spark has for its own code.

There is no jar to ship, and neither the session's settings nor executors know of it. It can call the driver's Python
back through py4j, whose server for callbacks is started with it.

Threads: any; one file at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

__all__ = ["compiled"]

_lock: Final = threading.Lock()
_loaders: Final[dict[tuple[Any, Path], Any]] = {}  # by JVM and file


def compiled(spark: SparkSession, source: Path, prepare: Callable[[Any], object]) -> Any:
    """Return the class loader of a Java file in the JVM of a session.

    Args:
        prepare: called once with it, when it was compiled.
    """
    gateway: Any = spark.sparkContext._gateway
    with _lock:
        if (gateway, source) not in _loaders:
            jvm: Any = spark._jvm
            session: Any = spark._jsparkSession
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(session.getClass().getClassLoader())
            compiler.cook(source.read_text(encoding="utf-8"))
            ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
            loader = compiler.getClassLoader()
            prepare(loader)
            _loaders[gateway, source] = loader
        return _loaders[gateway, source]
