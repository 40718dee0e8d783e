"""Real queries go on from checkpoints and savepoints: the same results, and a checkpoint that stays as it was."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import coord_control as cc
from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import current_lineage
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import (
    CheckpointNotFound,
    MissingRecord,
    OperatorsChanged,
    ParallelismChanged,
    RestoredQueryUnused,
    RestoreRefused,
)
from coord_control.ids import QueryName
from coord_control.spark.job.pending_restore import count_sources
from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, Dialogue, MakeJob, Memory, Number, Report, apply, drain, rows, talk, write
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

Results = dict[int, list[tuple[Any, ...]]]


def sums(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(F.sum("value").alias("sum"))


def collected(frame: DataFrame, results: Results) -> Any:
    def collect(batch: DataFrame, epoch: int) -> None:
        results[epoch] = sorted(tuple(row) for row in batch.collect())

    return frame.writeStream.outputMode("update").foreachBatch(collect)


def run(job: cc.Job, source: FileStream, results: Results, *, savepoint: str | None = None) -> Dialogue:
    """Run an operator and an aggregation over all that is there, and end the job."""
    coordinator = Dialogue()
    frame = sums(apply(talk(job, coordinator), source.read()))
    drain(job, collected(frame, results))
    if savepoint is not None:
        job.trigger_savepoint(target=savepoint).wait(SECONDS)
    job.stop()
    return coordinator


def intact(path: Path | str) -> bool:
    metadata = read_metadata(LocalFiles(), str(path))
    assert metadata is not None
    return not list(verify_files(LocalFiles(), str(path), metadata))


def lineage_of(tmp_path: Path, job: str = "job", query: str = "q") -> str:
    lineage = current_lineage(LocalFiles(), f"{tmp_path}/jobs/{job}/queries/{query}", QueryName(query))
    assert lineage is not None
    return lineage.name


def more(source: FileStream, epochs: Sequence[int]) -> None:
    for epoch in epochs:
        source.add(rows(epoch))


def test_a_restored_job_gives_what_an_uninterrupted_one_gave_and_the_savepoint_stays_as_it_was(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    target = str(tmp_path / "savepoint")
    first: Results = {}
    run(make_job(), source, first, savepoint=target)
    assert sorted(first) == [0, 1, 2]
    more(source, range(3, 9))
    on: Results = {}
    run(make_job(), source, on).check(range(72))
    assert sorted(on) == list(range(3, 9))

    again: Results = {}
    run(make_job(restore_from=target), source, again).check(range(72))
    assert again == on
    assert lineage_of(tmp_path) == "lineage-000002"
    # Six epochs have run over links to its files.
    assert intact(target)
    # Asked for once more, the job just goes on.
    more(source, [9])
    last: Results = {}
    run(make_job(restore_from=target), source, last).check(range(80))
    assert sorted(last) == [9]
    assert lineage_of(tmp_path) == "lineage-000002"


def test_a_program_that_names_its_first_savepoint_resumes_where_a_later_restore_has_set_the_job(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    """Every driver of a job is started with the same restore_from. It goes back there once and needs it no more."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    run(make_job(), source, {}, savepoint=first)
    run(make_job(restore_from=first), source, {})
    more(source, [3])
    run(make_job(restore_from=first), source, {}, savepoint=second)
    more(source, [4])
    run(make_job(restore_from=first), source, {})
    files = LocalFiles()
    restore_job(files, lambda path: files, RestoreRequest(ref=second), root=str(tmp_path / "jobs"), job="job")
    after: Results = {}
    run(make_job(restore_from=first), source, after).check(range(40))
    assert sorted(after) == [4]

    shutil.rmtree(first)
    more(source, [5])
    last: Results = {}
    run(make_job(restore_from=first), source, last).check(range(48))
    assert sorted(last) == [5]
    with pytest.raises((CheckpointNotFound, MissingRecord)):
        make_job(restore_from=str(tmp_path / "never"))


