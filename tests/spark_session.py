"""One small Spark for all tests of a pytest process.

A JVM takes seconds to start, so one session per pytest process is shared (with pytest-xdist: one per worker). Its
master is `local[2,3]`: two task slots, three attempts per task, so that Spark's own task retries exist as on a cluster.
If the jars of connectors were fetched (scripts/connectors.py), the session has them from the start.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from scripts.connectors import ConnectorsMissing, jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKOUT: Final = Path(__file__).resolve().parents[1]

#: The sets of scripts/connectors.toml that the session has on its class path, by the release of PySpark for which
#: they are made.
SESSION_SETS: Final = {"4.1": ("iceberg",), "4.2": ("delta", "kafka"), "4.3": ("kafka", "s3a")}

FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
#: For each epoch of a query with state Spark starts 50 processes (`readlink`, `chmod`) if it writes its files with the
#: class that it takes by itself, and ten with this one. Jobs in processes of their own, jobs on other storages and
#: other releases of PySpark have the former.
_QUICK_MANAGER: Final = {
    "4.3": "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
}


def session_sets() -> tuple[str, ...]:
    """Return those sets that are made for this PySpark."""
    return SESSION_SETS.get(_release(), ())


def _release() -> str:
    return importlib.metadata.version("pyspark").rpartition(".")[0]


def table_settings(directory: Path) -> dict[str, str]:
    """Return the settings of the table format that the session has; its tables lie below a folder."""
    match session_sets():
        case ("delta", *_):
            return {
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                # Tables are small, and each of the 50 partitions of their logs would be a task.
                "spark.databricks.delta.snapshotPartitions": "2",
            }
        case ("iceberg",):
            return {
                "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.lake.type": "hadoop",
                "spark.sql.catalog.lake.warehouse": str(directory / "lake"),
            }
        case _:
            return {}


def spark_environment() -> dict[str, str]:
    """Return the environment with which Spark's Python workers run this interpreter and import this checkout."""
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def session_jars() -> str:
    """Return the value of `spark.jars`; empty when the jars were not fetched, or are not for this PySpark."""
    try:
        return ",".join(str(path) for name in session_sets() for path in jars(name))
    except ConnectorsMissing:
        return ""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session of this process; never change its settings, take `own_session` for that."""
    directory = tmp_path_factory.mktemp("spark")
    owner = os.getpid()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        session = _start(directory)
        yield session
        # A child that a test forked shares the connection to the JVM, but not the right to end it.
        if os.getpid() == owner:
            session.stop()


def _start(directory: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory} -Dderby.system.home={directory}",
        "spark.jars": session_jars(),
    }
    if manager := _QUICK_MANAGER.get(_release()):
        settings[FILE_MANAGER] = manager
    if settings["spark.jars"]:
        settings.update(table_settings(directory))
    builder = SparkSession.builder.master("local[2,3]").appName("coord_control tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
