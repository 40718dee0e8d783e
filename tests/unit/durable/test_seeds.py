"""What a restored lineage's operators recover from, whatever was declared, and whatever happened between two starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.job_folder.lineage import Lineage, LineageOperator, current_lineage, open_lineage
from coord_control.durable.restore.seeds import Redistribution, Rescale, read_seed, seed_lineage
from coord_control.errors import (
    DamagedRecord,
    EventTypesChanged,
    LineageMismatch,
    MissingRecord,
    NonRestoredState,
    OperatorsChanged,
    ParallelismChanged,
)
from coord_control.ids import NO_CHECKPOINT, Epoch, Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.cut import cut_of
from coord_control.protocol.records import Ack, Begin, EventBatch, LiveFrozen, LiveInForce
from coord_control.protocol.recovery import Facts, Outbox, RecoveredOperator, recover
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles
from tests.unit.durable.restore_kit import (
    JOB,
    OP,
    QUERIES,
    RECORD,
    folder,
    opened,
    operator_snapshot,
    prepared,
    put_checkpoint,
    run_before,
)

QUERY = QUERIES[0]
BOUNDARY = Epoch(41)


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    run_before(files)
    prepared(files, put_checkpoint(files, "/savepoints/one")).commit()
    return files


def start(
    files: MemoryFiles, generation: int = 5, *, parallelism: int = 2, rescale: Rescale | None = None
) -> RecoveredOperator:
    """What a driver does before Spark starts."""
    record = RECORD.model_copy(update={"parallelism": parallelism})
    lineage = opened(files, QUERY, operators={OP: record}, rescalable=[OP] if rescale else [])
    seed_lineage(files, lineage, Generation(generation), {OP: (parallelism, rescale)})
    return recovered(files, lineage, generation)


def recovered(files: MemoryFiles, lineage: Lineage, generation: int) -> RecoveredOperator:
    store = EpochStore(files, lineage.epochs, Generation(generation), 100)
    store.committed(BOUNDARY)
    records = store.open()
    store.check_reaches(BOUNDARY)
    return recover(Facts(tuple(records), BOUNDARY, BOUNDARY), OP)


def plan(files: MemoryFiles) -> None:
    """Spark plans the first epoch after the restore."""
    lineage = current_lineage(files, folder(QUERY), QUERY)
    assert lineage is not None
    files.create(f"{lineage.checkpoint}/offsets/42", b"v1")


def double(old: Redistribution, parallelism: int) -> Redistribution:
    """Each subtask becomes two."""
    assert parallelism == 2
    states = {SubtaskIndex(2 * index): state for index, state in old.states.items()}
    return Redistribution(states, {SubtaskIndex(2 * index + 1): events for index, events in old.events.items()})


def merge(old: Redistribution, parallelism: int) -> Redistribution:
    return Redistribution({SubtaskIndex(0): b"all"}, {})


def test_operators_recover_what_the_checkpoint_holds(files: MemoryFiles) -> None:
    found = start(files)
    assert cut_of(found, OP) == operator_snapshot().cut(OP)
    assert found.coordinator_state == b"the coordinator's"
    assert found.barrier == read_seed(files, opened(files, QUERY).folder).barrier
    assert found.replay is None
    # Again, by the same driver and by later ones.
    assert start(files) == found
    assert start(files, 9) == found


def test_a_checkpoint_of_a_job_that_did_not_run_has_states_to_go_back_to(files: MemoryFiles) -> None:
    source = put_checkpoint(files, "/savepoints/two", checkpoint=8)
    idle = source.metadata.model_copy(update={"barrier": NO_CHECKPOINT})
    prepared(files, CheckpointSource(source.path, idle, files)).commit()
    found = start(files)
    assert found.coordinator_state == b"the coordinator's"
    # With that id its coordinator would not be reset.
    assert found.barrier != NO_CHECKPOINT


def test_once_something_has_run_nothing_is_seeded(files: MemoryFiles) -> None:
    found = start(files)
    plan(files)
    lineage = opened(files, QUERY)
    assert lineage.restored is None
    before = files.paths()
    seed_lineage(files, lineage, Generation(6), {OP: (2, None)})
    assert files.paths() == before
    assert recovered(files, lineage, 6) == found


def test_the_checkpoint_of_spark_cannot_be_set_back_behind_the_restore(files: MemoryFiles) -> None:
    start(files)
    store = EpochStore(files, opened(files, QUERY).epochs, Generation(6), 100)
    store.open()
    store.check_reaches(BOUNDARY)
    with pytest.raises(MissingRecord):
        store.check_reaches(Epoch(BOUNDARY - 1))


def test_a_crash_between_a_restore_and_the_first_epoch_does_no_harm(files: MemoryFiles) -> None:
    expected = start(files.copy())
    start(files, 5, parallelism=4, rescale=double)  # this one was started and changed again
    count = CrashAt()
    start(files.copy().seen_by(count), 6)
    assert count.passed > 4
    for point in range(1, count.passed + 1):
        disk = files.copy()
        with pytest.raises(Crash):
            start(disk.seen_by(CrashAt(point)), 6)
        assert start(disk, 7) == expected


def test_another_parallelism_needs_a_function(files: MemoryFiles) -> None:
    with pytest.raises(ParallelismChanged, match=r"declare 2 again, or give job.operator\(\) a rescale function"):
        start(files, parallelism=4)
    found = start(files, parallelism=4, rescale=double)
    assert found.states == {0: b'{"n":1}', 1: None, 2: None, 3: None}
    assert found.mailboxes == {3: (EventBatch(0, 1, b'{"down":1}'),)}
    assert found.undelivered == (Outbox(SubtaskIndex(1), 77, (EventBatch(0, 1, b'{"up":1}'),)),)
    # Before the first epoch it may be changed once more, from what the checkpoint has.
    assert start(files).states == {0: b'{"n":1}', 1: None}


def test_events_of_subtasks_that_are_gone_still_arrive(files: MemoryFiles) -> None:
    found = start(files, parallelism=1, rescale=merge)
    assert found.states == {0: b"all"}
    assert found.undelivered == (Outbox(SubtaskIndex(0), 77, (EventBatch(0, 1, b'{"up":1}'),)),)
    plan(files)
    with pytest.raises(ParallelismChanged, match="take a savepoint and restore it with a rescale function"):
        opened(files, QUERY, operators={OP: RECORD}, rescalable=[OP])
    assert opened(files, QUERY, operators={OP: RECORD.model_copy(update={"parallelism": 1})}).restored is None


@pytest.mark.parametrize("operators", [{}, {OP: RECORD, OperatorUid("more"): RECORD}, {OperatorUid("other"): RECORD}])
def test_operators_come_and_go_only_if_that_was_allowed(
    files: MemoryFiles, operators: dict[OperatorUid, LineageOperator]
) -> None:
    with pytest.raises(NonRestoredState, match=r"keep the operators' uids, or restore with allow_non_restored_state$"):
        opened(files, QUERY, operators=operators)
    source = put_checkpoint(files, "/savepoints/two", checkpoint=8)
    prepared(files, source, allow_non_restored_state=True).commit()
    lineage = opened(files, QUERY, operators=operators)
    seed_lineage(files, lineage, Generation(5), dict.fromkeys(operators, (2, None)))
    store = EpochStore(files, lineage.epochs, Generation(5), 100)
    assert {record.operator for record in store.open() if isinstance(record, Begin | Ack)} == set(operators) & {OP}
    assert opened(files, QUERY, operators={OP: RECORD}).restored is not None  # not for good yet
    opened(files, QUERY, operators=operators)
    plan(files)
    with pytest.raises(OperatorsChanged):
        opened(files, QUERY, operators={OP: RECORD, OperatorUid("late"): RECORD})
    assert opened(files, QUERY, operators=operators).restored is None


def test_event_types_are_compared_with_the_checkpoint(files: MemoryFiles) -> None:
    changed = RECORD.model_copy(update={"down": ("B", "A")})
    with pytest.raises(EventTypesChanged):
        opened(files, QUERY, operators={OP: changed})
    more = RECORD.model_copy(update={"down": ("A", "B")})
    assert opened(files, QUERY, operators={OP: more}).restored is not None


def test_a_program_that_adopted_a_directory_may_go_on_naming_it() -> None:
    files = MemoryFiles()
    files.create("/adopted/metadata", b'{"id":"an id"}')
    open_lineage(files, folder(QUERY), QUERY, {OP: RECORD}, "/adopted")
    source = put_checkpoint(files, "/savepoints/one")
    for _ in range(3):  # it need not be changed after any of them
        prepared(files, source).commit()
        lineage = opened(files, QUERY, checkpoint_location="/adopted/")
        assert lineage.checkpoint.startswith(JOB)
        with pytest.raises(LineageMismatch):
            opened(files, QUERY, checkpoint_location="/elsewhere")


def test_restored_states_that_are_damaged_or_lost_are_not_taken_for_empty_ones(files: MemoryFiles) -> None:
    path = f"{opened(files, QUERY).folder}/restored_metadata"
    files.damage(path, flip_bit=2000)
    with pytest.raises(DamagedRecord, match=path):
        start(files)
    files.delete(path)
    with pytest.raises(MissingRecord, match=path):
        start(files)


def test_records_of_the_first_format_are_read() -> None:
    files = MemoryFiles()
    fields: dict[str, Any] = {
        "format_version": 1,
        "query": QUERY,
        "query_id": "an id",
        "checkpoint_location": f"{folder(QUERY)}/lineage-000001/spark",
        "operators": {OP: RECORD.model_dump(mode="json")},
    }
    files.create(f"{folder(QUERY)}/lineage-000001/lineage.json", json.dumps(fields).encode())
    files.create(f"{folder(QUERY)}/lineage-000001/spark/metadata", b'{"id":"an id"}')
    lineage = opened(files, QUERY)
    assert (lineage.query_id, lineage.name, lineage.restored) == ("an id", "lineage-000001", None)


@pytest.mark.parametrize("operators", [{}, {OP: (2, None)}])
def test_a_planned_epoch_has_the_live_values_that_it_has_seen(
    files: MemoryFiles, operators: dict[OperatorUid, tuple[int, None]]
) -> None:
    source = put_checkpoint(files, "/savepoints/two", checkpoint=8)
    live = {"limits": LiveInForce(3, b"{}", Epoch(2))}
    queries = {**source.metadata.queries}
    queries[QUERY] = queries[QUERY].model_copy(update={"planned_live": live})
    metadata = source.metadata.model_copy(update={"queries": queries})
    prepared(files, CheckpointSource(source.path, metadata, files)).commit()
    lineage = opened(files, QUERY)
    seed_lineage(files, lineage, Generation(5), operators)
    records = EpochStore(files, lineage.epochs, Generation(5), 100).open()
    assert [each for each in records if isinstance(each, LiveFrozen)] == [LiveFrozen(Epoch(BOUNDARY + 1), live)]
