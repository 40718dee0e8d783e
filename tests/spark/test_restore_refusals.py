"""A restore that is refused changes nothing, whichever query it is refused for; then the job goes on where it stood."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.offline.undo import undo_restore
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import (
    CoordControlError,
    PlanRefused,
    QueryFailed,
    QueryNotRestored,
    QueryNotStarted,
    RestoreNotUndone,
    RestoreRefused,
)
from coord_control.exit_codes import ExitCode, exit_code_of
from coord_control.ids import QueryName
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import (
    SCHEMA,
    Dialogue,
    MakeJob,
    Memory,
    Number,
    Report,
    apply,
    follow,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


class Stranger(BaseModel):
    """Not what was saved."""

    reports: str = ""


@pytest.fixture
def other(file_stream: MakeStream) -> FileStream:
    stream = file_stream(SCHEMA)
    for epoch in range(3):
        stream.add(rows(epoch))
    return stream


def counts(frame: DataFrame, *more: Any) -> DataStreamWriter:
    return write(frame.groupBy("key").agg(F.count("*").alias("n"), *more)).outputMode("update")


def first(job: cc.Job, source: FileStream) -> Any:
    return job.start("a", write(apply(talk(job, Dialogue()), source.read())))


def second(job: cc.Job, other: FileStream, uid: str = "op2", parallelism: int = 2, name: str = "b") -> Any:
    frame = apply(talk(job, Dialogue(), uid, parallelism), other.read())
    return job.start(name, counts(frame))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refusals")


@pytest.fixture
def tmp_path(place: Path) -> Path:
    """The same for all tests: what one has made, with the paths in it, is put there for the next ones."""
    folder = place / "test"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@pytest.fixture
def savepoint(make_job: MakeJob, source: FileStream, other: FileStream, tmp_path: Path, place: Path) -> str:
    """Of two queries at epoch 2; the job has then gone on to epoch 3. Made once, and copied for each other test."""
    path, kept = str(tmp_path / "savepoint"), place / "kept"
    if kept.exists():
        for stream in (source, other):
            stream.add(rows(3))  # it counts its files, which are then replaced
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
        return path
    with make_job() as job:
        for query in (first(job, source), second(job, other)):
            query.processAllAvailable()
        job.trigger_savepoint(target=path).wait(SECONDS)
    source.add(rows(3))
    other.add(rows(3))
    with make_job() as job:
        for query in (first(job, source), second(job, other)):
            query.processAllAvailable()
    shutil.copytree(tmp_path, kept)
    return path


def committed(make_job: MakeJob, source: FileStream, other: FileStream) -> dict[str, int]:
    """Where the job stands."""
    with make_job() as job:
        first(job, source)
        second(job, other)
        return stands(job)


def stands(job: cc.Job) -> dict[str, int]:
    return {query.name: query.committed for query in job.status().queries}


def changed_parallelism(job: cc.Job, other: FileStream) -> None:
    second(job, other, parallelism=3)


def renamed(job: cc.Job, other: FileStream) -> None:
    second(job, other, name="c")


def renamed_operator(job: cc.Job, other: FileStream) -> None:
    second(job, other, uid="op3")


def removed(job: cc.Job, other: FileStream) -> None:
    job.await_termination(0.0)


def added(job: cc.Job, other: FileStream) -> None:
    job.start("c", write(other.read()))


def changed_model(job: cc.Job, other: FileStream) -> None:
    operator = job.operator("op2", Dialogue(), parallelism=2, state=Stranger, down=[Number], up=[Report])
    job.start("b", counts(apply(operator, other.read())))


class Other(BaseModel):
    """What a coordinator cannot have saved."""

    another_name: int = 0


class Stubborn(cc.StatefulCoordinator[Other]):
    def __init__(self) -> None:
        super().__init__(Other())


def changed_coordinator(job: cc.Job, other: FileStream) -> None:
    """Bug: the restore took place, the other query ran, and this one failed when its coordinator was reset."""
    operator = job.operator("op2", Stubborn(), parallelism=2, state=Memory, down=[Number], up=[Report])
    job.start("b", counts(apply(operator, other.read())))


def failing_rescale(job: cc.Job, other: FileStream) -> None:
    def rescale(subtasks: list[cc.SubtaskSnapshot[Memory]], parallelism: int) -> list[cc.SubtaskSnapshot[Memory]]:
        raise ValueError("not today")

    operator = job.operator("op2", Dialogue(), parallelism=3, state=Memory, down=[Number], up=[Report], rescale=rescale)
    job.start("b", counts(apply(operator, other.read())))


def changed_aggregation(job: cc.Job, other: FileStream) -> None:
    frame = apply(talk(job, Dialogue(), "op2"), other.read())
    job.start("b", counts(frame, F.max("value")))


def changed_key(job: cc.Job, other: FileStream) -> None:
    frame = apply(talk(job, Dialogue(), "op2"), other.read())
    job.start("b", write(frame.groupBy("value").count()).outputMode("update"))


def no_aggregation(job: cc.Job, other: FileStream) -> None:
    job.start("b", write(apply(talk(job, Dialogue(), "op2"), other.read())))


def another_source(job: cc.Job, other: FileStream) -> None:
    frame = apply(talk(job, Dialogue(), "op2"), other.read())
    job.start("b", counts(frame.union(other.read())))


def impossible_output_mode(job: cc.Job, other: FileStream) -> None:
    frame = apply(talk(job, Dialogue(), "op2"), other.read())
    job.start("b", counts(frame).outputMode("append"))


def missing_format(job: cc.Job, other: FileStream) -> None:
    frame = apply(talk(job, Dialogue(), "op2"), other.read())
    job.start("b", counts(frame).format("nothing-of-this-name"))


def file_sink_in_update_mode(job: cc.Job, other: FileStream) -> None:
    """Bug: the plan was tried with another sink, and the restore took place."""
    frame = apply(talk(job, Dialogue(), "op2"), other.read())
    job.start("b", counts(frame).format("parquet").option("path", "/tmp/never-made"))


def missing_namespace(job: cc.Job, other: FileStream) -> None:
    frame = apply(talk(job, Dialogue(), "op2"), other.read())
    job.start("b", counts(frame).format("parquet"), table="no_such_namespace.b")


#: What Spark refuses of any query when it starts, whether or not the query has run.
STARTS: Mapping[Callable[[cc.Job, FileStream], None], str] = {
    impossible_output_mode: "start of b: Spark says: .STREAMING_OUTPUT_MODE",
    missing_format: "start of b: Spark says: .DATA_SOURCE_NOT_FOUND",
    file_sink_in_update_mode: "start of b: Spark says: .STREAMING_OUTPUT_MODE.UNSUPPORTED_DATASOURCE",
    missing_namespace: "start of b: Spark says: there is no table no_such_namespace.b, and no namespace",
}

CHANGES: Mapping[Callable[[cc.Job, FileStream], None], str] = {
    changed_parallelism: "parallelism of op2: 2 before, 3 now",
    renamed: "query of c: it is not in the checkpoint",
    renamed_operator: "operator of op2: it is not declared, its state would be left behind",
    removed: r"not start its queries \['b'\]",
    added: "query of c: it is not in the checkpoint",
    changed_model: "states of op2: .* is not a valid Stranger",
    changed_coordinator: "coordinator of op2: Stubborn refuses what was saved: it is not valid for Other",
    failing_rescale: "its rescale function .*not today",
    changed_aggregation: "plan of b: Spark says: .STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    changed_key: "plan of b: Spark says: .STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    no_aggregation: "plan of b: Spark says: .STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    another_source: "plan of b: Spark says: .*1.* sources in the checkpoint offsets and now there are .2.",
    # The others: test_start_check.py.
    file_sink_in_update_mode: STARTS[file_sink_in_update_mode],
}


def test_a_second_query_that_does_not_fit_leaves_the_job_where_it_was(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str, tmp_path: Path
) -> None:
    for change, says in CHANGES.items():
        with make_job(restore_from=savepoint) as job:
            handle = first(job, source)
            with pytest.raises(
                QueryNotStarted, match=r"\['b'\] are still missing. Use the handle of 'a' after job.start"
            ):
                handle.processAllAvailable()
            with pytest.raises(CoordControlError, match=says) as refused:
                change(job, other)
            assert exit_code_of(refused.value) == ExitCode.CONFIG
            assert job.status().queries == ()
    assert newest_restore(LocalFiles(), str(tmp_path / "jobs" / "job")) is None
    assert committed(make_job, source, other) == {"a": 3, "b": 3}


def test_all_queries_of_a_checkpoint_start_together(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str, tmp_path: Path
) -> None:
    with make_job(restore_from=savepoint) as job:
        handle = first(job, source)
        assert newest_restore(LocalFiles(), str(tmp_path / "jobs" / "job")) is None
        handles = [handle, second(job, other)]
        assert newest_restore(LocalFiles(), str(tmp_path / "jobs" / "job")) is not None
        for query in handles:
            query.processAllAvailable()
        eventually(lambda: stands(job) == {"a": 3, "b": 3})
        assert handle.id == job._driver.queries[next(iter(job._driver.queries))].spark_query.id
        # Nothing is left of what Spark was asked.
        assert not list((tmp_path / "jobs").rglob("*-check"))
        with pytest.raises(QueryNotRestored, match=r"query 'c' is not in .* restored with"):
            job.start("c", write(other.read()))


@pytest.mark.parametrize(("failing", "started"), [("a", []), ("c", ["a"])])
def test_a_query_that_cannot_start_after_the_restore_says_how_to_go_on(
    make_job: MakeJob,
    source: FileStream,
    other: FileStream,
    savepoint: str,
    tmp_path: Path,
    failing: str,
    started: list[str],
) -> None:
    """Bug: a way back was offered when queries had started, and their handles were called missing."""
    with make_job(restore_from=savepoint, allow_non_restored_state=True) as job:
        plain = write(source.read()).option("checkpointLocation", str(tmp_path / "plain"))
        taken = plain.queryName(f"job:{failing}").start()  # Spark refuses a second query of its name
        try:
            handles = {"a": first(job, source), "c": job.start("c", write(other.read()))}
            with pytest.raises(Exception, match=r"already active") as refused:
                second(job, other)
        finally:
            taken.stop()
        [note] = refused.value.__notes__
        assert "correct what failed" in note
        assert ("--undo" in note) is (not started)
        assert [query.name for query in job.status().queries] == started
        missing = sorted({"a", "b"} - set(started))
        with pytest.raises(QueryNotStarted, match=re.escape(f"{missing} are still missing")):
            handles[failing].processAllAvailable()


def test_a_mended_query_is_restored_by_the_same_driver(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str
) -> None:
    with make_job(restore_from=savepoint) as job:
        first(job, source)
        operator = talk(job, Dialogue(), "op2")
        frame = apply(operator, other.read())
        with pytest.raises(RestoreRefused, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
            job.start("b", counts(frame, F.max("value")))
        query = job.start("b", counts(frame))
        query.processAllAvailable()
        eventually(lambda: stands(job) == {"a": 3, "b": 3})


def test_queries_that_may_be_left_out_are_those_that_the_program_has_not_started_when_it_waits(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str
) -> None:
    with make_job(restore_from=savepoint, allow_non_restored_state=True) as job:
        handle = first(job, source)
        added_one = job.start("c", write(other.read()))
        assert job.status().queries == ()
        job.await_termination(0.0)
        for query in (handle, added_one):
            query.processAllAvailable()
        eventually(lambda: stands(job) == {"a": 3, "c": 3})


def test_a_plan_that_does_not_fit_the_state_fails_at_once_and_is_not_started_again(
    make_job: MakeJob, source: FileStream
) -> None:
    with make_job() as job:
        job.start("q", counts(source.read())).processAllAvailable()
    source.add(rows(3))
    with make_job(restart=cc.RestartPolicy(initial_seconds=3600.0)) as job:
        job.start("q", counts(source.read(), F.max("value")))
        with pytest.raises(QueryFailed, match=r"(?s)Spark rejects the plan of query 'q'.*STATE_STORE_VALUE") as failed:
            job.await_termination(100)
        assert job._driver.queries[next(iter(job._driver.queries))].restarts == 0
    assert exit_code_of(failed.value) == ExitCode.CONFIG


def test_one_stream_in_two_branches_is_restored(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    def branches(job: cc.Job, coordinator: Dialogue) -> DataFrame:
        frame = source.read()
        operator = talk(job, coordinator, parallelism=1)
        good = operator.apply(frame.filter("value % 2 = 0"), follow, schema=SCHEMA, partition_by=["key"])
        return good.union(frame.filter("value % 2 = 1"))

    path = str(tmp_path / "branches")
    with make_job() as job:
        job.start("q", write(branches(job, Dialogue()))).processAllAvailable()
        job.trigger_savepoint(target=path).wait(SECONDS)
    source.add(rows(3))
    coordinator = Dialogue()
    with make_job(restore_from=path) as job:
        job.start("q", write(branches(job, coordinator))).processAllAvailable()
    coordinator.check(range(0, 32, 2))


class Recalled(BaseModel):
    """`Memory` with a field under another name."""

    reports: int = 0
    numbers: list[int] = []
    seen: list[int] = []


def test_a_renamed_field_of_a_state_is_refused_by_a_restore_and_by_a_restart(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    def query(job: cc.Job, model: type[BaseModel]) -> Any:
        operator = job.operator("op", Dialogue(), parallelism=2, state=model, down=[Number], up=[Report])
        return job.start("q", write(apply(operator, source.read())))

    path = str(tmp_path / "savepoint")
    with make_job() as job:
        query(job, Memory).processAllAvailable()
        job.trigger_savepoint(target=path).wait(SECONDS)
    source.add(rows(3))
    with (
        make_job(restore_from=path) as job,
        pytest.raises(RestoreRefused, match="field values: it was saved, the model has no such field"),
    ):
        query(job, Recalled)
    with make_job() as job:
        query(job, Recalled)
        with pytest.raises(QueryFailed, match="field values: it was saved, the model has no such field") as failed:
            job.await_termination(100)
        assert exit_code_of(failed.value) == ExitCode.CONFIG
    with make_job() as job:  # nothing was lost
        coordinator = Dialogue()
        operator = job.operator("op", coordinator, parallelism=2, state=Memory, down=[Number], up=[Report])
        job.start("q", write(apply(operator, source.read()))).processAllAvailable()
    coordinator.check(range(32))


def test_a_refused_fork_leaves_nothing(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    path = tmp_path / "savepoint"
    with make_job() as job:
        job.start("q", counts(source.read())).processAllAvailable()
        job.trigger_savepoint(target=str(path)).wait(SECONDS)
    fork = tmp_path / "jobs" / "fork"
    with (
        make_job("fork", restore_from=str(path)) as job,
        pytest.raises(RestoreRefused, match="STATE_STORE_VALUE_SCHEMA"),
    ):
        job.start("q", counts(source.read(), F.max("value")))
    assert not fork.exists()
    victim = next((path / "queries" / "q" / "spark" / "offsets").glob("[0-9]*"))
    victim.write_bytes(b"")
    with pytest.raises(RestoreRefused, match="missing or damaged") as refused:
        make_job("fork", restore_from=str(path))
    assert exit_code_of(refused.value) == ExitCode.DATA
    assert not fork.exists()


def restore_from_outside(tmp_path: Path, savepoint: str, *, allow_non_restored_state: bool = False) -> str:
    """As `coordctl restore` does; returns the job's folder."""
    files, root = LocalFiles(), str(tmp_path / "jobs")
    request = RestoreRequest(ref=savepoint, allow_non_restored_state=allow_non_restored_state)
    restore_job(files, lambda path: files, request, root=root, job="job")
    return f"{root}/job"


