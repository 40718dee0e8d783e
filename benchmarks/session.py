"""The Spark session of the benchmarks: small, on loopback, without anything that would disturb a measurement."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from pyspark.sql import SparkSession

__all__ = ["session"]


@contextlib.contextmanager
def session(cores: int = 2) -> Iterator[SparkSession]:
    """A local session; ends with the block. The launcher's and Spark's own log lines stay off the terminal."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("COORD_CONTROL", "none")  # benchmarks.agent measures the control plane
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("coord-control benchmarks")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
