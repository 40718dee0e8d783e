"""A restored job has another number of shuffle partitions: Spark rewrites the states before the restore counts."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.files.filesystem import Files, LocalFiles
from coord_control.durable.offline.offline_restore import OfflineRestore, restore_job
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.export import export_query
from coord_control.durable.restore.request import RestoreRequest
from coord_control.durable.restore.shuffle_partitions import StateToRepartition
from coord_control.errors import RestoreRefused
from coord_control.ids import QueryName
from coord_control.spark.process.repartition import repartition
from tests.cli_kit import call
from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.jobs import Dialogue, MakeJob, apply, drain, rows, talk
from tests.spark.layouts import CHANGELOG
from tests.spark.streams import FileStream
from tests.spark.test_restore import Results, collected, intact, lineage_of, more, sums

pytestmark = pytest.mark.spark

QUERY = QueryName("q")
LOCAL = LocalFiles()


def storage(path: str) -> Files:
    return LOCAL


@pytest.fixture
def session(own_session: SparkSession) -> SparkSession:
    for key, value in CHANGELOG.items():
        own_session.conf.set(key, value)
    return own_session


def expected(epochs: Sequence[int]) -> dict[int, list[tuple[Any, ...]]]:
    """By input: each has one row of each of eight keys."""
    return {epoch: [(f"k{key}", sum(8 * e + key for e in range(epoch + 1))) for key in range(8)] for epoch in epochs}


def shifted(results: Results, by: int) -> Results:
    return {epoch - by: found for epoch, found in results.items()}


def run(make_job: MakeJob, source: FileStream, session: SparkSession, savepoint: str) -> tuple[Results, Dialogue]:
    """Run an operator and an aggregation over all that is there, take a savepoint, and end the job."""
    job, coordinator, results = make_job(session=session), Dialogue(), Results()
    drain(job, collected(sums(apply(talk(job, coordinator), source.read(session))), results))
    job.trigger_savepoint(target=savepoint).wait(SECONDS)
    job.stop()
    return results, coordinator


def restored(session: SparkSession, root: str, ref: str, partitions: int) -> OfflineRestore:
    return restore_job(
        LOCAL,
        storage,
        RestoreRequest(ref=ref),
        root=root,
        job="job",
        shuffle_partitions=partitions,
        repartition=functools.partial(repartition, session),
    )


def partitions_of(path: str) -> list[int]:
    metadata = read_metadata(LOCAL, path)
    assert metadata is not None
    snapshot = metadata.queries[QUERY]
    return [snapshot.shuffle_partitions or 0, *(operator.partitions for operator in snapshot.state_operators)]


def test_more_and_fewer_partitions_give_the_same_results(
    make_job: MakeJob, source: FileStream, session: SparkSession, tmp_path: Path
) -> None:
    root, one, two, three = str(tmp_path / "jobs"), *(str(tmp_path / name) for name in ("one", "two", "three"))
    results, _ = run(make_job, source, session, one)
    assert results == expected(range(3))
    assert partitions_of(one) == [2, 2]
    more(source, range(3, 6))

    # The command starts a Spark of its own.
    done = call("restore", "job", one, "--root", root, "--shuffle-partitions", "3")
    assert done.exit_code == 0, done.output
    assert lineage_of(tmp_path) == "lineage-000002"
    # Nothing has run since, so a savepoint of it holds what was restored, operators and all.
    offline = save(LOCAL, f"{root}/job", target=str(tmp_path / "offline"))
    before = read_metadata(LOCAL, one)
    assert before is not None
    assert "op" in before.operators
    assert offline.metadata.operators == before.operators
    assert (offline.metadata.queries[QUERY].epoch, partitions_of(offline.path)) == (3, [3, 3])

    results, coordinator = run(make_job, source, session, two)
    # Epoch 3 is that of the rewritten state.
    assert shifted(results, 1) == expected(range(3, 6))
    coordinator.check(range(48))
    assert partitions_of(two) == [3, 3]

    more(source, range(6, 8))
    assert restored(session, root, two, 2).record.queries == {QUERY: "lineage-000003"}
    results, coordinator = run(make_job, source, session, three)
    assert shifted(results, 2) == expected(range(6, 8))
    coordinator.check(range(64))
    assert partitions_of(three) == [2, 2]
    # All of this went over links to their files.
    assert [intact(path) for path in (one, offline.path, two, three)] == [True] * 4


def test_what_spark_cannot_rewrite_is_refused_and_nothing_has_happened(
    make_job: MakeJob, file_stream: MakeStream, session: SparkSession, tmp_path: Path
) -> None:
    """Spark would put the only row of an aggregation without keys into any partition, where it is not found again."""
    session.conf.set("spark.sql.shuffle.partitions", "1")
    root, target = str(tmp_path / "jobs"), str(tmp_path / "savepoint")
    source = file_stream("key STRING, value LONG", session=session)
    source.add(rows(0))
    job = make_job(session=session)
    drain(job, collected(total(source.read(session)), {}))
    job.trigger_savepoint(target=target).wait(SECONDS)
    job.stop()
    with pytest.raises(RestoreRefused, match=r"nothing was changed: shuffle .*q: .* aggregation without keys"):
        restored(session, root, target, 5)
    assert lineage_of(tmp_path) == "lineage-000001"
    assert os.listdir(f"{root}/job/queries/q") == ["lineage-000001"]
    assert intact(target)


def total(frame: DataFrame) -> DataFrame:
    return frame.agg(F.sum("value").alias("sum"))


def test_the_reason_is_that_of_spark(
    make_job: MakeJob, source: FileStream, own_session: SparkSession, tmp_path: Path
) -> None:
    target = str(tmp_path / "savepoint")
    job = make_job(session=own_session)
    drain(job, collected(sums(source.read(own_session)), {}))
    job.trigger_savepoint(target=target).wait(SECONDS)
    job.stop()
    with pytest.raises(RestoreRefused, match=r"HDFSBackedStateStoreProvider; Spark rewrites that of RocksDB only"):
        restored(own_session, str(tmp_path / "jobs"), target, 3)
    with open_checkpoint(LOCAL, target) as opened:
        export_query(LOCAL, opened, QUERY, str(tmp_path / "spark"))
    found = repartition(own_session, [StateToRepartition(QUERY, str(tmp_path / "spark"), 3, 1)])
    assert "HDFSBackedStateStoreProvider is not supported" in found[QUERY]
