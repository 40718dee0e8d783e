"""What Spark does with Python functions in tasks, as far as subtask identity and fencing rest on it.

Each test states one fact about Spark itself and uses nothing of coord_control. When one fails with a new Spark
release, the rule that its docstring names has to be looked at again before that release is supported.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import InheritableThread, TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import MakeStream
from tests.spark.streams import MARKER_PROPERTY, Probe, Transform, drain

pytestmark = pytest.mark.spark

ROWS = [{"key": f"key-{number}", "value": number} for number in range(16)]
SUBTASKS = 2
# hash(string), hash(int), hash(double), hash(string, int), hash(int, string) of the three rows in the test below.
HASHES = [
    (2450805, -1712319331, 1290763749, -469850291, 1599399939),
    (142593372, -939490007, -1670924195, 963000715, 1644007910),
    (42, 42, 42, 42, 42),
]


def subtask_of(parallelism: int) -> Column:
    return F.pmod(F.hash("key"), F.lit(parallelism))


def by_subtask(frame: DataFrame, parallelism: int = SUBTASKS) -> DataFrame:
    return frame.withColumn("subtask", subtask_of(parallelism)).repartitionById(parallelism, "subtask")


def in_thread_of_its_own(function: Callable[[], None]) -> None:
    """Run a function that sets local properties, which then end with its thread."""
    thread = InheritableThread(target=function)
    thread.start()
    thread.join()


def ignore(batch: DataFrame, epoch: int) -> None:
    batch.collect()


# --- identity of a task ----------------------------------------------------------------------------------------------


def test_a_task_knows_its_epoch_its_query_and_its_run(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 1: the two streaming properties, and the run id as job group; a restart gives a new run id. (fencing)"""
    stream = file_stream()
    stream.add(ROWS)
    stream.add(ROWS)
    writer = probe.through(stream.read()).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    first = drain(writer)
    stream.add(ROWS)
    second = drain(writer)
    calls = probe.calls()
    assert [call.epoch for call in calls] == [0, 1, 2]
    assert {call.query_id for call in calls} == {str(first.id)} == {str(second.id)}
    assert [call.job_group for call in calls] == [str(first.runId), str(first.runId), str(second.runId)]
    assert first.runId != second.runId
    assert all(earlier.task_attempt < later.task_attempt for earlier, later in pairwise(calls))


