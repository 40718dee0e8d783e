"""The cost of checkpoints and savepoints: time until they are complete, time of the query, memory, and large states.

Everything is real: Spark, the job, the local disk; only the directory with very many files was not filled by Spark.
Each part has its own module, which documents what it measures. They share one Spark session and one folder: *restores*
starts with what *keys* leaves behind.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.checkpoint_files import many_files
from benchmarks.checkpoint_latency import idle, running, stall
from benchmarks.checkpoint_queries import Part
from benchmarks.checkpoint_restores import restores
from benchmarks.checkpoint_state import savepoints_of_keys
from benchmarks.report import Goal, at_most, main
from benchmarks.session import session

# In this order, so that the memory of the process is measured before much has happened in it, and a running job's
# checkpoints when its query's code has been compiled, as it is in a long-running job.
_PARTS: Final[dict[str, Callable[[SparkSession, str, bool], Part]]] = {
    "keys": savepoints_of_keys,
    "restores": restores,
    "idle": idle,
    "files": many_files,
    "stall": stall,
    "running": running,
}
_MOST_SECONDS: Final = 300.0  #: parts that take longer are not run


def checkpoints(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Latency, stall, memory, large states and restores of checkpoints and savepoints."""
    goals: list[Goal] = []
    numbers: dict[str, Any] = {}
    began = time.monotonic()
    with session() as spark, tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
        for name, part in _PARTS.items():
            part_began = time.monotonic()
            found = part(spark, root, quick)
            goals += found.goals
            numbers[name] = {**found.numbers, "part_seconds": round(time.monotonic() - part_began, 1)}
    return [*goals, at_most("all of it", time.monotonic() - began, _MOST_SECONDS, "s")], numbers


if __name__ == "__main__":
    sys.exit(main("checkpoints", checkpoints))
