"""What checkpoints and savepoints cost: time until they are complete, time of the query, memory, and of large states.

Everything is real: Spark, the job, the local disk; only the directory with very many files was not filled by Spark.
Each part is in a module of its own, and says there what it measures.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.checkpoint_files import many_files
from benchmarks.checkpoint_latency import idle, running, stall
from benchmarks.checkpoint_queries import Part
from benchmarks.checkpoint_restores import restores
from benchmarks.checkpoint_state import savepoints_of_keys
from benchmarks.report import Goal, main
from benchmarks.session import session

# In this order: the memory of the process is looked at before much has happened in it.
_PARTS: Final[dict[str, Callable[[SparkSession, str, bool], Part]]] = {
    "keys": savepoints_of_keys,
    "idle": idle,
    "running": running,
    "files": many_files,
    "stall": stall,
    "restores": restores,
}


def checkpoints(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Latency, stall, memory, large states and restores of checkpoints and savepoints."""
    goals: list[Goal] = []
    numbers: dict[str, Any] = {}
    with session() as spark:
        for name, part in _PARTS.items():
            with tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
                found = part(spark, root, quick)
            goals += found.goals
            numbers[name] = found.numbers
    return goals, numbers


if __name__ == "__main__":
    sys.exit(main("checkpoints", checkpoints))
