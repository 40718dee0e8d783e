"""Streams, probes and checkpoint directories for tests on real Spark.

Spark decides by itself how often it calls a Python function, in which process, and in which order. A test that
wants to know has to be told from inside: a `Probe` puts a pass-through `mapInArrow` function into a plan and
leaves one small file for each call. A `FileStream` is a source with exactly one batch per added file, so a test can
name the epoch in which a row is read.

Everything here runs on the test's own thread, except the functions of a `Probe`: they run in Spark's Python workers,
which import this module from the checkout.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.patience import SECONDS

__all__ = [
    "MARKER_PROPERTY",
    "Call",
    "FileStream",
    "Probe",
    "Transform",
    "batch_ids",
    "drain",
    "forget",
    "query_id",
    "write_query_id",
]

# What mapInArrow takes.
Transform = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# A local property that a test may set on its own thread, to see where it arrives.
MARKER_PROPERTY: Final = "coord_control.tests.marker"


class FileStream:
    """A streaming source with one micro-batch per added file, in the order of the calls of `add`."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str, file_format: str) -> None:
        self._spark = spark
        self._directory = directory
        self._schema = schema
        self._format = file_format
        self._count = 0
        # Spark orders files by modification time; files written within one tick of its clock would have no order.
        self._first_mtime = time.time() - 86_400
        directory.mkdir(parents=True)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Add one file.

        Args:
            rows: the rows of one batch; at least one for JSON and Parquet alike.

        Returns:
            The number of files before this one: the epoch, if the stream is its query's only source.
        """
        index = self._count
        self._count += 1
        hidden = self._directory / f".{index:05}"
        if self._format == "parquet":
            pq.write_table(pa.Table.from_pylist(list(rows)), hidden)
        else:
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (self._first_mtime + index, self._first_mtime + index))
        hidden.rename(self._directory / f"{index:05}.{self._format}")
        return index

    def read(self, session: SparkSession | None = None) -> DataFrame:
        """Give a new streaming DataFrame over all files, one file per micro-batch.

        Args:
            session: reads in another session than the one the stream was made with.
        """
        reader = (session or self._spark).readStream.format(self._format).schema(self._schema)
        return reader.option("maxFilesPerTrigger", 1).load(str(self._directory))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a probe's function, as the Python worker saw it."""

    name: str
    epoch: int | None
    query_id: str | None
    job_group: str | None
    marker: str | None
    stage: int
    partition: int
    attempt: int
    task_attempt: int
    pid: int
    parent_pid: int
    rows: int = 0
    values: tuple[int, ...] = ()  # distinct values of the probe's column, ascending
    exhausted: bool = False  # the input was read to its end


class Probe:
    """Records every call of the functions it hands out; give one directory to each probe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def through(self, frame: DataFrame, name: str = "probe", column: str | None = None) -> DataFrame:
        """Put a recording pass-through on top of `frame`.

        Args:
            frame: any DataFrame; its schema is kept.
            name: tells several probes of one plan apart; also the name of the function in Spark's plan.
            column: an integer column whose distinct values are recorded.
        """
        return frame.mapInArrow(self.function(name, column), frame.schema)

    def function(self, name: str = "probe", column: str | None = None) -> Transform:
        """Make the recording pass-through function alone."""

        def record(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self._record(name, column, batches)

        record.__name__ = name
        return record

    def calls(self, name: str | None = None, epoch: int | None = None) -> list[Call]:
        """Read what has been recorded so far, ordered by stage, task attempt and time."""
        recorded = []
        for path in sorted(self._directory.glob("*.json"), key=lambda path: path.name):
            fields = json.loads(path.read_text())
            fields["values"] = tuple(fields["values"])
            recorded.append(Call(**fields))
        wanted = [c for c in recorded if (name is None or c.name == name) and (epoch is None or c.epoch == epoch)]
        return sorted(wanted, key=lambda call: (call.stage, call.task_attempt))

    def _record(self, name: str, column: str | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        path = self._directory / f"{time.time_ns():020}-{uuid.uuid4().hex}.json"
        call = _this_call(name)
        _save(path, call)
        values: set[int] = set()
        try:
            for batch in batches:
                if column is not None:
                    values.update(batch.column(column).to_pylist())
                call = replace(call, rows=call.rows + batch.num_rows, values=tuple(sorted(values)))
                yield batch
            call = replace(call, exhausted=True)
        finally:
            _save(path, call)


def drain(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query over everything that is there, one batch per file, and wait for its end.

    Raises:
        StreamingQueryException: the query failed.
        TimeoutError: it did not end in `SECONDS`.
    """
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(SECONDS):
        query.stop()
        raise TimeoutError(f"query {query.id} did not end in {SECONDS} s; see its last progress")
    return query


def batch_ids(checkpoint: Path, log: str) -> list[int]:
    """List the batches in `offsets` or `commits` of a checkpoint directory, ascending."""
    return sorted(int(path.name) for path in (checkpoint / log).glob("[0-9]*") if path.name.isdigit())


def forget(checkpoint: Path, log: str, batches: Iterable[int]) -> None:
    """Remove entries of `offsets` or `commits` with their checksums, as if Spark had never written them."""
    for batch in batches:
        (checkpoint / log / str(batch)).unlink()
        (checkpoint / log / f".{batch}.crc").unlink(missing_ok=True)


def query_id(checkpoint: Path) -> str:
    """Read the query id of a checkpoint directory."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def write_query_id(checkpoint: Path, identifier: str) -> None:
    """Give a checkpoint directory a query id, before the first start or to make a copy a query of its own."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    # Hadoop's local file system checks a file against its checksum file; a file without one is taken as it is.
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)
    fresh = checkpoint / f".metadata.{uuid.uuid4().hex}"
    fresh.write_text(json.dumps({"id": identifier}))
    fresh.rename(checkpoint / "metadata")


def _this_call(name: str) -> Call:
    context = TaskContext.get()
    assert context is not None, "probes run in tasks only"
    epoch = context.getLocalProperty("streaming.sql.batchId")
    return Call(
        name=name,
        epoch=None if epoch is None else int(epoch),
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        job_group=context.getLocalProperty("spark.jobGroup.id"),
        marker=context.getLocalProperty(MARKER_PROPERTY),
        stage=context.stageId(),
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        task_attempt=context.taskAttemptId(),
        pid=os.getpid(),
        parent_pid=os.getppid(),
    )


def _save(path: Path, call: Call) -> None:
    hidden = path.with_suffix(".tmp")
    hidden.write_text(json.dumps(asdict(call)))
    hidden.rename(path)
