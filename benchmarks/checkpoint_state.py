"""Savepoints of a million keys of a hundred bytes in RocksDB: a part of :mod:`benchmarks.checkpoints`.

*linked*: on the storage of the job, where files get a second name. *copied*: to another file system (in memory, where
there is one, so that no disk is measured), in turns with ``cp -r`` of the same files. Each time from the trigger to the
completed savepoint; the query is idle. *memory*: the most that the driver's Python process had during the first
savepoints, above what it had before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import coord_control as cc
from benchmarks import checkpoint_queries as queries
from benchmarks.checkpoint_queries import Part
from benchmarks.memory import MIB, peak
from benchmarks.report import at_most, median

__all__ = ["savepoints_of_keys"]

_KEYS: Final = 1_000_000
_SAVEPOINTS: Final = 11
_COPIES: Final = 9
_WAIT_SECONDS: Final = 120.0


def savepoints_of_keys(spark: SparkSession, root: str, quick: bool) -> Part:
    """Savepoints of a large state."""
    keys, count, copies = (10_000, 2, 1) if quick else (_KEYS, _SAVEPOINTS, _COPIES)
    queries.use_rocksdb(spark)
    with cc.Job("keys", spark, root=root) as job, _other_file_system(root) as other:
        queries.start_keys(spark, job, f"{root}/rows", keys)

        def savepoint(target: str | None = None) -> tuple[float, str]:
            began = time.monotonic()
            completed = job.trigger_savepoint(target=target).wait(_WAIT_SECONDS)
            return time.monotonic() - began, completed.path

        memory = {"linked": peak(savepoint)}
        linked = [savepoint() for _ in range(count)]
        folder = linked[0][1]
        goals = [at_most("savepoint with links", median([seconds for seconds, _ in linked]), 0.15, "s")]
        numbers: dict[str, Any] = {"keys": keys, "key_bytes": queries.KEY_BYTES, **_size(folder)}
        numbers["linked_seconds"] = [round(seconds, 3) for seconds, _ in linked]
        if other is None:
            numbers["copied"] = "not measured: there is no second file system to write to"
        else:
            memory["copied"] = peak(lambda: savepoint(f"{other}/first"))
            copied, plain = _in_turns(lambda target: savepoint(target)[0], folder, other, copies)
            goals.append(at_most("copied savepoint", median(copied) / median(plain), 1.2, "x cp -r"))
            numbers["copied_seconds"] = [round(seconds, 3) for seconds in copied]
            numbers["cp_seconds"] = [round(seconds, 3) for seconds in plain]
            numbers["copied_to"] = other
        savepoint(f"{root}/savepoint")  # for the restores
    extra = {name: round(most / MIB, 1) for name, most in memory.items() if most is not None}
    if extra:
        goals.append(at_most("peak extra memory of the driver", max(extra.values()), 100, "MiB"))
    return Part(goals, {**numbers, "peak_extra_mib": extra})


def _in_turns(
    savepoint: Callable[[str], float], folder: str, other: str, count: int
) -> tuple[list[float], list[float]]:
    copied, plain = [], []
    for number in range(count + 1):
        target, by_cp = f"{other}/savepoint", f"{other}/cp"
        seconds = savepoint(target)
        began = time.monotonic()
        subprocess.run(["cp", "-r", f"{folder}/queries", by_cp], check=True)
        if number:  # the first round has the pages of the files read from the disk
            copied.append(seconds)
            plain.append(time.monotonic() - began)
        for made in (target, by_cp):
            shutil.rmtree(made)
    return copied, plain


@contextlib.contextmanager
def _other_file_system(root: str) -> Iterator[str | None]:
    """A folder on a file system that files of this one cannot be linked to."""
    device = os.stat(root).st_dev
    for folder in ("/dev/shm", tempfile.gettempdir(), os.path.expanduser("~"), os.getcwd()):
        if os.access(folder, os.W_OK) and os.stat(folder).st_dev != device:
            with tempfile.TemporaryDirectory(prefix="coord-bench-", dir=folder) as other:
                yield other
            return
    yield None


def _size(folder: str) -> dict[str, int]:
    files = [path for path in Path(folder, "queries").rglob("*") if path.is_file()]
    return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}