def planned(folder: str, lineage: str) -> dict[str, set[str]]:
    """The epochs that Spark has planned, per query."""
    queries = Path(folder, "queries")
    return {
        query.name: {found.name for found in (query / lineage / "spark" / "offsets").glob("[0-9]*")}
        for query in queries.iterdir()
    }


def test_a_restore_from_outside_that_the_program_does_not_fit_runs_nothing_and_can_be_undone(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str, tmp_path: Path
) -> None:
    folder = restore_from_outside(tmp_path, savepoint)
    before = planned(folder, "lineage-000002")
    for change in (changed_parallelism, removed, added, changed_model, changed_aggregation):
        with make_job() as job:
            handle = first(job, source)
            with pytest.raises(
                QueryNotStarted, match=r"\['b'\] are still missing. Use the handle of 'a' after job.start"
            ):
                handle.processAllAvailable()
            with pytest.raises(
                CoordControlError, match=f"(?s){CHANGES[change]}.*coordctl restore JOB --undo"
            ) as refused:
                change(job, other)
            assert exit_code_of(refused.value) == ExitCode.CONFIG
            assert job.status().queries == ()
    assert planned(folder, "lineage-000002") == before
    assert undo_restore(LocalFiles(), folder).path == savepoint
    assert committed(make_job, source, other) == {"a": 3, "b": 3}