def test_every_action_of_foreach_batch_runs_the_function_again_in_another_stage_of_the_same_run(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 6, and fact 1 inside foreachBatch: Python and JVM threads are pinned to each other. (several attempts)"""
    stream = file_stream()
    stream.add(ROWS)

    def two_actions(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        batch.count()

    writer = probe.through(stream.read()).writeStream.foreachBatch(two_actions)
    query = drain(writer.option("checkpointLocation", str(checkpoint)))
    calls = probe.calls()
    assert [call.epoch for call in calls] == [0, 0]
    assert len({call.stage for call in calls}) == 2
    assert {call.job_group for call in calls} == {str(query.runId)}


def test_a_plain_thread_in_foreach_batch_loses_the_epoch_and_an_inheritable_one_keeps_it(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """A task without an epoch cannot be coordinated: it has to be refused with advice to use InheritableThread."""
    stream = file_stream()
    stream.add(ROWS)

    def in_threads(batch: DataFrame, epoch: int) -> None:
        for kind in (threading.Thread, InheritableThread):
            thread = kind(target=batch.collect)
            thread.start()
            thread.join()

    writer = probe.through(stream.read()).writeStream.foreachBatch(in_threads)
    query = drain(writer.option("checkpointLocation", str(checkpoint)))
    assert [(call.epoch, call.job_group) for call in probe.calls()] == [(None, None), (0, str(query.runId))]


def test_a_job_group_that_foreach_batch_sets_replaces_the_run_id_in_later_epochs_too(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """The job group is open to user code; a local property of our own, set before start(), is not touched by it."""
    stream = file_stream()
    stream.add(ROWS)
    stream.add(ROWS)

    def regroup(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        spark.sparkContext.setJobGroup("theirs", "set by user code")
        batch.collect()

    writer = probe.through(stream.read()).writeStream.foreachBatch(regroup)
    runs = []

    def run() -> None:
        spark.sparkContext.setLocalProperty(MARKER_PROPERTY, "ours")
        runs.append(str(drain(writer.option("checkpointLocation", str(checkpoint))).runId))

    in_thread_of_its_own(run)
    calls = probe.calls()
    assert [call.job_group for call in calls] == [*runs, "theirs", "theirs", "theirs"]
    assert {call.marker for call in calls} == {"ours"}


def test_a_local_property_set_before_start_reaches_every_task_of_that_run_only(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """The query's thread inherits the properties of the thread that called start(), at that moment."""
    stream = file_stream()
    writer = probe.through(stream.read()).writeStream.format("noop").option("checkpointLocation", str(checkpoint))

    def run(marker: str) -> None:
        stream.add(ROWS)
        spark.sparkContext.setLocalProperty(MARKER_PROPERTY, marker)
        query = writer.start()
        spark.sparkContext.setLocalProperty(MARKER_PROPERTY, "too late")
        query.processAllAvailable()
        query.stop()

    in_thread_of_its_own(partial(run, "first"))
    in_thread_of_its_own(partial(run, "second"))
    assert [call.marker for call in probe.calls()] == ["first", "second"]


# --- when a function runs, and where ---------------------------------------------------------------------------------


def test_the_function_is_called_for_empty_partitions_too(spark: SparkSession, probe: Probe) -> None:
    """Fact 2: a call is no sign of rows, so a subtask without rows has to be recognised by reading."""
    frame = spark.range(1).repartition(1).withColumn("subtask", F.lit(2)).repartitionById(4, "subtask")
    probe.through(frame).collect()
    assert sorted((call.partition, call.rows) for call in probe.calls()) == [(0, 0), (1, 0), (2, 1), (3, 0)]


def test_below_a_union_partition_ids_are_shifted(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Facts 3 and 5: the partition id is not the subtask id, the column that travels with the rows is."""
    stream = file_stream()
    stream.add(ROWS)
    left = stream.read().repartition(3)
    right = probe.through(by_subtask(stream.read()), column="subtask").drop("subtask")
    drain(left.union(right).writeStream.format("noop").option("checkpointLocation", str(checkpoint)))
    assert [(call.partition, call.values) for call in probe.calls()] == [(3, (0,)), (4, (1,))]


def test_under_coalesce_one_task_runs_all_partitions_one_after_the_other(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Facts 3 and 5: one attempt id and partition 0 for all, one call per subtask, a call sees one subtask only."""
    stream = file_stream()
    stream.add(ROWS)
    frame = probe.through(by_subtask(stream.read()), column="subtask").coalesce(1)
    drain(frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)))
    calls = probe.calls()
    assert [call.values for call in calls] == [(0,), (1,)]
    assert {call.partition for call in calls} == {0}
    assert len({call.task_attempt for call in calls}) == 1


def test_take_runs_only_the_first_partition(spark: SparkSession, probe: Probe) -> None:
    """Fact 3: the other subtasks never say hello."""
    probe.through(spark.range(0, 8, 1, 4)).take(1)
    assert [call.partition for call in probe.calls()] == [0]


def test_take_stops_a_generator_before_its_end(spark: SparkSession, tmp_path: Path) -> None:
    """Fact 3: what stands after the last yield does not run, so an ack there is missing. (partial consumption)"""
    directory = str(tmp_path)

    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(directory, "started").touch()
        for batch in batches:
            # More than the pipe and its buffers hold.
            for _ in range(10_000):
                yield pa.RecordBatch.from_pydict({"id": list(range(1000))}, schema=batch.schema)
        Path(directory, "ended").touch()

    spark.range(0, 1, 1, 1).mapInArrow(endless, "id long").take(1)
    assert Path(directory, "started").exists()
    assert not Path(directory, "ended").exists()


