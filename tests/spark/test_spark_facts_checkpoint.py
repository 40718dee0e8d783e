"""What Spark does with its checkpoint directory, as far as epochs, recovery and savepoints rest on it.

Each test states one fact about Spark itself and uses nothing of coord_control. A crash is made by removing
what Spark had not yet written when it happened: `commits/e` for a crash inside batch e.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.streams import (
    FileStream,
    Probe,
    batch_ids,
    drain,
    forget,
    query_id,
    write_query_id,
)

pytestmark = pytest.mark.spark

ROWS = [{"key": f"key-{number % 4}", "value": number} for number in range(8)]
STATE_STORES = {
    "HDFSBackedStateStoreProvider": {},
    "RocksDBStateStoreProvider": {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"},
}
STATE_STORE_PACKAGE = "org.apache.spark.sql.execution.streaming.state"


def to_nowhere(frame: DataFrame, checkpoint: Path) -> DataStreamWriter:
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))


def counted(stream: FileStream, checkpoint: Path, results: dict[int, dict[str, int]]) -> DataStreamWriter:
    """Count rows per key in Spark's own state; `results` gets the complete counts of every epoch that runs."""

    def collect(batch: DataFrame, epoch: int) -> None:
        results[epoch] = {row["key"]: row["count"] for row in batch.collect()}

    writer = stream.read().groupBy("key").agg(F.count("*").alias("count")).writeStream.outputMode("complete")
    return writer.foreachBatch(collect).option("checkpointLocation", str(checkpoint))


# --- the order within a batch ----------------------------------------------------------------------------------------


