"""A small, silent, embedded Spark: two cores, loopback only, its log in a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

__all__ = ["spark_session"]

_CHECKOUT = Path(__file__).resolve().parents[2]


@contextmanager
def spark_session(work: Path, attempts_per_task: int) -> Iterator[SparkSession]:
    """Start a session and stop it afterwards; Spark's log is ``spark.log`` in ``work``."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "scratch"),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    # Python workers inherit the JVM's environment: they must run this interpreter and import this checkout.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.master(f"local[2,{attempts_per_task}]").appName("flights")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _output_to(work / "spark.log"):
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        # After a signal to the whole process group the JVM has already ended.
        with contextlib.suppress(Py4JError, OSError):
            spark.stop()


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    # The JVM keeps the standard output and error that it inherits; ours are restored afterwards.
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in (1, 2)]
    with path.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
