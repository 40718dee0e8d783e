"""How soon a restored job processes data: a part of :mod:`benchmarks.checkpoints`.

From the start of a process to its first committed epoch. *plain*: Spark alone resumes from a copy of the checkpoint
directory, made before. *restored*: a new job from a savepoint of that directory. Both have the large state, and one
more file to read; they take turns. The directory and the savepoint are those of :mod:`benchmarks.checkpoint_state`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks import checkpoint_queries as queries
from benchmarks.checkpoint_queries import Part
from benchmarks.report import at_most, median

__all__ = ["restores"]

_RESTORES: Final = 5
_MORE_KEYS: Final = 1_000_000  #: the first key that does not exist yet
_WAIT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.005


def restores(spark: SparkSession, root: str, quick: bool) -> Part:
    """Restores, against restarts of Spark alone."""
    count = 1 if quick else _RESTORES
    directory = queries.spark_directory(f"{root}/keys", "lineage-000001")
    epoch = max(int(commit.name) for commit in directory.glob("commits/[0-9]*")) + 1
    queries.write_keys(spark, f"{root}/rows", range(_MORE_KEYS, _MORE_KEYS + 1_000))
    savepoint = f"{root}/savepoint"
    seconds: dict[str, list[float]] = {"plain": [], "restored": []}
    for number in range(count + 1):
        for variant in ("plain", "restored")[:: -1 if number % 2 else 1]:
            folder = Path(root, f"{variant}-{number}")
            if variant == "plain":
                shutil.copytree(directory, folder)
            found = _life(variant, root, folder.name, savepoint, epoch)
            if number:  # the first round reads the programs from the disk
                seconds[variant].append(found)
    # Compared in pairs that ran one after the other, because the speed of the machine changes within minutes.
    ratios = [restored / plain for restored, plain in zip(seconds["restored"], seconds["plain"], strict=True)]
    return Part(
        [at_most("restore to the first committed epoch", median(ratios), 1.10, "x plain restart")],
        {
            "seconds": {name: [round(each, 2) for each in those] for name, those in seconds.items()},
            "ratio_of_each_pair": [round(each, 3) for each in ratios],
        },
    )


def _life(variant: str, root: str, name: str, savepoint: str, epoch: int) -> float:
    """Start a process, wait for its first epoch, and end it."""
    pattern = f"{name}/commits/{epoch}" if variant == "plain" else f"{name}/queries/query/*/spark/commits/{epoch}"
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.checkpoint_restores_driver", variant, root, name, savepoint]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not any(Path(root).glob(pattern)):
            if process.poll() is not None or time.monotonic() - began > _WAIT_SECONDS:
                process.kill()
                raise RuntimeError(f"no epoch was committed: {' '.join(command)}")
            time.sleep(_POLL_SECONDS)
        seconds = time.monotonic() - began
        process.kill()  # what it does from here on is not measured; its JVM ends with it
    return seconds
