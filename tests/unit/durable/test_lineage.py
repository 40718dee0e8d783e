"""Where a query's durable facts lie, and what must not change about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coord_control.durable.job_folder.lineage import Lineage, LineageOperator, open_lineage, spark_position
from coord_control.errors import (
    AlreadyExists,
    DamagedRecord,
    EventTypesChanged,
    LineageMismatch,
    MissingRecord,
    NotACheckpoint,
    OperatorsChanged,
    ParallelismChanged,
    UnsupportedFormat,
    WakeChanged,
)
from coord_control.ids import OperatorUid, QueryName
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles

FOLDER = "/jobs/job/queries/q"
RECORD = f"{FOLDER}/lineage-000001/lineage.json"
QUERY = QueryName("q")


def operator(**changes: Any) -> LineageOperator:
    return LineageOperator(**{"parallelism": 2, "state": "S", "down": ("A", "B"), "up": ("C",), **changes})


def opened(files: MemoryFiles, *, location: str | None = None, uid: str = "op", **changes: Any) -> Lineage:
    return open_lineage(files, FOLDER, QUERY, {OperatorUid(uid): operator(**changes)}, location)


def ran(files: MemoryFiles) -> None:
    """Have Spark plan the first epoch."""
    files.create(f"{FOLDER}/lineage-000001/spark/offsets/0", b"v1")


def test_the_first_lineage_is_made_before_spark_starts(files: MemoryFiles) -> None:
    lineage = opened(files)
    assert lineage.checkpoint == f"{FOLDER}/lineage-000001/spark"
    assert lineage.epochs == f"{FOLDER}/lineage-000001/epochs"
    # What Spark will read as its own.
    assert json.loads(files.read(f"{lineage.checkpoint}/metadata")) == {"id": lineage.query_id}
    assert opened(files) == lineage
    assert files.paths() == [RECORD, f"{lineage.checkpoint}/metadata"]


def test_every_query_has_an_id_of_its_own(files: MemoryFiles) -> None:
    other = open_lineage(files, "/jobs/job/queries/other", QueryName("other"), {})
    assert opened(files).query_id != other.query_id


def test_an_existing_checkpoint_keeps_its_id(files: MemoryFiles) -> None:
    files.create("/old/checkpoint/metadata", b'{"id":"6f1c"}')
    lineage = opened(files, location="/old/checkpoint")
    assert (lineage.query_id, lineage.checkpoint) == ("6f1c", "/old/checkpoint")
    assert lineage.epochs.startswith(FOLDER)
    # From then on the place is known.
    assert opened(files) == lineage
    assert opened(files, location="/old/checkpoint/") == lineage
    with pytest.raises(LineageMismatch, match="at /old/checkpoint, not at /elsewhere; leave checkpoint_location out"):
        opened(files, location="/elsewhere")


def test_a_checkpoint_that_has_run_gets_no_source_that_wakes_an_operator(files: MemoryFiles) -> None:
    files.create("/old/metadata", b'{"id":"6f1c"}')
    files.create("/old/offsets/0", b"v1")
    before = files.paths()
    with pytest.raises(WakeChanged, match=r"query 'q' has run without the source .* declare wake=False, or start"):
        opened(files, location="/old", wake=True)
    assert files.paths() == before
    assert opened(files, location="/old").query_id == "6f1c"


def test_a_checkpoint_that_has_never_run_gets_one(files: MemoryFiles) -> None:
    files.create("/old/metadata", b'{"id":"6f1c"}')
    assert opened(files, location="/old", wake=True).query_id == "6f1c"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"not json"])
def test_a_checkpoint_whose_id_cannot_be_read_is_not_adopted(files: MemoryFiles, content: bytes) -> None:
    files.create("/old/metadata", content)
    with pytest.raises(DamagedRecord, match="/old/metadata is damaged: it does not hold a query id"):
        opened(files, location="/old")
    assert files.paths() == ["/old/metadata"]


@pytest.mark.parametrize(("names", "why"), [([], "it does not exist, or is empty"), (["todo"], "it holds .*todo")])
def test_a_folder_that_is_no_checkpoint_is_not_adopted(files: MemoryFiles, names: list[str], why: str) -> None:
    for name in names:
        files.create(f"/old/{name}", b"")
    with pytest.raises(NotACheckpoint, match=f"/old is not a Spark checkpoint: {why}"):
        opened(files, location="/old")
    assert files.paths() == [f"/old/{name}" for name in names]


def test_whatever_a_crash_leaves_the_next_driver_goes_on_with_one_id(files: MemoryFiles) -> None:
    count = CrashAt()
    opened(MemoryFiles(count))
    for point in range(1, count.passed + 1):
        disk = MemoryFiles()
        with pytest.raises(Crash):
            opened(disk.seen_by(CrashAt(point)))
        lineage = opened(disk)
        assert json.loads(disk.read(f"{lineage.checkpoint}/metadata"))["id"] == lineage.query_id
        assert opened(disk) == lineage


def test_of_two_drivers_one_makes_the_lineage(files: MemoryFiles) -> None:
    class Race:
        def before_write(self, path: str) -> None:
            if path == RECORD:
                opened(files)

        def after_write(self, path: str) -> None:
            pass

    with pytest.raises(AlreadyExists):
        opened(files.seen_by(Race()))
    lineage = opened(files)
    assert json.loads(files.read(f"{lineage.checkpoint}/metadata"))["id"] == lineage.query_id


def test_the_newest_lineage_with_a_record_counts(files: MemoryFiles) -> None:
    first = opened(files)
    record = files.read(RECORD).replace(first.query_id.encode(), b"another")
    files.create(f"{FOLDER}/lineage-000002/lineage.json", record)
    files.replace(f"{first.checkpoint}/metadata", b'{"id":"another"}')
    files.create(f"{FOLDER}/lineage-000003/spark/metadata", b"half made")
    assert opened(files).query_id == "another"
    assert opened(files).epochs == f"{FOLDER}/lineage-000002/epochs"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"parallelism": 3}, ParallelismChanged),
        ({"uid": "other"}, OperatorsChanged),
        ({"down": ("A",)}, EventTypesChanged),
        ({"down": ("B", "A")}, EventTypesChanged),
        ({"up": ()}, EventTypesChanged),
        ({"up": ("D", "C")}, EventTypesChanged),
        ({"wake": True}, WakeChanged),
    ],
)
def test_what_must_not_change_is_refused_and_nothing_is_written(
    files: MemoryFiles, changes: dict[str, Any], error: type[Exception]
) -> None:
    opened(files)
    ran(files)
    before = files.read(RECORD)
    with pytest.raises(error):
        opened(files, **changes)
    assert files.read(RECORD) == before


def test_operators_do_not_come_or_go(files: MemoryFiles) -> None:
    opened(files)
    ran(files)
    two = {OperatorUid("op"): operator(), OperatorUid("more"): operator()}
    with pytest.raises(OperatorsChanged, match=r"operators \['op'\] and now declares \['more', 'op'\]"):
        open_lineage(files, FOLDER, QUERY, two)
    with pytest.raises(OperatorsChanged, match=r"operators \['op'\] and now declares none"):
        open_lineage(files, FOLDER, QUERY, {})


def test_before_the_first_epoch_a_declaration_may_be_corrected(files: MemoryFiles) -> None:
    lineage = opened(files)
    assert opened(files, parallelism=3, down=("B",)) == lineage
    ran(files)
    with pytest.raises(ParallelismChanged):
        opened(files)
    assert opened(files, parallelism=3, down=("B",)) == lineage


def test_what_may_change_is_remembered(files: MemoryFiles) -> None:
    lineage = opened(files)
    ran(files)
    assert opened(files, down=("A", "B", "New"), state="Renamed") == lineage
    with pytest.raises(EventTypesChanged):
        opened(files)
    assert opened(files, down=("A", "B", "New", "Newer")) == lineage


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", DamagedRecord),
        (b"[]", DamagedRecord),
        (b'{"format_version": 1}', DamagedRecord),
        (b'{"format_version": 0}', DamagedRecord),
        (b'{"format_version": 4}', UnsupportedFormat),
    ],
)
def test_a_record_that_cannot_be_read_is_named(files: MemoryFiles, content: bytes, error: type[Exception]) -> None:
    files.create(RECORD, content)
    with pytest.raises(error, match=RECORD):
        opened(files)


# Spark's own logs.


def spark_logs(files: MemoryFiles, offsets: list[int], commits: list[int]) -> None:
    for folder, epochs in (("offsets", offsets), ("commits", commits)):
        for epoch in epochs:
            files.create(f"/checkpoint/{folder}/{epoch}", b"v1")


@pytest.mark.parametrize(
    ("offsets", "commits", "position"),
    [
        ([], [], (-1, -1)),
        ([0], [], (-1, 0)),
        ([0], [0], (0, 0)),
        ([8, 9, 10], [8, 9], (9, 10)),
        ([9, 10], [9, 10], (10, 10)),
        ([], [3], (3, 3)),
    ],
)
def test_the_position_is_the_newest_commit_and_the_newest_plan(
    files: MemoryFiles, offsets: list[int], commits: list[int], position: tuple[int, int]
) -> None:
    spark_logs(files, offsets, commits)
    files.create("/checkpoint/offsets/.7.crc", b"")
    files.create("/checkpoint/commits/metadata", b"")
    assert spark_position(files, "/checkpoint") == position


def test_a_gap_in_the_commits_is_refused(files: MemoryFiles) -> None:
    spark_logs(files, [0, 1, 2], [0])
    with pytest.raises(
        MissingRecord, match="/checkpoint/commits/1 is missing: Spark has planned epoch 2 but committed"
    ):
        spark_position(files, "/checkpoint")


def test_an_epoch_that_ends_while_we_look_makes_no_gap(files: MemoryFiles) -> None:
    spark_logs(files, [0, 1], [0])

    class Running(MemoryFiles):
        def list(self, path: str) -> list[str]:
            names = super().list(path)
            # Spark goes on between two looks: it commits an epoch and plans the next one.
            newest = max(map(int, files.list("/checkpoint/offsets")))
            files.create(f"/checkpoint/commits/{newest}", b"v1")
            files.create(f"/checkpoint/offsets/{newest + 1}", b"v1")
            return names

    running = Running()
    running._disk = files._disk
    committed, planned = spark_position(running, "/checkpoint")
    assert planned in (committed, committed + 1)