def test_a_job_is_restored_after_its_live_directories_were_lost(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    job = make_job()
    results: Results = {}
    coordinator = Dialogue()
    drain(job, collected(sums(apply(talk(job, coordinator), source.read())), results))
    completed = job.trigger_checkpoint(label="before").wait(SECONDS)
    job.stop()
    shutil.rmtree(tmp_path / "jobs" / "job" / "queries")
    more(source, range(3, 5))
    again: Results = {}
    run(make_job(restore_from="before"), source, again).check(range(40))
    assert sorted(again) == [3, 4]
    assert intact(completed.path)
    with pytest.raises(CheckpointNotFound, match="did you mean before"):
        make_job(restore_from="befor")


def test_a_fork_runs_in_the_session_of_its_original(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    target = str(tmp_path / "savepoint")
    run(make_job(), source, {}, savepoint=target)
    more(source, range(3, 5))
    original, fork = make_job(), make_job("fork", restore_from=target)
    assert fork.generation > 1
    results: dict[str, Results] = {"original": {}, "fork": {}}
    coordinators = {}
    queries = {}
    for name, job in (("original", original), ("fork", fork)):
        coordinators[name] = Dialogue()
        frame = sums(apply(talk(job, coordinators[name]), source.read()))
        queries[name] = job.start("q", collected(frame, results[name]))
    for query in queries.values():
        query.processAllAvailable()
    assert queries["original"].id != queries["fork"].id
    assert original.checkpoint_statistics().latest_restored is None
    overview = fork.checkpoint_statistics()
    assert overview.latest_restored is not None
    assert (overview.latest_restored.path, overview.latest_restored.is_fork) == (target, True)
    assert overview.counts.restored == 1
    for job in (original, fork):
        job.stop()
    assert results["fork"] == results["original"]
    for coordinator in coordinators.values():
        coordinator.check(range(40))


def merge(subtasks: list[cc.SubtaskSnapshot[Memory]], parallelism: int) -> Sequence[cc.SubtaskSnapshot[Memory]]:
    """One subtask that remembers the rows of all, and has never talked."""
    values = [value for one in subtasks for value in one.state.values]
    return [cc.SubtaskSnapshot(Memory(values=values))]


def test_another_parallelism_takes_a_function(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    target = str(tmp_path / "savepoint")
    run(make_job(), source, {}, savepoint=target)
    more(source, range(3, 5))
    job = make_job(restore_from=target)
    frame = source.read()
    with pytest.raises(RestoreRefused, match=r"parallelism of op: 2 before, 1 now .declare 2, or give job.operator"):
        job.start("q", write(apply(talk(job, Dialogue(), parallelism=1), frame)))
    assert lineage_of(tmp_path) == "lineage-000001"
    job.stop()

    class Listener(cc.OperatorCoordinator):
        """Hears what the subtasks say, and says nothing itself."""

        def __init__(self) -> None:
            self.heard: list[tuple[int, Report]] = []

        def checkpoint_coordinator(self, checkpoint_id: int, result: cc.SnapshotResult) -> None:
            result.complete(b"")

        def reset_to_checkpoint(self, checkpoint_id: int, data: bytes | None) -> None:
            self.heard.clear()

        def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
            self.heard.append((subtask, event))

    job, listener = make_job(restore_from=target), Listener()
    operator = job.operator("op", listener, parallelism=1, state=Memory, down=[Number], up=[Report], rescale=merge)
    drain(job, collected(sums(apply(operator, frame)), {}))
    job.stop()
    subtask, report = listener.heard[-1]
    assert subtask == 0
    assert sorted(report.values) == list(range(40))
    # From now on it is the operator's parallelism.
    job = make_job()
    with pytest.raises(ParallelismChanged):
        job.start("q", write(apply(talk(job, Dialogue()), frame)))


def test_operators_and_queries_come_and_go_only_if_that_is_allowed(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    target = str(tmp_path / "savepoint")
    run(make_job(), source, {}, savepoint=target)
    more(source, [3])
    job = make_job(restore_from=target)
    with pytest.raises(RestoreRefused, match="operator of op: it is not declared, its state would be left behind"):
        job.start("q", collected(sums(source.read()), {}))
    with pytest.raises(RestoreRefused, match="query of other: it is not in the checkpoint"):
        job.start("other", write(source.read()))
    job.stop()
    job = make_job(restore_from=target, allow_non_restored_state=True)
    results: Results = {}
    drain(job, collected(sums(source.read()), results))
    assert sorted(results) == [3]
    job.stop()
    job = make_job()
    with pytest.raises(OperatorsChanged, match=r"has run with the operators none and now declares \['op'\]"):
        job.start("q", write(apply(talk(job, Dialogue()), source.read())))


def test_a_query_that_was_restored_and_forgotten_is_missed(
    make_job: MakeJob, source: FileStream, file_stream: MakeStream, tmp_path: Path
) -> None:
    target = str(tmp_path / "savepoint")
    other = file_stream(SCHEMA)
    other.add(rows(0))
    job = make_job()
    job.start("other", write(other.read()).trigger(availableNow=True))
    drain(job, write(source.read()))
    job.trigger_savepoint(target=target).wait(SECONDS)
    job.stop()
    job = make_job(restore_from=target)
    job.start("q", write(source.read()).trigger(availableNow=True))
    with pytest.raises(RestoredQueryUnused, match=r"does not start its queries \['other'\]"):
        job.await_termination()


def test_a_damaged_savepoint_is_refused_and_the_job_is_as_it_was(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    target = tmp_path / "savepoint"
    run(make_job(), source, {}, savepoint=str(target))
    victim = next((target / "queries" / "q" / "spark" / "state" / "0" / "1").glob("*.delta"))
    content = victim.read_bytes()
    victim.unlink()
    victim.write_bytes(content[:-1])
    with pytest.raises(RestoreRefused, match=f"missing or damaged: {victim}"):
        make_job(restore_from=str(target))
    more(source, [3])
    results: Results = {}
    run(make_job(), source, results).check(range(32))
    assert sorted(results) == [3]


def test_sources_are_counted_as_spark_counts_them(
    spark: SparkSession, source: FileStream, file_stream: MakeStream
) -> None:
    other = file_stream(SCHEMA)
    other.add(rows(0))
    frame = source.read()
    frames: Mapping[str, tuple[DataFrame, int]] = {
        "one": (frame, 1),
        "used twice": (frame.union(frame), 2),
        "read twice": (frame.union(source.read()), 2),
        "joined with itself": (frame.alias("a").join(frame.alias("b"), F.expr("a.key = b.key")), 2),
        "rate": (spark.readStream.format("rate").load().select(F.col("value")).union(frame.select("value")), 2),
    }
    counted = {name: count_sources(one) for name, (one, _) in frames.items()}
    assert counted == {name: count for name, (_, count) in frames.items()}


def test_the_environment_asks_for_a_restore(
    make_job: MakeJob, source: FileStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "savepoint")
    run(make_job(), source, {}, savepoint=target)
    monkeypatch.setenv("COORD_RESTORE_FROM", target)
    monkeypatch.setenv("COORD_ALLOW_NON_RESTORED_STATE", "1")
    job = make_job()
    drain(job, collected(sums(source.read()), {}))
    job.stop()
    assert lineage_of(tmp_path) == "lineage-000002"


def test_nothing_takes_place_before_the_first_query_fits(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    target = str(tmp_path / "savepoint")
    run(make_job(), source, {}, savepoint=target)
    make_job(restore_from=target).stop()
    assert lineage_of(tmp_path) == "lineage-000001"
    assert newest_restore(LocalFiles(), str(tmp_path / "jobs" / "job")) is None