def test_a_source_without_new_data_is_pruned_with_everything_above_it(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 4: no task runs in that epoch, so nobody says hello and inputs stay in the mailbox."""
    steady, sparse = file_stream(), file_stream()
    steady.add(ROWS)
    steady.add(ROWS)
    sparse.add(ROWS)
    frame = probe.through(steady.read(), "steady").union(
        probe.through(by_subtask(sparse.read()), "sparse").drop("subtask")
    )
    drain(frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)))
    assert {call.epoch for call in probe.calls("steady")} == {0, 1}
    assert {call.epoch for call in probe.calls("sparse")} == {0}


def test_without_a_shuffle_an_epoch_that_runs_again_may_have_other_partitions(
    file_stream: MakeStream, probe: Probe, checkpoint: Path, own_session: SparkSession
) -> None:
    """Decision 39: the rows of a partition are no identity, because Spark divides the input when an epoch runs."""
    stream = file_stream(session=own_session)
    stream.add(ROWS)
    frame = probe.through(stream.read(), column="value")

    def failing(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        raise RuntimeError("after the action, before the commit")

    with pytest.raises(StreamingQueryException):
        drain(frame.writeStream.foreachBatch(failing).option("checkpointLocation", str(checkpoint)))
    first = probe.calls()
    own_session.conf.set("spark.sql.files.maxPartitionBytes", "100")  # as other machines, or another default, would
    own_session.conf.set("spark.sql.files.openCostInBytes", "0")
    drain(frame.writeStream.foreachBatch(ignore).option("checkpointLocation", str(checkpoint)))
    again = probe.calls()[len(first) :]
    assert {call.epoch for call in first + again} == {0}
    assert sum(call.rows for call in first) == sum(call.rows for call in again) == len(ROWS)
    assert first[0].values != again[0].values
    assert len(again) > len(first)


# --- repartitionById -------------------------------------------------------------------------------------------------


def test_repartition_by_id_takes_the_number_and_then_the_column() -> None:
    """Fact 5 (SPARK 4.1): the names and the order of its parameters."""
    assert list(inspect.signature(DataFrame.repartitionById).parameters) == ["self", "numPartitions", "partitionIdCol"]


@pytest.mark.parametrize("action", ["stream", "foreachBatch"])
def test_repartition_by_id_puts_each_row_exactly_into_the_partition_of_its_column(
    action: str, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 5: also with more subtasks than shuffle partitions, and where adaptive execution could merge small ones."""
    stream = file_stream()
    stream.add([{"key": f"key-{number}", "value": number} for number in range(200)])
    frame = by_subtask(stream.read(), 5)
    assert frame.columns == ["key", "value", "subtask"]  # the column stays and is ours to drop
    writer = probe.through(frame, column="subtask").writeStream
    writer = writer.format("noop") if action == "stream" else writer.foreachBatch(ignore)
    drain(writer.option("checkpointLocation", str(checkpoint)))
    assert sorted((call.partition, call.values) for call in probe.calls()) == [(n, (n,)) for n in range(5)]
    assert sum(call.rows for call in probe.calls()) == 200


def test_the_hash_of_a_key_never_changes(spark: SparkSession) -> None:
    """A subtask's state belongs to its keys: another hash in a new release would give them to another subtask."""
    frame = spark.createDataFrame([("UA", 1, 1.5), ("", -1, 0.0), (None, None, None)], "s string, i long, d double")
    rows = frame.select(F.hash("s"), F.hash("i"), F.hash("d"), F.hash("s", "i"), F.hash("i", "s")).collect()
    assert [tuple(row) for row in rows] == HASHES


# --- failures and processes ------------------------------------------------------------------------------------------


def failing(path: Path, times: int) -> Transform:
    """Make a pass-through that raises in its first `times` calls."""
    directory = str(path)

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if len(list(Path(directory).iterdir())) < times:
            Path(directory, str(context.taskAttemptId())).touch()
            raise RuntimeError("failed on purpose")
        yield from batches

    path.mkdir()
    return function


def test_a_failed_task_is_tried_again_in_the_same_stage_with_a_higher_attempt_id(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path, tmp_path: Path
) -> None:
    """Fact 17: local[2,3] gives three attempts; their task attempt ids only grow. (fencing, local failover)"""
    stream = file_stream()
    stream.add(ROWS)
    frame = probe.through(stream.read()).mapInArrow(failing(tmp_path / "failures", 2), "key string, value long")
    drain(frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)))
    calls = probe.calls()
    assert [call.attempt for call in calls] == [0, 1, 2]
    assert len({call.stage for call in calls}) == 1
    assert calls[0].task_attempt < calls[1].task_attempt < calls[2].task_attempt


def test_the_batch_fails_with_its_last_attempt_and_the_query_with_it(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path, tmp_path: Path
) -> None:
    """Fact 17: nothing but a restart of the query runs the batch again. (global failover)"""
    stream = file_stream()
    stream.add(ROWS)
    frame = probe.through(stream.read()).mapInArrow(failing(tmp_path / "failures", 99), "key string, value long")
    with pytest.raises(StreamingQueryException, match="failed on purpose"):
        drain(frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)))
    assert [call.attempt for call in probe.calls()] == [0, 1, 2]


def test_python_workers_are_forked_from_one_daemon_and_used_for_task_after_task(
    spark: SparkSession, file_stream: MakeStream, probe: Probe, checkpoint: Path
) -> None:
    """Fact 11: a connection can be kept per process, and must not be shared over a fork."""
    stream = file_stream()
    for _ in range(6):
        stream.add(ROWS)
    drain(probe.through(stream.read()).writeStream.format("noop").option("checkpointLocation", str(checkpoint)))
    calls = probe.calls()
    assert len(calls) == 6
    assert len({call.parent_pid for call in calls}) == 1
    assert len({call.pid for call in calls}) < len(calls)
    assert {call.pid for call in calls}.isdisjoint({call.parent_pid for call in calls})
