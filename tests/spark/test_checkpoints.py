"""Checkpoints and savepoints of running jobs on real Spark: taken, retained, refused, aborted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import coord_control as cc
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, decode_metadata
from coord_control.errors import CheckpointNotCompleted
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    Memory,
    Trouble,
    apply,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream


def metadata(path: str) -> CheckpointMetadata:
    file = Path(path) / "_metadata"
    return decode_metadata(str(file), file.read_bytes())


def committed(job: cc.Job) -> int:
    return job.status().queries[0].committed


def run(job: cc.Job, source: FileStream, coordinator: cc.OperatorCoordinator) -> None:
    """A query that goes on for ever, with every row of the source behind it."""
    job.start("q", write(apply(talk(job, coordinator), source.read())).trigger(processingTime="50 milliseconds"))
    eventually(lambda: committed(job) == 2)


def test_a_savepoint_holds_both_ends_of_the_dialogue(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    job = make_job()
    run(job, source, Dialogue())
    taken = job.trigger_savepoint(target=str(tmp_path / "mine"), label="before-upgrade").wait(SECONDS)
    with pytest.raises(CheckpointNotCompleted, match="label_taken"):
        job.trigger_savepoint(label="before-upgrade").wait(SECONDS)
    with pytest.raises(CheckpointNotCompleted, match="invalid_target"):
        job.trigger_savepoint(target=str(tmp_path / "mine")).wait(SECONDS)
    assert taken.path == str(tmp_path / "mine")
    found = metadata(taken.path)
    assert (found.kind, found.label, found.checkpoint) == ("savepoint", "before-upgrade", taken.id)
    assert found.queries["q"].epoch == committed(job)  # type: ignore[index]
    snapshot = found.operators["op"]  # type: ignore[index]
    states = [Memory.model_validate_json(state) for state in snapshot.subtask_states.values() if state]
    assert sorted(value for state in states for value in state.values) == list(range(24))
    # What the coordinator has sent is what the subtasks have seen and what is on its way to them.
    assert snapshot.coordinator_state is not None
    sent = json.loads(snapshot.coordinator_state)["sent"]
    for subtask, state in snapshot.subtask_states.items():
        waiting = sum(batch.length for batch in snapshot.down.get(subtask, ()))
        assert state is not None
        assert sent[str(subtask)] == len(Memory.model_validate_json(state).numbers) + waiting
    for entry in found.queries["q"].files:  # type: ignore[index]
        assert (tmp_path / "mine" / "queries" / "q" / "spark" / entry.path).stat().st_size == entry.size


def test_an_idle_job_checkpoints_at_once_and_keeps_the_newest(make_job: MakeJob, source: FileStream) -> None:
    job = make_job(checkpoints=cc.CheckpointOptions(retained=2))
    run(job, source, Dialogue())
    taken = [job.trigger_checkpoint().wait(SECONDS) for _ in range(4)]
    assert [each.id for each in taken] == [1, 2, 3, 4]
    eventually(lambda: [Path(each.path, "_metadata").exists() for each in taken] == [False, False, True, True])
    overview = job.checkpoint_statistics()
    assert (overview.counts.completed, overview.counts.failed) == (4, 0)


def test_the_same_key_is_the_same_checkpoint(make_job: MakeJob, source: FileStream) -> None:
    job = make_job("again")
    run(job, source, Dialogue())
    first = job.trigger_savepoint(key="k").wait(SECONDS)
    assert job.trigger_savepoint(key="k").wait(SECONDS) == first
    with pytest.raises(CheckpointNotCompleted, match="key"):
        job.trigger_checkpoint(key="k").wait(SECONDS)
    job.stop()
    # Also in the next driver.
    job = make_job("again")
    run(job, source, Dialogue())
    again = job.trigger_savepoint(key="k").wait(SECONDS)
    assert again == first
    assert first.statistics is not None
    assert again.statistics is not None
    assert again.statistics.queries == first.statistics.queries, "they are part of the metadata"
    assert (
        again.statistics.metadata_bytes
        == first.statistics.metadata_bytes
        == Path(first.path, "_metadata").stat().st_size
    )
    assert first.statistics.queries[0].pin_seconds
    assert job.trigger_savepoint(key="other").wait(SECONDS).id > first.id


def test_a_query_without_operators_is_taken_at_its_last_commit(make_job: MakeJob, source: FileStream) -> None:
    job = make_job()
    counts = source.read().groupBy("key").count()
    job.start("counts", counts.writeStream.format("noop").outputMode("update"))
    eventually(lambda: committed(job) == 2)
    found = metadata(job.trigger_savepoint().wait(SECONDS).path)
    query = found.queries["counts"]  # type: ignore[index]
    assert query.epoch == 2
    assert [operator.name for operator in query.state_operators] == ["stateStoreSave"]


def check_nothing_was_processed_after(path: str) -> None:
    """The last commit of query ``q`` of a job that has stopped is the one that its savepoint holds."""
    boundary = metadata(path).queries["q"].epoch  # type: ignore[index]
    [commits] = Path(path).parents[1].glob("queries/q/lineage-*/spark/commits")
    assert max(int(path.name) for path in commits.iterdir() if path.name.isdigit()) == boundary


class Refuses(Dialogue):
    """Gives no state while told so."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False

    def checkpoint_coordinator(self, checkpoint_id: int, result: cc.SnapshotResult) -> None:
        if self.refuses:
            result.fail(Trouble("not now"))
        else:
            super().checkpoint_coordinator(checkpoint_id, result)


def test_a_coordinator_that_refuses_fails_one_checkpoint_and_not_the_job(make_job: MakeJob, source: FileStream) -> None:
    job, coordinator = make_job(), Refuses()
    run(job, source, coordinator)
    coordinator.refuses = True
    with pytest.raises(CheckpointNotCompleted, match="not now") as failed:
        job.trigger_checkpoint().wait(SECONDS)
    assert failed.value.reason == "coordinator_failed"
    coordinator.refuses = False
    assert job.trigger_checkpoint().wait(SECONDS).id == 2
    assert job.status().queries[0].restarts == 0
    source.add(rows(3))
    eventually(lambda: committed(job) == 3)


def test_stop_with_savepoint_processes_nothing_after_it(
    make_job: MakeJob, source: FileStream, add_later: Callable[[], None]
) -> None:
    job = make_job()
    run(job, source, Dialogue())
    add_later()
    taken = job.stop_with_savepoint()
    check_nothing_was_processed_after(taken.path)


@pytest.fixture
def add_later(source: FileStream) -> Callable[[], None]:
    """Rows that arrive while somebody stops the job."""

    def add() -> None:
        for epoch in range(3, 9):
            source.add(rows(epoch))

    return add
