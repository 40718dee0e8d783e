"""A savepoint of twenty thousand files: a part of :mod:`benchmarks.checkpoints`.

A small query runs on Spark, with HDFS-backed state, and leaves one change of one partition behind. Then there is the
directory that it would have with two hundred partitions after a hundred epochs without a snapshot: each partition needs
each of its changes. Spark is not needed to pin them; what is measured is what a job does for its savepoint, from the
claim to the written metadata.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import coord_control as cc
from benchmarks import checkpoint_queries as queries
from benchmarks.checkpoint_queries import Part
from benchmarks.memory import MIB, peak
from benchmarks.report import at_most, median
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, Trigger
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.ids import NO_CHECKPOINT, CheckpointId, Epoch, Generation, QueryName

__all__ = ["many_files"]

_PARTITIONS: Final = 200
_EPOCHS: Final = 100
_SAVEPOINTS: Final = 7
_QUERY: Final = QueryName("query")
_LINEAGE: Final = "lineage-000001"


def many_files(spark: SparkSession, root: str, quick: bool) -> Part:
    """Savepoints of a directory with many files."""
    partitions, epochs, count = (10, 20, 1) if quick else (_PARTITIONS, _EPOCHS, _SAVEPOINTS)
    directory = f"{root}/spark"
    _multiply(_small(spark, root), directory, partitions, epochs)
    files = LocalFiles()
    claim = generations.claim(files, f"{root}/job/generations", Holder.of([os.getpid()]))
    store = CheckpointStore(files, f"{root}/job", claim.generation, lambda: claim.verify("job"))
    seconds: list[float] = []

    def savepoint() -> None:
        began = time.monotonic()
        checkpoint = CheckpointId(len(seconds) + 1)
        metadata = _savepoint(store, checkpoint, claim.generation, directory, Epoch(epochs - 1))
        seconds.append(time.monotonic() - began)
        # Not removed: the file system is slower to create folders where others have just been removed.
        assert metadata.file_count >= partitions * epochs, "a change of a partition was left out"

    memory = peak(savepoint)
    for _ in range(count):
        savepoint()
    first, *rest = seconds
    numbers: dict[str, Any] = {
        "files": partitions * epochs,
        "first_seconds": round(first, 3),
        "seconds": [round(each, 3) for each in rest],
        "peak_extra_mib": None if memory is None else round(memory / MIB, 1),
    }
    return Part([at_most(f"savepoint of {partitions * epochs:,} files", median(rest), 0.6, "s")], numbers)


def _savepoint(
    store: CheckpointStore, checkpoint: CheckpointId, generation: Generation, directory: str, epoch: Epoch
) -> CheckpointMetadata:
    now = datetime.datetime.now(datetime.UTC)
    store.claim(checkpoint, "savepoint")
    pinned = store.pin(checkpoint, _QUERY, _LINEAGE, directory, epoch)
    metadata = CheckpointMetadata(
        checkpoint=checkpoint,
        kind="savepoint",
        job="job",
        generation=generation,
        barrier=NO_CHECKPOINT,
        trigger=Trigger(cause="api", requested_at=now),
        triggered_at=now,
        completed_at=datetime.datetime.now(datetime.UTC),
        queries={_QUERY: pinned.snapshot(query_id="", spark_version="", earlier=None)},
    )
    store.complete(metadata)
    return metadata


def _small(spark: SparkSession, root: str) -> Path:
    """Run a query for an epoch, and return its checkpoint directory."""
    spark.range(100).selectExpr("cast(id as string) key").write.parquet(f"{root}/small-rows")
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    with cc.Job("small", spark, root=root) as job:
        started = job.start("query", queries.keyed(spark.readStream.schema("key string").parquet(f"{root}/small-rows")))
        queries.wait_until(lambda: queries.newest_epoch(job) >= 0, started)
    if before is not None:
        spark.conf.set(provider, before)
    return queries.spark_directory(f"{root}/small", _LINEAGE)


def _multiply(small: Path, directory: str, partitions: int, epochs: int) -> None:
    shutil.copytree(small, directory)
    change = Path(small, "state/0/0/1.delta").read_bytes()
    for partition in range(partitions):
        folder = join(directory, "state/0", str(partition))
        os.makedirs(folder, exist_ok=True)
        for version in range(1, epochs + 1):
            Path(folder, f"{version}.delta").write_bytes(change)
    for log in ("offsets", "commits"):
        entry = Path(directory, log, "0").read_text()
        for epoch in (epochs - 2, epochs - 1):
            Path(directory, log, str(epoch)).write_text(_with_partitions(entry, partitions))


def _with_partitions(entry: str, partitions: int) -> str:
    """Return an entry of Spark's log (a version and JSON documents) for a query with that many partitions."""
    lines = []
    for line in entry.splitlines():
        document = json.loads(line) if line.startswith("{") else None
        if document is not None and "conf" in document:
            document["conf"]["spark.sql.shuffle.partitions"] = str(partitions)
        lines.append(line if document is None else json.dumps(document))
    return "\n".join(lines)
