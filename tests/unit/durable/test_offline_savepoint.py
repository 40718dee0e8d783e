"""Savepoints of jobs that do not run, and of Spark's own directories."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder, Process
from coord_control.durable.job_folder.lineage import current_lineage, open_lineage, seeded, spark_position
from coord_control.durable.job_folder.lineage_record import Reached
from coord_control.durable.job_folder.sink_record import SinkRecord, write_sink
from coord_control.durable.offline.offline_restore import check_restore, restore_job
from coord_control.durable.offline.offline_savepoint import adopt, own_job, save
from coord_control.durable.offline.undo import undo_restore
from coord_control.durable.restore.export import export_query
from coord_control.durable.restore.request import RestoreRequest
from coord_control.durable.restore.seeds import Redistribution, seed_lineage
from coord_control.errors import (
    Fenced,
    ForkNameTaken,
    JobRunning,
    NothingToSave,
    ParallelismFixed,
    RestoreNotUndone,
    RestoreRefused,
    SavepointTargetTaken,
    StateFileMissing,
)
from coord_control.ids import BarrierId, Epoch, Generation, SubtaskIndex
from coord_control.protocol.records import Ack, Begin, EventBatch, RunStarted
from coord_control.protocol.recovery import Facts, RecoveredOperator, recover
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles
from tests.unit.durable.restore_kit import JOB, OP, QUERIES, RECORD, folder, run_spark

DELAYS, RAW = QUERIES
EVENT = EventBatch(0, 1, b'{"n":1}')


def ran(files: Files, *, planned: bool = False) -> None:
    """Both queries ran to epoch 3 under generation 1 and stopped; ``planned``: the driver died in epoch 4."""
    claim = generations.claim(files, join(JOB, "generations"), Holder.of([os.getpid()]))
    for query in QUERIES:
        operators = {OP: RECORD} if query == DELAYS else {}
        lineage = open_lineage(files, folder(query), query, operators)
        run_spark(files, lineage.checkpoint, 3, planned=planned and query == DELAYS)
        if not operators:
            continue
        store = EpochStore(files, lineage.epochs, Generation(1), 100)
        store.append([Begin(OP, Epoch(3), BarrierId(9), b"before 3", {SubtaskIndex(1): (EVENT,)})])
        store.append([Ack(OP, SubtaskIndex(0), Epoch(3), 7, b'{"s":0}', (EVENT,))])
        if planned:
            store.append([Begin(OP, Epoch(4), BarrierId(10), b"before 4", {SubtaskIndex(0): (EVENT, EVENT)})])
            store.append([Ack(OP, SubtaskIndex(0), Epoch(4), 8, b"of epoch 4", ())])
    claim.release()


def saved(files: Files, **options: str) -> CheckpointMetadata:
    made = save(files, JOB, **options)  # type: ignore[arg-type]
    metadata = read_metadata(files, made.path)
    assert metadata == made.metadata
    assert list(verify_files(files, made.path, metadata)) == []
    return metadata


def test_a_stopped_job_is_saved_as_it_would_recover(files: MemoryFiles) -> None:
    ran(files)
    metadata = saved(files, label="end")
    assert (metadata.checkpoint, metadata.generation, metadata.kind) == (1, 2, "savepoint")
    assert {name: query.epoch for name, query in metadata.queries.items()} == {DELAYS: 3, RAW: 3}
    operator = metadata.operators[OP]
    assert operator.coordinator_state == b"before 3"
    assert operator.subtask_states == {0: b'{"s":0}'}
    assert operator.down == {1: (EVENT,)}  # had no rows in epoch 3
    assert [entry.events for entry in operator.up] == [(EVENT,)]
    assert (operator.parallelism, operator.state) == (RECORD.parallelism, RECORD.state)
    assert Catalog(files, JOB).resolve("end").checkpoint == 1


def test_a_dead_job_is_saved_with_the_epoch_that_it_died_in(files: MemoryFiles) -> None:
    ran(files, planned=True)
    made = save(files, JOB)
    assert made.replayed == {DELAYS: 4}
    operator = made.metadata.operators[OP]
    assert operator.coordinator_state == b"before 4"
    assert operator.subtask_states == {0: b'{"s":0}'}
    assert operator.down == {}
    replay = operator.cut(OP).replay
    assert replay is not None
    assert (replay.epoch, replay.inputs) == (4, {0: (EVENT, EVENT)})
    assert replay.acks == {0: Ack(OP, SubtaskIndex(0), Epoch(4), 8, b"of epoch 4", ())}
    query = made.metadata.queries[DELAYS]
    assert {"offsets/4", "sources/0/4"} <= {entry.path for entry in query.files}
    assert (query.epoch, query.planned, query.planned_offsets) == (3, 4, ({"logOffset": 4},))
    assert query.reached == Reached(committed=Epoch(3), planned=Epoch(4))


@pytest.mark.parametrize(
    ("entries", "planned", "position"),
    [(4, False, "3"), (5, False, "3"), (5, True, "4"), (4, True, "3"), (3, False, None), (0, False, None)],
)
def test_a_log_that_cannot_be_seen_is_not_taken_for_an_empty_one(
    files: MemoryFiles, entries: int, planned: bool, position: str | None
) -> None:
    """Fault: of an output that was away a savepoint recorded that it was empty, and going back there emptied it."""
    ran(files, planned=planned)
    lineage = current_lineage(files, folder(DELAYS), DELAYS)
    assert lineage is not None
    write_sink(files, lineage.folder, SinkRecord(kind="file", place="/out"))
    for epoch in range(entries):
        files.replace(f"/out/_spark_metadata/{epoch}", b"v1")
    query = saved(files).queries[DELAYS]
    assert query.sink is not None
    assert query.sink.position == position
    assert len(query.sink_files) == int(position or -1) + 1
    assert ("/out/_spark_metadata/3 is missing: epoch 3 is committed" in query.sink.unknown) == (position is None)


def recovered_in(files: MemoryFiles, generation: int) -> RecoveredOperator:
    """Where the operator goes on, as its next driver finds it."""
    lineage = open_lineage(files, folder(DELAYS), DELAYS, {OP: RECORD})
    seed_lineage(files, lineage, Generation(generation), {OP: (RECORD.parallelism, None)})
    seeded(files, lineage)  # it starts
    committed, planned = spark_position(files, lineage.checkpoint)
    store = EpochStore(files, lineage.epochs, Generation(generation), 100)
    store.committed(committed)
    return recover(Facts(tuple(store.open()), committed, planned), OP)


def test_a_restore_of_a_dead_job_recovers_what_the_job_itself_would(files: MemoryFiles) -> None:
    ran(files, planned=True)
    in_place = recovered_in(files.copy(), 5)
    save(files, JOB)
    for fork in (None, "fork"):
        disk = restored(files, fork)
        lineage = current_lineage(disk, f"/jobs/{fork or 'flights'}/queries/{DELAYS}", DELAYS)
        assert lineage is not None
        assert lineage.restored is not None
        assert spark_position(disk, lineage.checkpoint) == (3, 4)
        original = join(folder(DELAYS), "lineage-000001/spark/offsets/4")
        assert disk.read(join(lineage.checkpoint, "offsets/4")) == files.read(original)
    found = recovered_in(restored(files), 9)
    assert dataclasses.replace(found, barrier=in_place.barrier, replay=None) == dataclasses.replace(
        in_place, replay=None
    )
    assert found.replay is not None
    assert in_place.replay is not None
    assert (found.replay.inputs, found.replay.acks) == (in_place.replay.inputs, in_place.replay.acks)


def restored(files: MemoryFiles, fork: str | None = None) -> MemoryFiles:
    disk = files.copy()
    restore_job(disk, lambda path: disk, RestoreRequest(ref="1", as_name=fork), root="/jobs", job="flights")
    return disk


def test_what_a_restored_epoch_has_done_is_not_forgotten_by_the_next_start(files: MemoryFiles) -> None:
    ran(files, planned=True)
    save(files, JOB)
    disk = restored(files)
    first = recovered_in(disk, 3)
    assert first.replay is not None
    # The epoch runs, its subtask acknowledges, the driver dies before Spark commits it.
    lineage = current_lineage(disk, folder(DELAYS), DELAYS)
    assert lineage is not None
    assert lineage.restored is None
    store = EpochStore(disk, lineage.epochs, Generation(3), 100)
    store.open()
    ack = Ack(OP, SubtaskIndex(0), Epoch(4), 21, b"of the new run", ())
    store.append([RunStarted(Generation(3), Epoch(3), Epoch(4)), ack])
    again = recovered_in(disk.copy(), 4)
    assert again.replay is not None
    assert again.replay.acks == {0: ack}
    # And a savepoint of it keeps that too.
    assert save(disk, JOB).metadata.operators[OP].cut(OP).replay == again.replay


def test_a_restored_epoch_that_never_started_is_saved_again_with_its_inputs(files: MemoryFiles) -> None:
    ran(files, planned=True)
    first = save(files, JOB).metadata
    second = save(restored(files), JOB).metadata
    assert second.operators == first.operators
    assert second.queries[DELAYS].planned == 4
    assert second.queries[DELAYS].lineage == "lineage-000002"


def test_the_restore_of_a_planned_epoch_can_be_undone_until_it_may_have_run(files: MemoryFiles) -> None:
    ran(files, planned=True)
    save(files, JOB)
    disk = restored(files)
    checked = disk.copy()  # its states are in place, and Spark has refused the plan
    lineage = open_lineage(checked, folder(DELAYS), DELAYS, {OP: RECORD})
    seed_lineage(checked, lineage, Generation(3), {OP: (RECORD.parallelism, None)})
    for undone in (disk.copy(), checked):
        undo_restore(undone, JOB)
        before = current_lineage(undone, folder(DELAYS), DELAYS)
        assert before is not None
        assert before.name == "lineage-000001"
    recovered_in(disk, 3)
    with pytest.raises(RestoreNotUndone, match="has processed epochs since"):
        undo_restore(disk, JOB)


def test_a_crash_while_a_planned_epoch_is_put_in_place_does_no_harm(files: MemoryFiles) -> None:
    ran(files, planned=True)
    save(files, JOB)
    disk = restored(files)
    expected = recovered_in(disk.copy(), 9)
    count = CrashAt()
    recovered_in(disk.copy().seen_by(count), 9)
    for point in range(1, count.passed + 1):
        crashed = disk.copy()
        with pytest.raises(Crash):
            recovered_in(crashed.seen_by(CrashAt(point)), 9)
        assert recovered_in(crashed, 10) == expected


def test_subtasks_of_a_planned_epoch_are_not_redistributed(files: MemoryFiles) -> None:
    ran(files, planned=True)
    save(files, JOB)
    disk = restored(files)
    more = RECORD.model_copy(update={"parallelism": 3})
    lineage = open_lineage(disk, folder(DELAYS), DELAYS, {OP: more}, rescalable=[OP])
    with pytest.raises(ParallelismFixed, match=r"declare 2 until that epoch is committed; then take a savepoint"):
        seed_lineage(disk, lineage, Generation(9), {OP: (3, lambda old, before: old)})
    assert recovered_in(disk, 9).replay is not None, "and declaring 2 again works"


def test_a_planned_epoch_in_which_no_subtask_has_a_part_lets_states_be_redistributed(files: MemoryFiles) -> None:
    ran(files)
    checkpoint = join(folder(DELAYS), "lineage-000001/spark")
    run_spark(files, checkpoint, 3, planned=True)
    save(files, JOB)
    disk = restored(files)
    more = RECORD.model_copy(update={"parallelism": 3})
    lineage = open_lineage(disk, folder(DELAYS), DELAYS, {OP: more}, rescalable=[OP])
    seed_lineage(disk, lineage, Generation(9), {OP: (3, lambda old, before: Redistribution({}, old.events))})
    store = EpochStore(disk, lineage.epochs, Generation(9), 100)
    found = recover(Facts(tuple(store.open()), Epoch(3), Epoch(4)), OP)
    assert found.mailboxes == {1: (EVENT,)}
    assert found.replay is not None
    assert found.replay.inputs == {}


@pytest.mark.parametrize("planned", [False, True])
def test_before_the_first_commit_the_first_offsets_are_kept(files: MemoryFiles, planned: bool) -> None:
    """Fault: a source that has chosen where to begin (Kafka's latest) chose again after a restore."""
    lineage = open_lineage(files, folder(RAW), RAW, {})
    run_spark(files, lineage.checkpoint, -1, planned=planned)
    files.replace(join(lineage.checkpoint, "sources/0/0"), b'0v1\n{"topic":{"0":17}}')
    metadata = saved(files)
    query = metadata.queries[RAW]
    assert (query.epoch, query.planned) == (-1, 0 if planned else -1)
    assert {entry.path for entry in query.files} == {"sources/0/0", *(["offsets/0"] if planned else [])}
    restore_job(files, lambda path: files, RestoreRequest(ref="1"), root="/jobs", job="flights")
    again = open_lineage(files, folder(RAW), RAW, {})
    assert again.name == "lineage-000002"
    assert files.read(join(again.checkpoint, "sources/0/0")) == b'0v1\n{"topic":{"0":17}}'
    assert spark_position(files, again.checkpoint) == (-1, query.planned)


def test_a_plain_directory_that_has_begun_and_never_committed_is_adopted(files: MemoryFiles) -> None:
    run_spark(files, "/spark/new", -1, planned=True)
    files.create("/spark/new/metadata", b'{"id":"its-own"}')
    made = adopt(files, "/spark/new", "/savepoints/adopted", files, job="flights", query=DELAYS)
    assert made.replayed == {DELAYS: 0}


def test_what_was_restored_and_never_started_is_saved_again(files: MemoryFiles) -> None:
    ran(files)
    first = saved(files)
    restore_job(files, lambda path: files, RestoreRequest(ref="1"), root="/jobs", job="flights")
    second = saved(files)
    assert second.operators == first.operators
    assert second.queries[DELAYS].lineage == "lineage-000002"


def test_a_job_with_a_driver_is_left_alone(files: MemoryFiles) -> None:
    ran(files)
    generations.claim(files, join(JOB, "generations"), Holder.of([os.getpid()]))
    before = files.paths()
    with pytest.raises(JobRunning, match=r"is running \(generation 2"):
        save(files, JOB, force=True)
    assert files.paths() == before


def test_a_driver_that_cannot_be_looked_at_is_fenced_off_only_on_request(files: MemoryFiles) -> None:
    ran(files)
    far = Holder(host="far", boot="1", namespace="1", processes=(Process(pid=1, started="1"),))
    theirs = generations.claim(files, join(JOB, "generations"), far)
    with pytest.raises(JobRunning, match=r"may be running .*use --force"):
        save(files, JOB)
    assert theirs.is_current()
    slept: list[float] = []
    with own_job(files, JOB, force=True, sleep=slept.append) as claim:
        assert (claim.generation, theirs.is_current(), len(slept)) == (3, False, 1)
    with own_job(files, JOB) as claim:
        assert claim.is_previous_released()


@pytest.mark.parametrize("creates_atomically", [True, False])
def test_a_driver_that_starts_at_the_same_moment_is_left_alone(creates_atomically: bool) -> None:
    """Bug: a command that had looked before the driver claimed took the next number, and fenced it."""
    withdrawn = 0
    for point in range(1, 14):
        disk = MemoryFiles(creates_atomically=creates_atomically)
        ran(disk)
        drivers: list[generations.Claim] = []
        meeting = MeetAt(point, functools.partial(start_driver, disk, drivers))
        try:
            with own_job(disk.seen_by(meeting), JOB) as claim:
                assert claim.is_current() is (not drivers)
        except JobRunning:
            withdrawn += 1
        assert all(driver.is_current() for driver in drivers)
    assert withdrawn


class MeetAt(CrashAt):
    """At one of the points where a process could die, something else happens."""

    def __init__(self, point: int, meet: Callable[[], None]) -> None:
        super().__init__(point)
        self._meet = meet

    def _pass(self, where: str) -> None:
        try:
            super()._pass(where)
        except Crash:
            self._meet()


def start_driver(files: Files, drivers: list[generations.Claim]) -> None:
    holder = Holder.of([os.getpid()])
    drivers.append(generations.claim(files, join(JOB, "generations"), holder, sleep=lambda seconds: None))


def test_a_driver_that_starts_meanwhile_ends_the_savepoint(files: MemoryFiles) -> None:
    ran(files)

    class Overtaken:
        def before_write(self, path: str) -> None:
            if path.endswith("_metadata") and files.list(join(JOB, "generations"))[-1] != "3.json":
                generations.claim(files, join(JOB, "generations"), Holder.of([os.getpid()]))

        def after_write(self, path: str) -> None:
            if "/savepoints/" in path and files.list(join(JOB, "generations"))[-1] != "3.json":
                generations.claim(files, join(JOB, "generations"), Holder.of([os.getpid()]))

    with pytest.raises(Fenced):
        save(files.seen_by(Overtaken()), JOB)
    assert not [entry for entry in Catalog(files, JOB).entries() if entry.is_completed]


def test_a_crash_leaves_no_savepoint_or_a_whole_one(files: MemoryFiles) -> None:
    ran(files)
    count = CrashAt()
    save(files.copy().seen_by(count), JOB)
    for point in range(1, count.passed + 1):
        disk = files.copy()
        with pytest.raises(Crash):
            save(disk.seen_by(CrashAt(point)), JOB)
        for entry in Catalog(disk, JOB).entries():
            if entry.is_completed:
                metadata = read_metadata(disk, entry.path)
                assert metadata is not None
                assert list(verify_files(disk, entry.path, metadata)) == []
        newest = generations.newest_claim(disk, join(JOB, "generations"))
        assert newest is not None
        disk.replace(join(JOB, "generations", f"{newest[0].generation}.released"), b"")  # it is dead
        assert saved(disk).operators[OP].coordinator_state == b"before 3"


def test_there_must_be_something_to_save(files: MemoryFiles) -> None:
    with pytest.raises(NothingToSave):
        save(files, "/jobs/typo")
    assert files.paths() == []
    ran(files)
    lineage = current_lineage(files, folder(DELAYS), DELAYS)
    assert lineage is not None
    files.delete(f"{lineage.checkpoint}/state/0/0/4.snapshot")
    with pytest.raises(StateFileMissing):
        save(files, JOB)
    assert not Catalog(files, JOB).entries()


# Restore without a driver.


def test_a_job_is_restored_and_its_driver_finds_the_states(files: MemoryFiles) -> None:
    ran(files)
    saved(files)
    restored = restore_job(files, lambda path: files, RestoreRequest(ref="latest"), root="/jobs", job="flights")
    assert restored.record.queries == {DELAYS: "lineage-000002", RAW: "lineage-000002"}
    lineage = open_lineage(files, folder(DELAYS), DELAYS, {OP: RECORD})
    seed_lineage(files, lineage, Generation(9), {OP: (2, None)})
    store = EpochStore(files, lineage.epochs, Generation(9), 100)
    assert {type(record) for record in store.open()} == {Begin, Ack}
    # An explicit restore is done as often as it is asked for.
    again = restore_job(files, lambda path: files, RestoreRequest(ref="latest"), root="/jobs", job="flights")
    assert again.record.queries[DELAYS] == "lineage-000003"


def test_a_fork_begins_above_the_generation_of_the_original(files: MemoryFiles) -> None:
    ran(files)
    for _ in range(3):
        with own_job(files, JOB):
            pass
    metadata = saved(files)
    assert metadata.generation == 5
    request = RestoreRequest(ref="latest", as_name="copy")
    restored = restore_job(files, lambda path: files, request, root="/jobs", job="flights")
    assert (restored.record.generation, restored.record.is_fork) == (6, True)
    original = current_lineage(files, folder(DELAYS), DELAYS)
    fork = current_lineage(files, "/jobs/copy/queries/delays", DELAYS)
    assert original is not None
    assert fork is not None
    assert fork.query_id != original.query_id
    assert original.name == "lineage-000001"
    with pytest.raises(RestoreRefused, match=r"the job has run already.*choose another name"):
        restore_job(files, lambda path: files, request, root="/jobs", job="flights")


def test_a_fork_under_the_name_of_its_original_is_no_restore_of_it(files: MemoryFiles) -> None:
    with pytest.raises(ForkNameTaken, match=r"'flights' is the job itself.*leave .*--as.* out.*choose another name"):
        check_restore(
            files, lambda path: files, RestoreRequest(ref="latest", as_name="flights"), root="/jobs", job="flights"
        )


def test_the_check_changes_nothing(files: MemoryFiles) -> None:
    ran(files)
    saved(files)
    before = {name: files.read(name) for name in files.paths()}
    path, checks = check_restore(files, lambda path: files, RestoreRequest(ref="1"), root="/jobs", job="flights")
    assert path == f"{JOB}/savepoints/1"
    assert {check.verdict.value for check in checks} == {"ok"}
    assert {name: files.read(name) for name in files.paths()} == before


# A directory of Spark's own.


@pytest.fixture
def plain(files: MemoryFiles) -> str:
    run_spark(files, "/spark/checkpoint", 3, planned=True)
    files.create("/spark/checkpoint/metadata", b'{"id":"its-own"}')
    return "/spark/checkpoint"


def test_a_plain_directory_is_adopted_and_restored_into_a_job(files: MemoryFiles, plain: str) -> None:
    made = adopt(files, plain, "/savepoints/adopted", files, job="flights", query=DELAYS)
    assert made.replayed == {DELAYS: 4}
    assert list(verify_files(files, made.path, made.metadata)) == []
    restore_job(files, lambda path: files, RestoreRequest(ref=made.path), root="/jobs", job="flights")
    lineage = open_lineage(files, folder(DELAYS), DELAYS, {})
    assert (lineage.query_id, lineage.name) == ("its-own", "lineage-000001")
    assert files.list(join(lineage.checkpoint, "commits")) == ["2", "3"]
    assert files.list(join(lineage.checkpoint, "offsets")) == ["2", "3", "4"]
    with pytest.raises(SavepointTargetTaken):
        adopt(files, plain, "/savepoints/adopted", files, job="flights", query=DELAYS)


def test_what_is_not_a_checkpoint_of_spark_is_not_adopted(files: MemoryFiles, plain: str) -> None:
    with pytest.raises(NothingToSave, match="no file `metadata`"):
        adopt(files, "/spark", "/target", files, job="j", query=DELAYS)
    files.create("/new/metadata", b'{"id":"x"}')
    with pytest.raises(NothingToSave, match="never begun"):
        adopt(files, "/new", "/target", files, job="j", query=DELAYS)
    files.delete(f"{plain}/state/0/0/4.snapshot")
    with pytest.raises(StateFileMissing):
        adopt(files, plain, "/target", files, job="j", query=DELAYS)
    assert not files.list("/target")


def test_a_query_is_given_back_to_plain_spark(files: MemoryFiles, plain: str) -> None:
    made = adopt(files, plain, "/savepoints/adopted", files, job="flights", query=DELAYS)
    with open_checkpoint(files, made.path) as source:
        export_query(files, source, DELAYS, "/plain/again")
        export_query(files, source, DELAYS, "/plain/other", new_id=True)
        with pytest.raises(SavepointTargetTaken):
            export_query(files, source, DELAYS, "/plain/again")
    assert json.loads(files.read("/plain/again/metadata")) == {"id": "its-own"}
    assert json.loads(files.read("/plain/other/metadata")) != {"id": "its-own"}
    names = {info.path for info in files.walk("/plain/again")}
    assert names == {"metadata", *(entry.path for entry in made.metadata.queries[DELAYS].files)}


def test_on_a_disk(tmp_path: Path) -> None:
    files = LocalFiles()
    run_spark(files, str(tmp_path / "live"), 3)
    files.create(str(tmp_path / "live" / "metadata"), b'{"id":"its-own"}')
    made = adopt(files, str(tmp_path / "live"), str(tmp_path / "saved"), files, job="j", query=DELAYS)
    assert made.copied_bytes == 0
    assert made.linked_bytes == made.metadata.size > 0