def test_all_queries_of_a_job_that_was_restored_from_outside_start_together(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str, tmp_path: Path
) -> None:
    folder = restore_from_outside(tmp_path, savepoint)
    with make_job() as job:
        handle = first(job, source)
        operator = talk(job, Dialogue(), "op2")
        frame = apply(operator, other.read())
        with pytest.raises(RestoreRefused, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
            job.start("b", counts(frame, F.max("value")))
        for query in (job.start("b", counts(frame)), handle):  # corrected
            query.processAllAvailable()
        eventually(lambda: stands(job) == {"a": 3, "b": 3})
        with pytest.raises(QueryNotRestored, match=r"query 'c' is not in .* restored with"):
            job.start("c", write(other.read()))
    with pytest.raises(RestoreNotUndone, match="has processed epochs since"):
        undo_restore(LocalFiles(), folder)
    with make_job() as job:  # the restore is over
        job.start("c", write(other.read())).processAllAvailable()


def test_a_query_that_has_run_since_the_restore_lets_the_others_start_at_once(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str, tmp_path: Path
) -> None:
    """As after a crash between the starts of two queries."""
    restore_from_outside(tmp_path, savepoint)
    with make_job() as job:
        first(job, source)
        second(job, other).stop()
        job._driver.queries[QueryName("a")].spark_query.processAllAvailable()
    lineage = tmp_path / "jobs" / "job" / "queries" / "b" / "lineage-000002"
    for epoch in ("offsets/3", "commits/3"):
        (lineage / "spark" / epoch).unlink(missing_ok=True)
    with make_job() as job:
        first(job, source).processAllAvailable()
        with pytest.raises(PlanRefused, match="Spark rejects the plan of query 'b'"):
            changed_aggregation(job, other)
    with make_job() as job:
        second(job, other).processAllAvailable()
        eventually(lambda: stands(job) == {"b": 3})


def test_queries_may_be_left_out_of_a_job_that_was_restored_from_outside_if_that_was_allowed(
    make_job: MakeJob, source: FileStream, other: FileStream, savepoint: str, tmp_path: Path
) -> None:
    restore_from_outside(tmp_path, savepoint, allow_non_restored_state=True)
    with make_job() as job:
        handle = first(job, source)
        added_one = job.start("c", write(other.read()))
        assert job.status().queries == ()
        job.await_termination(0.0)
        for query in (handle, added_one):
            query.processAllAvailable()
        eventually(lambda: stands(job) == {"a": 3, "c": 3})
