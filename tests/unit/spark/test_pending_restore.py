"""A restore that took place without the program: what its queries wait for, and what lets them just start."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from coord_control.durable.files.filesystem import Files
from coord_control.durable.job_folder.lineage import current_lineage, open_lineage, seeded, spark_position
from coord_control.durable.job_folder.lineage_record import query_folder
from coord_control.durable.offline.undo import undo_restore
from coord_control.durable.restore.preflight_declared import DeclaredQuery
from coord_control.errors import RestoredQueryUnused, RestoreNotUndone, RestoreRefused
from coord_control.ids import QueryName
from coord_control.spark.job.pending_restore import AppliedRestore, count_sources
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.metadata_kit import full_metadata
from tests.unit.durable.restore_kit import (
    JOB,
    OP,
    QUERIES,
    RECORD,
    folder,
    opened,
    prepared,
    put_checkpoint,
    run_before,
)

SAVEPOINT = "/savepoints/one"
STRANGER = QueryName("stranger")


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    run_before(files)
    return files


def found(files: Files) -> AppliedRestore | None:
    return AppliedRestore.find(files, "flights", JOB)


def restored(files: Files, **options: Any) -> AppliedRestore:
    prepared(files, put_checkpoint(files, SAVEPOINT), **options).commit()
    restore = found(files)
    assert restore is not None
    return restore


def runs(files: Files, query: QueryName) -> None:
    """Spark plans one more epoch."""
    lineage = current_lineage(files, folder(query), query)
    assert lineage is not None
    committed, _ = spark_position(files, lineage.checkpoint)
    files.replace(f"{lineage.checkpoint}/offsets/{committed + 1}", b"v1\n{}\n3")


def test_a_job_that_was_never_restored_has_none(files: MemoryFiles) -> None:
    assert found(MemoryFiles()) is None
    assert found(files) is None


def test_the_queries_are_compared_with_what_the_lineages_keep_of_the_checkpoint(files: MemoryFiles) -> None:
    restore = restored(files)
    files.delete(SAVEPOINT)
    assert found(files) == restore
    assert (restore.path, set(restore.metadata.queries), set(restore.metadata.operators)) == (
        SAVEPOINT,
        set(QUERIES),
        {OP},
    )
    restore.check(DeclaredQuery(QUERIES[0], {OP: RECORD}), {}, [])
    other = RECORD.model_copy(update={"parallelism": 3})
    for declared in (DeclaredQuery(QUERIES[0], {OP: other}), DeclaredQuery(STRANGER, {})):
        with pytest.raises(RestoreRefused, match=r"no query has run since.*coordctl restore JOB --undo"):
            restore.check(declared, {}, [])
    with pytest.raises(RestoreRefused, match=r"Spark says: no.*coordctl restore JOB --undo"):
        restore.check_plan(QUERIES[1], "no")
    restore.check_plan(QUERIES[1], None)


def test_a_way_back_is_offered_only_where_there_is_one(files: MemoryFiles) -> None:
    """Bug: it was offered after a restore with which the job had begun, and was refused there."""
    first = MemoryFiles()
    restore = restored(first)
    for refused in (restore.check, lambda declared, models, live: restore.check_none_missing(())):
        with pytest.raises((RestoreRefused, RestoredQueryUnused), match="no query has run since") as error:
            refused(DeclaredQuery(STRANGER, {}), {}, [])
        assert "--undo" not in str(error.value)
    with pytest.raises(RestoreNotUndone):
        undo_restore(first, JOB)
    restored(files)
    prepared(files, put_checkpoint(files, "/savepoints/two", checkpoint=8)).commit()
    undo_restore(files, JOB)
    again = found(files)
    assert again is not None
    with pytest.raises(RestoreRefused) as error:
        again.check_plan(QUERIES[0], "no")
    assert "--undo" not in str(error.value), "an undo cannot be undone"


def test_partitions_that_the_restore_has_changed_are_no_surprise(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: Spark was said to stay with the number of the checkpoint."""
    source = put_checkpoint(files, SAVEPOINT)
    [held, *_] = full_metadata().queries.values()
    assert held.state_operators
    update = {"state_operators": held.state_operators, "shuffle_partitions": 200}
    source.metadata.queries[QUERIES[0]] = source.metadata.queries[QUERIES[0]].model_copy(update=update)
    prepared(files, source).commit()
    restore = found(files)
    assert restore is not None

    restore.check(DeclaredQuery(QUERIES[0], {OP: RECORD}, settings={"spark.sql.shuffle.partitions": "7"}), {}, [])

    assert caplog.text == ""


