"""A table with one folder per epoch: an epoch that runs again writes the same folder again, so each row is there once.

(There is no Delta for Spark 4.3 yet: ``tests/compat/test_kafka_delta.py`` writes a real table, on PySpark 4.2.)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

__all__ = ["rows_of", "table_into"]


def table_into(folder: Path) -> Callable[[DataFrame, int], None]:
    """Return the function for `foreachBatch`."""

    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.mode("overwrite").parquet(str(folder / f"epoch={epoch}"))

    return write


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all epochs; of an epoch that is being written there are none yet."""
    found: list[dict[str, Any]] = []
    for epoch in folder.glob("epoch=*"):
        if (epoch / "_SUCCESS").exists():
            found += [row for part in epoch.glob("*.parquet") for row in pq.read_table(part).to_pylist()]
    return found
