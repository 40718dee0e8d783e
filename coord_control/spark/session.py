"""What a job asks of the Spark session that it is given."""

from __future__ import annotations

import os
import re
import sys
from typing import Final

from pyspark.sql import SparkSession

__all__ = [
    "advertised_host",
    "bind_address",
    "is_local",
    "retained_epochs",
    "storage_session",
    "use_this_interpreter",
]

# "local", "local[4]", "local[*,3]"; "local-cluster[...]" has executors in separate processes.
_LOCAL: Final = re.compile(r"local(\[.*\])?")


def is_local(master: str) -> bool:
    """Return whether tasks of this Spark master run on the driver's machine, started by the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def use_this_interpreter(spark: SparkSession) -> None:
    """Have local Python workers run the driver's interpreter, unless the user has chosen one.

    Spark takes the first python3 of the PATH; only on one machine is the driver's own the right one for sure.
    """
    if is_local(str(spark.sparkContext.master)) and "PYSPARK_PYTHON" not in os.environ:
        spark.sparkContext.pythonExec = sys.executable


def advertised_host(spark: SparkSession) -> str:
    """Return the name under which executors reach the driver."""
    return spark.sparkContext.getConf().get("spark.driver.host") or "127.0.0.1"


def bind_address(spark: SparkSession) -> str:
    """Return the local address at which Spark's driver listens."""
    return spark.sparkContext.getConf().get("spark.driver.bindAddress") or advertised_host(spark)


def retained_epochs(spark: SparkSession) -> int:
    """Return how many epochs Spark's checkpoints can be set back."""
    return int(spark.conf.get("spark.sql.streaming.minBatchesToRetain", "100") or 100)


def storage_session() -> SparkSession:
    """Return the session of this process, or a small local one: for commands that only read and write files."""
    builder = SparkSession.builder.appName("coordctl").config("spark.ui.enabled", "false")
    if SparkSession.getActiveSession() is None and "PYSPARK_SUBMIT_ARGS" not in os.environ:
        builder = builder.master("local[1]")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