def test_its_lineages_are_those_that_count(files: MemoryFiles) -> None:
    restore = restored(files)
    lineage = restore.open(files, QUERIES[0], {OP: RECORD}, None, ())
    assert lineage == opened(files, QUERIES[0])
    assert restore.open(files, STRANGER, {}, None, ()) is None


def test_queries_are_left_out_only_if_the_restore_has_allowed_it(files: MemoryFiles) -> None:
    restore = restored(files)
    assert restore.missing({QUERIES[0]: None}) == [QUERIES[1]]
    restore.check_none_missing(QUERIES)
    with pytest.raises(RestoredQueryUnused, match=r"start its queries \['raw'\].*coordctl restore JOB --undo"):
        restore.check_none_missing(QUERIES[:1])
    allowed = restored(files, allow_non_restored_state=True)
    allowed.check_none_missing(QUERIES[:1])
    allowed.check(DeclaredQuery(STRANGER, {}), {}, [])


@pytest.mark.parametrize("query", QUERIES)
def test_the_first_query_that_runs_ends_it_and_with_it_the_way_back(files: MemoryFiles, query: QueryName) -> None:
    restored(files)
    runs(files, query)
    assert found(files) is None
    with pytest.raises(RestoreNotUndone, match=f"query {query} has processed epochs"):
        undo_restore(files, JOB)


def test_a_query_that_begins_empty_ends_it_when_it_runs(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT, epochs={QUERIES[0]: 41})
    prepared(files, source, allow_non_restored_state=True).commit()
    opened(files, QUERIES[1])
    assert found(files) is not None
    runs(files, QUERIES[1])
    assert found(files) is None


def test_an_undone_restore_leaves_the_one_before_it(files: MemoryFiles) -> None:
    restored(files)
    undo_restore(files, JOB)
    assert found(files) is None
    restored(files)
    prepared(files, put_checkpoint(files, "/savepoints/two", checkpoint=8)).commit()
    undo_restore(files, JOB)
    restore = found(files)
    assert restore is not None
    assert restore.path == SAVEPOINT


def test_a_planned_epoch_ends_it_when_its_query_is_started(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT)
    snapshot = source.metadata.queries[QUERIES[0]]
    source.metadata.queries[QUERIES[0]] = snapshot.model_copy(update={"planned_offsets": ({"logOffset": 42},)})
    prepared(files, source).commit()
    runs(files, QUERIES[0])  # as the restore would have copied it
    assert found(files) is not None
    seeded(files, open_lineage(files, query_folder(JOB, QUERIES[0]), QUERIES[0], {OP: RECORD}))
    assert found(files) is None


@dataclass(frozen=True)
class Plan:
    """A plan of Spark, as py4j shows it: two that look the same are equal."""

    parts: tuple[Plan, ...] = ()
    streams: bool = True

    def children(self) -> Any:
        return SimpleNamespace(size=self.parts.__len__, apply=self.parts.__getitem__)

    def isStreaming(self) -> bool:
        return self.streams

    def queryExecution(self) -> Any:
        return SimpleNamespace(analyzed=lambda: self)


def test_a_source_counts_as_often_as_it_is_used() -> None:
    stream, table = Plan(), Plan(streams=False)
    union = Plan((Plan((stream,)), Plan((Plan((stream,)), table))))
    assert count_sources(cast(DataFrame, SimpleNamespace(_jdf=union))) == 2
