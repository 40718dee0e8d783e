"""What a job asks of the Spark session that it is given."""

from __future__ import annotations

import os
import re
import sys
from typing import Final

from pyspark.sql import SparkSession

from coord_control.errors import SparkConnectUnsupported, SparkTooOld

__all__ = [
    "advertised_host",
    "bind_address",
    "can_place_rows",
    "is_local",
    "require_classic",
    "require_operators",
    "require_state_reader",
    "retained_epochs",
    "storage_session",
    "use_this_interpreter",
]

#: It has DataFrame.repartitionById, which places each row with the subtask that owns its key.
_OPERATORS: Final = (4, 1)
#: It has the data source that reads states.
_STATE_READER: Final = (4, 0)

# "local", "local[4]", "local[*,3]"; "local-cluster[...]" has executors in separate processes.
_LOCAL: Final = re.compile(r"local(\[.*\])?")


def is_local(master: str) -> bool:
    """Return whether tasks of this Spark master run on the driver's machine, started by the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def require_classic(spark: SparkSession) -> None:
    """Check that the driver has a JVM in which its queries run.

    Raises:
        SparkConnectUnsupported: it has not.
    """
    # The sessions of Spark Connect raise AttributeError, in all releases.
    if not hasattr(spark, "_jsparkSession"):
        raise SparkConnectUnsupported


def can_place_rows(version: str) -> bool:
    """Return whether this version of Spark can run operators."""
    return _release(version) >= _OPERATORS


def require_operators(uid: str, version: str) -> None:
    """Check that this version of Spark can run operators.

    Raises:
        SparkTooOld: it cannot.
    """
    if not can_place_rows(version):
        without = "start the query without it: savepoints, restores and the control plane work for plain queries"
        raise SparkTooOld(f"operator {uid!r}", _text(_OPERATORS), version, without)


def require_state_reader(version: str) -> None:
    """Check that this version of Spark can read states.

    Raises:
        SparkTooOld: it cannot.
    """
    if _release(version) < _STATE_READER:
        raise SparkTooOld("loading states", _text(_STATE_READER), version, "check the files alone")


def _release(version: str) -> tuple[int, int]:
    # Vendors append to it: 3.5.1-amzn-0.
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


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