def test_offsets_are_there_before_the_plan_runs_and_the_commit_only_after_it(
    spark: SparkSession, file_stream: MakeStream, checkpoint: Path
) -> None:
    """Fact 7: a begin record is never older than its offsets file, a commit means that all of the batch has run."""
    stream = file_stream()
    stream.add(ROWS)
    stream.add(ROWS)
    seen = []

    def look(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        seen.append((epoch, batch_ids(checkpoint, "offsets"), batch_ids(checkpoint, "commits")))

    drain(stream.read().writeStream.foreachBatch(look).option("checkpointLocation", str(checkpoint)))
    assert seen == [(0, [0], []), (1, [0, 1], [0])]
    assert batch_ids(checkpoint, "commits") == [0, 1]


# --- restart ---------------------------------------------------------------------------------------------------------


def test_a_batch_with_offsets_but_without_commit_is_run_again_with_the_same_rows(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 8: the recovery of one batch; data that came later waits for the next one."""
    stream = file_stream()
    for size in (3, 5, 2):
        stream.add(ROWS[:size])
    writer = to_nowhere(probe.through(stream.read()), checkpoint)
    drain(writer)
    forget(checkpoint, "commits", [2])
    stream.add(ROWS[:7])
    drain(writer)
    assert [(call.epoch, call.rows) for call in probe.calls()] == [(0, 3), (1, 5), (2, 2), (2, 2), (3, 7)]


def test_running_a_batch_again_needs_the_offsets_of_the_batch_before(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 8: a savepoint has to hold two offset files."""
    stream = file_stream()
    for _ in range(3):
        stream.add(ROWS)
    writer = to_nowhere(probe.through(stream.read()), checkpoint)
    drain(writer)
    forget(checkpoint, "commits", [2])
    forget(checkpoint, "offsets", [1])
    with pytest.raises(StreamingQueryException):
        drain(writer)
    assert [call.epoch for call in probe.calls()] == [0, 1, 2]


def test_when_commits_trail_by_two_the_earlier_batch_is_skipped_without_an_error(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 8: so a restore must remove the later offsets as well as the later commits."""
    stream = file_stream()
    for size in (3, 5, 2):
        stream.add(ROWS[:size])
    writer = to_nowhere(probe.through(stream.read()), checkpoint)
    drain(writer)
    forget(checkpoint, "commits", [1, 2])
    drain(writer)
    assert [call.epoch for call in probe.calls()] == [0, 1, 2, 2]


def test_without_later_offsets_and_commits_the_query_continues_from_the_last_commit(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 8: the cut of a restore; the rows of the removed batches are read again."""
    stream = file_stream()
    for size in (3, 5, 2):
        stream.add(ROWS[:size])
    writer = to_nowhere(probe.through(stream.read()), checkpoint)
    drain(writer)
    for log in ("offsets", "commits", "sources/0"):
        forget(checkpoint, log, [1, 2])
    drain(writer)
    assert [(call.epoch, call.rows) for call in probe.calls()] == [(0, 3), (1, 5), (2, 2), (1, 5), (2, 2)]


def test_one_writer_can_be_started_again_after_stop_and_continues(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Restart in place: the same query id, another run id, no batch twice."""
    stream = file_stream()
    writer = to_nowhere(probe.through(stream.read()), checkpoint)
    runs = []
    for _ in range(3):
        stream.add(ROWS)
        query = writer.start()
        query.processAllAvailable()
        query.stop()
        runs.append(query)
    assert [call.epoch for call in probe.calls()] == [0, 1, 2]
    assert len({str(query.id) for query in runs}) == 1
    assert [call.job_group for call in probe.calls()] == [str(query.runId) for query in runs]


def test_one_writer_can_be_started_again_after_a_failure_and_runs_the_failed_batch_again(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Restart in place after a failed batch, with foreachBatch: the same Python function is called by the new run."""
    stream = file_stream()
    stream.add(ROWS)
    stream.add(ROWS)
    failures = [RuntimeError("failed on purpose")]

    def fail_once_in_epoch_1(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        if epoch == 1 and failures:
            raise failures.pop()

    writer = probe.through(stream.read()).writeStream.foreachBatch(fail_once_in_epoch_1)
    writer = writer.option("checkpointLocation", str(checkpoint))
    with pytest.raises(StreamingQueryException, match="failed on purpose"):
        drain(writer)
    assert (batch_ids(checkpoint, "offsets"), batch_ids(checkpoint, "commits")) == ([0, 1], [0])
    query = drain(writer)
    calls = probe.calls()
    assert [call.epoch for call in calls] == [0, 1, 1]
    assert calls[2].task_attempt > calls[1].task_attempt
    assert calls[2].job_group == str(query.runId) != calls[1].job_group


# --- files of a committed version ------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STATE_STORES)
def test_a_hard_linked_copy_of_a_running_query_continues_with_identical_results(
    store: str, own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    """Fact 9: files of a committed version are never written again, neither by the query nor by a copy of it."""
    own_session.conf.set("spark.sql.streaming.stateStore.providerClass", f"{STATE_STORE_PACKAGE}.{store}")
    for key, value in STATE_STORES[store].items():
        own_session.conf.set(key, value)
    stream = file_stream(session=own_session)
    original: dict[int, dict[str, int]] = {}
    forked: dict[int, dict[str, int]] = {}
    copy = tmp_path / "copy"

    for _ in range(3):
        stream.add(ROWS)
    query = counted(stream, checkpoint, original).start()
    query.processAllAvailable()
    shutil.copytree(checkpoint, copy, copy_function=os.link, ignore=shutil.ignore_patterns("*.tmp*"))
    pinned = fingerprints(copy)
    for size in (8, 3, 5):
        stream.add(ROWS[:size])
    query.processAllAvailable()
    assert fingerprints(copy) == pinned
    query.stop()
    written_by_original = fingerprints(checkpoint)

    write_query_id(copy, str(uuid.uuid4()))
    drain(counted(stream, copy, forked))
    assert forked == {epoch: original[epoch] for epoch in (3, 4, 5)}
    assert fingerprints(checkpoint) == written_by_original


def fingerprints(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Describe every visible file of a directory by inode, time of writing and content."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            status = path.stat()
            found[str(path.relative_to(directory))] = (status.st_ino, status.st_mtime_ns, path.read_bytes())
    return found


# --- the id of a query -----------------------------------------------------------------------------------------------


def test_a_metadata_file_written_before_the_first_start_gives_the_query_its_id(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 10: the query's id is known before its first task runs, and Spark leaves the file as it is."""
    stream = file_stream()
    stream.add(ROWS)
    identifier = str(uuid.uuid4())
    write_query_id(checkpoint, identifier)
    before = (checkpoint / "metadata").read_bytes()
    writer = to_nowhere(probe.through(stream.read()), checkpoint)
    first = drain(writer)
    stream.add(ROWS)
    second = drain(writer)
    assert str(first.id) == str(second.id) == identifier
    assert {call.query_id for call in probe.calls()} == {identifier}
    assert (checkpoint / "metadata").read_bytes() == before


@pytest.mark.parametrize("same_session", [True, False], ids=["one session", "two sessions"])
def test_a_second_query_with_the_id_of_an_active_one_stops_that_one_without_an_error(
    same_session: bool,
    spark: SparkSession,
    own_session: SparkSession,
    file_stream: MakeStream,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    """Fact 10, with Spark's default: the older run ends as if somebody had called stop() on it."""
    stream = file_stream()
    first, copy = active_query_and_copy(stream, checkpoint, tmp_path / "copy")
    second = to_nowhere(stream.read(spark if same_session else own_session), copy).start()
    assert second.id == first.id
    assert first.awaitTermination(SECONDS)
    assert first.exception() is None
    stream.add(ROWS)
    second.processAllAvailable()
    assert second.isActive
    assert (batch_ids(checkpoint, "commits"), batch_ids(copy, "commits")) == ([0], [0, 1])


def test_a_second_query_with_the_id_of_an_active_one_is_refused_when_runs_are_not_to_be_stopped(
    spark: SparkSession, own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    """Fact 10: one setting of the session that starts the second query; a fork needs an id of its own."""
    stream = file_stream()
    first, copy = active_query_and_copy(stream, checkpoint, tmp_path / "copy")
    own_session.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
    writer = to_nowhere(stream.read(own_session), copy)
    with pytest.raises(Exception, match=str(first.id)):
        writer.start()
    assert first.isActive
    write_query_id(copy, str(uuid.uuid4()))
    fork = writer.start()
    stream.add(ROWS)
    for query in (first, fork):
        query.processAllAvailable()
    assert (batch_ids(checkpoint, "commits"), batch_ids(copy, "commits")) == ([0, 1], [0, 1])
    assert (first.isActive, fork.isActive) == (True, True)
    assert fork.id != first.id


def active_query_and_copy(stream: FileStream, checkpoint: Path, copy: Path) -> tuple[StreamingQuery, Path]:
    stream.add(ROWS)
    query = to_nowhere(stream.read(), checkpoint).start()
    query.processAllAvailable()
    shutil.copytree(checkpoint, copy)
    assert query_id(copy) == str(query.id)
    return query, copy


def test_a_missing_metadata_file_beside_offsets_is_an_error(
    spark: SparkSession, file_stream: MakeStream, checkpoint: Path
) -> None:
    """Fact 10 (SPARK-55058): a copy without it does not become a new query by accident."""
    stream = file_stream()
    stream.add(ROWS)
    writer = to_nowhere(stream.read(), checkpoint)
    drain(writer)
    (checkpoint / "metadata").unlink()
    with pytest.raises(Exception, match=r"(?i)metadata"):
        drain(writer)
