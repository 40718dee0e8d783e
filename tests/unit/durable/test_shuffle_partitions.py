"""Another number of shuffle partitions in a restore: what is asked of Spark, what is refused, and when it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, StateOperator, encode_metadata
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.lineage import spark_position
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.restore.checks import Verdict
from coord_control.durable.restore.prepared_restore import PreparedRestore
from coord_control.durable.restore.request import RestoreRequest
from coord_control.durable.restore.shuffle_partitions import Repartition, StateToRepartition, check_repartition
from coord_control.errors import RestoreRefused
from coord_control.ids import QueryName
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.restore_kit import (
    JOB,
    QUERIES,
    current,
    folder,
    opened,
    prepared,
    put_checkpoint,
    run_before,
)

OK, WARNING, REFUSED = Verdict.OK, Verdict.WARNING, Verdict.REFUSED
DELAYS, RAW = QUERIES
OLD = {DELAYS: "lineage-000001", RAW: "lineage-000001"}
NEW = {DELAYS: "lineage-000002", RAW: "lineage-000002"}


def operator(**changes: Any) -> StateOperator:
    fields: dict[str, Any] = {
        "id": 0,
        "name": "stateStoreSave",
        "provider": "rocksdb",
        "partitions": 2,
        "stores": ("default",),
    }
    return StateOperator(**{**fields, **changes})


def stateful(metadata: CheckpointMetadata, *operators: StateOperator, partitions: int = 2) -> CheckpointMetadata:
    """The first query has a state, the second none."""
    changes = {"state_operators": operators, "shuffle_partitions": partitions}
    one = metadata.queries[DELAYS].model_copy(update=changes)
    return metadata.model_copy(update={"queries": {**metadata.queries, DELAYS: one}})


class Spark:
    """Leaves the epoch that Spark writes, and nothing of its state."""

    def __init__(self, files: MemoryFiles, refuses: Mapping[QueryName, str] | None = None) -> None:
        self.asked: list[StateToRepartition] = []
        self._files = files
        self._refuses = refuses or {}

    def __call__(self, states: Sequence[StateToRepartition]) -> Mapping[QueryName, str]:
        for state in states:
            self.asked.append(state)
            if state.query in self._refuses:
                break
            number = spark_position(self._files, state.checkpoint)[0] + 1
            self._files.create(join(state.checkpoint, "offsets", str(number)), b"v1\n{}\n2")
            self._files.create(join(state.checkpoint, "commits", str(number)), b"v1\n{}")
        return self._refuses


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    run_before(files)
    return files


@pytest.fixture
def source(files: MemoryFiles) -> CheckpointSource:
    found = put_checkpoint(files, "/savepoints/one")
    metadata = stateful(found.metadata, operator(checkpoint_format=2), operator(id=1, name="dedupe"))
    return CheckpointSource(found.path, metadata, files)


def repartitioned(files: MemoryFiles, source: CheckpointSource, spark: Repartition, partitions: int) -> PreparedRestore:
    restore = prepared(files, source)
    restore.repartition(partitions, spark)
    return restore


def test_only_states_of_another_number_are_rewritten_and_the_lineage_knows_where_spark_stands(
    files: MemoryFiles, source: CheckpointSource
) -> None:
    spark = Spark(files)
    repartitioned(files, source, spark, 3).commit()
    checkpoint = f"{JOB}/queries/delays/lineage-000002/spark"
    assert spark.asked == [StateToRepartition(DELAYS, checkpoint, 3, 2, (0,))]
    assert current(files) == NEW
    for query, epoch in ((DELAYS, 42), (RAW, 5)):
        lineage = opened(files, query)
        assert spark_position(files, lineage.checkpoint) == (epoch, epoch)
        # Still as it was restored: its operators are seeded.
        assert lineage.restored is not None
        assert lineage.restored.epoch == epoch


def test_the_same_number_takes_no_spark(files: MemoryFiles, source: CheckpointSource) -> None:
    spark = Spark(files)
    repartitioned(files, source, spark, 2).commit()
    assert spark.asked == []
    assert current(files) == NEW


def test_what_spark_refuses_is_not_restored_and_nothing_is_left(files: MemoryFiles, source: CheckpointSource) -> None:
    with pytest.raises(RestoreRefused, match=r"/savepoints/one .*delays: Spark says: no .restore without --shuffle"):
        repartitioned(files, source, Spark(files, {DELAYS: "no"}), 3)
    assert current(files) == OLD
    assert files.list(folder(DELAYS)) == files.list(folder(RAW)) == ["lineage-000001"]


def test_a_fork_whose_states_spark_refuses_leaves_no_folder(files: MemoryFiles, source: CheckpointSource) -> None:
    files.replace(join(source.path, "_metadata"), encode_metadata(source.metadata))
    request = RestoreRequest(ref=source.path, as_name="copy")
    before = files.paths()
    with pytest.raises(RestoreRefused, match="Spark says: no"):
        restore_job(
            files,
            lambda path: files,
            request,
            root="/jobs",
            job="flights",
            shuffle_partitions=3,
            repartition=Spark(files, {DELAYS: "no"}),
        )
    assert files.paths() == before


def test_a_crash_before_the_commit_changes_nothing_and_it_can_be_repeated(
    files: MemoryFiles, source: CheckpointSource
) -> None:
    spark = Spark(files)
    repartitioned(files, source, spark, 3)
    assert current(files) == OLD
    repartitioned(files, source, spark, 4).commit()
    assert current(files) == NEW
    assert [state.partitions for state in spark.asked] == [3, 4]
    assert spark_position(files, opened(files, DELAYS).checkpoint) == (42, 42)


@pytest.mark.parametrize(
    ("operators", "partitions", "verdict", "found"),
    [
        ([operator()], 3, OK, "2 in the checkpoint; Spark rewrites the state into 3, as epoch 42"),
        ([operator()], 2, OK, "2 in the checkpoint already"),
        ([], 3, OK, "no state"),
        ([operator(), operator(id=1, provider="hdfs", provider_class="a.Hdfs")], 3, REFUSED, "1) is kept by a.Hdfs"),
        ([operator(partitions=1)], 3, REFUSED, "in one partition"),
        ([operator(name="globalLimit")], 3, REFUSED, "in one partition"),
    ],
)
def test_what_can_be_known_without_spark(
    source: CheckpointSource, operators: list[StateOperator], partitions: int, verdict: Verdict, found: str
) -> None:
    metadata = stateful(source.metadata, *operators)
    nowhere = MemoryFiles()
    checks = check_repartition(nowhere, JOB, metadata, partitions, is_fork=False)
    assert [(check.name, check.subject) for check in checks] == [
        ("shuffle partitions", "delays"),
        ("shuffle partitions", "raw"),
    ]
    assert checks[0].verdict is verdict
    assert found in checks[0].found
    assert checks[1].verdict is OK
    assert ("--shuffle-partitions" in checks[0].way_out) == (verdict is REFUSED)


def test_behind_a_planned_epoch_no_state_is_rewritten(files: MemoryFiles, source: CheckpointSource) -> None:
    metadata = stateful(source.metadata, operator())
    planned = {name: query.model_copy(update={"planned_offsets": (2,)}) for name, query in metadata.queries.items()}
    metadata = metadata.model_copy(update={"queries": planned})
    checks = {check.subject: check for check in check_repartition(files, JOB, metadata, 3, is_fork=True)}
    assert (checks["delays"].verdict, checks["raw"].verdict) == (REFUSED, OK), "raw has no state"
    assert "epoch 42 is planned" in checks["delays"].found
    assert "let that epoch end; then save the job" in checks["delays"].way_out
    same = check_repartition(files, JOB, metadata, 2, is_fork=True)
    assert {check.verdict for check in same} == {OK}


def test_epochs_that_are_run_again_under_other_numbers_are_pointed_out(
    files: MemoryFiles, source: CheckpointSource
) -> None:
    [warning] = [
        check for check in check_repartition(files, JOB, source.metadata, 3, is_fork=False) if check.name == "sink"
    ]
    assert (warning.subject, warning.verdict) == ("delays", WARNING)
    assert "rows of epoch 99 twice" in warning.found
    for partitions, is_fork in ((3, True), (2, False)):
        found = check_repartition(files, JOB, source.metadata, partitions, is_fork=is_fork)
        assert {check.verdict for check in found} == {OK}
