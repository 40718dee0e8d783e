"""The checks of ``coordctl doctor`` that need a running Spark.

They run as ``python -m coord_control.spark.process.doctor_checks``, in a separate process, because a Spark that cannot
start often hangs, and because the JVM's output must not mix with the report. The last line of standard output is the
result, a JSON array of checks.

Threading: none.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from coord_control.environment import EnvironmentCheck, Status, check_storage
from coord_control.spark.hadoop_files import files_for
from coord_control.spark.session import can_place_rows

__all__ = ["check_spark"]

_PARTITIONS: Final = 2
_ROWS: Final = 100


def main(argv: list[str]) -> None:
    """Start Spark and check it, and the storage root if one is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="coordctl-doctor-") as folder:
        started = time.monotonic()
        spark = _start(folder)
        try:
            checks = [check_spark(spark, started)]
            if options.root is not None:
                checks.append(check_storage(options.root, files_for(options.root, spark)))
        finally:
            spark.stop()
    print(json.dumps([{**asdict(check), "status": check.status.value} for check in checks]))


def check_spark(spark: SparkSession, started: float) -> EnvironmentCheck:
    """Run an Arrow function on partitions that the rows choose, as every operator does.

    Args:
        started: monotonic time before ``spark`` was started, for the report.
    """
    expected = f"{_ROWS} rows through mapInArrow, each in the partition that it names"
    rows = spark.range(_ROWS).selectExpr("id", f"cast(pmod(id, {_PARTITIONS}) as int) as part")
    has_operators = can_place_rows(spark.version)
    placed = rows.repartitionById(_PARTITIONS, "part") if has_operators else rows.repartition(_PARTITIONS, "part")
    result = placed.mapInArrow(_locate, "part int, seen int").collect()
    seconds = time.monotonic() - started
    found = f"Spark {spark.version} on {spark.sparkContext.master}, {seconds:.1f} s with its start"
    if len(result) == _ROWS and not has_operators:
        hint = "enough for queries without operators; install a newer PySpark for operators"
        return EnvironmentCheck("spark", Status.WARNING, found, "Spark 4.1 or newer for operators", hint)
    if len(result) == _ROWS and all(row["part"] == row["seen"] for row in result):
        return EnvironmentCheck("spark", Status.OK, found, expected)
    hint = "please report the versions of Spark and PyArrow: rows are lost or in a wrong partition"
    return EnvironmentCheck("spark", Status.FAILED, f"{found}: {len(result)} rows, {result[:3]}", expected, hint)


def _locate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    if context is None:
        raise AssertionError("Spark calls this function inside a task")
    for batch in batches:
        seen = pa.array([context.partitionId()] * batch.num_rows, pa.int32())
        yield pa.RecordBatch.from_arrays([batch.column("part"), seen], ["part", "seen"])


def _start(folder: str) -> SparkSession:
    builder = SparkSession.builder.appName("coordctl doctor")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(_PARTITIONS),
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main(sys.argv[1:])
