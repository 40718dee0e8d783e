"""States in savepoints and checkpoints, read back with Spark's data source, are what the rows say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import coord_control as cc
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.offline.offline_savepoint import adopt
from coord_control.errors import CheckpointNotFound, NotInCheckpoint, ScratchFolderMissing
from coord_control.ids import QueryName
from coord_control.spark.states import state_reader
from tests.cli_kit import call
from tests.patience import SECONDS
from tests.spark import layouts
from tests.spark.conftest import MakeStream
from tests.spark.jobs import Dialogue, MakeJob, apply, drain, rows, talk, write
from tests.spark.layouts import LAYOUTS
from tests.spark.streams import FileStream
from tests.spark.streams import drain as drain_plain

pytestmark = pytest.mark.spark

EPOCHS = 3


def contents(folder: str) -> dict[str, tuple[int, bytes]]:
    """All files below a folder: their inode and content."""
    below = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes()) for path in below}


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(F.count("*").alias("count"), F.sum("value").alias("sum"))


def state_of(frame: DataFrame) -> dict[str, tuple[int, int]]:
    found = [(row.key.key, (row.value["count"], row.value["sum"])) for row in frame.collect()]
    assert len(found) == len(dict(found)), "each key has one row"
    return dict(found)


def oracle(epochs: Iterable[int]) -> dict[str, tuple[int, int]]:
    given = [row for epoch in epochs for row in rows(epoch)]
    keys = {row["key"] for row in given}
    values = {key: [row["value"] for row in given if row["key"] == key] for key in keys}
    return {key: (len(each), sum(each)) for key, each in values.items()}


def run(job: cc.Job, source: FileStream) -> None:
    """Run an operator and an aggregation over all that is there."""
    operator = talk(job, Dialogue())
    drain(job, write(counted(apply(operator, source.read()))).outputMode("update"))


def test_a_state_is_that_of_its_boundary_wherever_the_savepoint_is_and_whatever_came_later(
    spark: SparkSession, make_job: MakeJob, source: FileStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, target = str(tmp_path / "jobs"), str(tmp_path / "savepoint")
    job = make_job()
    run(job, source)
    job.trigger_savepoint(target=target, label="early").wait(SECONDS)
    job.stop()
    source.add([*rows(EPOCHS), {"key": "new", "value": 1}])
    job = make_job()
    run(job, source)
    job.trigger_checkpoint().wait(SECONDS)
    job.stop()
    moved = str(tmp_path / "moved" / "elsewhere")
    Path(moved).parent.mkdir()
    Path(target).rename(moved)
    before = contents(moved)
    scratch = tmp_path / "scratch"
    late = {**oracle(range(EPOCHS + 1)), "new": (1, 1)}

    with cc.StateReader(moved, spark, scratch=str(scratch)) as early:
        frame = early.read("q")
        assert frame.columns == ["key", "value", "partition_id"]
        assert state_of(frame) == oracle(range(EPOCHS))
        assert {row.partition_id for row in frame.collect()} == {0, 1}
        # The frame belongs to the session that was given, and so do its views.
        frame.createOrReplaceTempView("states_of_q")
        assert spark.sql("select count(*) from states_of_q").first()[0] == 8  # type: ignore[index]
        spark.catalog.dropTempView("states_of_q")
        assert state_of(early.read("q", "stateStoreSave")) == state_of(early.read("q", 0))

        page = early.operator_states("op")
        assert (page.epoch, page.parallelism, page.next_after) == (EPOCHS - 1, 2, None)
        assert isinstance(page.coordinator, dict)
        assert page.coordinator.keys() == {"sent", "heard"}
        states: list[Any] = [each.state for each in page.subtasks]
        assert sorted(value for state in states for value in state["values"]) == [
            row["value"] for epoch in range(EPOCHS) for row in rows(epoch)
        ]

        # A retained checkpoint, whose files have other names.
        with cc.StateReader("latest", spark, job="job", root=root) as latest:
            assert state_of(latest.read("q")) == late
            changes = {row.key.key: row for row in early.compare(latest, "q").collect()}
            assert Counter(row.change for row in changes.values()) == {"changed": 8, "added": 1}
            assert tuple(changes["k1"].before) == oracle(range(EPOCHS))["k1"]
            assert tuple(changes["k1"].after) == late["k1"]
            assert changes["new"].before is None
            [removed] = latest.compare(early, "q").where("change = 'removed'").collect()
            assert (removed.key.key, tuple(removed.before), removed.after) == ("new", (1, 1), None)
            assert early.compare(early, "q").count() == 0

        check_errors(early, spark)
    assert list(scratch.iterdir()) == []
    assert contents(moved) == before

    monkeypatch.setattr(state_reader, "is_local", lambda master: False)
    with cc.StateReader(moved, spark) as early, pytest.raises(ScratchFolderMissing, match="scratch="):
        early.read("q")
    check_commands(moved, root)


def check_errors(early: cc.StateReader, spark: SparkSession) -> None:
    refused: list[tuple[tuple[Any, ...], str]] = [
        (("p",), r"no query 'p'; it has: q$"),
        (("q", "stateStoreSav"), r"it has: 0 \(stateStoreSave\); did you mean 0 \(stateStoreSave\)\?"),
        (("q", 7), r"no operator with state '7'; it has: 0 \(stateStoreSave\)$"),
        (("q", 0, "left"), r"operator 0 \(stateStoreSave\) of query 'q' has no state 'left'; it has none"),
    ]
    for wrong, message in refused:
        with pytest.raises(NotInCheckpoint, match=message):
            early.read(*wrong)
    with pytest.raises(NotInCheckpoint, match="it has: op; did you mean op"):
        early.operator_states("opp")
    with pytest.raises(CheckpointNotFound, match="belongs to a job"):
        cc.StateReader("early", spark)


def check_commands(moved: str, root: str) -> None:
    """What `coordctl savepoint state` prints, with a Spark of its own."""
    place = ("--root", root)
    done = call("savepoint", "state", "job", moved, "q", "--operator", "0", "--limit", "3", *place)
    assert done.exit_code == 0, done.output
    assert "operator 0 (stateStoreSave) of query q after epoch 2: savepoint 1 of job job in" in done.stdout
    assert '"sum": ' in done.stdout
    assert "there is more: --limit shows more rows" in done.stdout
    command = (
        "savepoint",
        "state",
        "job",
        moved,
        "q",
        "--operator",
        "0",
        "--compare",
        "latest",
        "--limit",
        "4",
        "--json",
    )
    found = json.loads(call(*command, *place).stdout)
    assert found["counts"] == {"added": 1, "removed": 0, "changed": 8}
    assert (len(found["rows"]), found["has_more"]) == (4, True)
    assert found["rows"][0].keys() == {"change", "key", "partition_id", "before", "after"}


def saved(
    name: str, session: SparkSession, file_stream: MakeStream, checkpoint: Path, target: str
) -> tuple[list[dict[str, Any]], str]:
    """Run two epochs of a query of a layout, and make a savepoint of its directory; returns the rows of one input."""
    layout = LAYOUTS[name]
    for key, value in layout.settings.items():
        session.conf.set(key, value)
    streams = [file_stream(layouts.SCHEMA, session=session) for _ in range(layout.inputs)]
    for stream in streams:
        for epoch in range(2):
            stream.add(layouts.rows_of(epoch))
    frame, mode = layout.build([stream.read(session) for stream in streams])
    drain_plain(frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint)))
    adopt(LocalFiles(), str(checkpoint), target, LocalFiles(), job="job", query=QueryName("q"))
    checkpoint.rename(checkpoint.with_name("away"))
    return [row for epoch in range(2) for row in layouts.rows_of(epoch)], target


@pytest.mark.parametrize("name", ["join-hdfs", pytest.param("join-column-families-format-2", marks=pytest.mark.slow)])
def test_a_join_has_a_state_on_each_side(
    name: str, spark: SparkSession, own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    given, target = saved(name, own_session, file_stream, checkpoint, str(tmp_path / "s"))
    # The shared session has none of the settings of the query.
    with cc.StateReader(target, spark) as reader:
        left, right = reader.read("q", state="left"), reader.read("q", state="right")
        expected = sorted((row["key"], row["value"]) for row in given)
        assert sorted((row.key.field0, row.value.value) for row in left.collect()) == expected
        assert sorted((row.key.field0, row.value.right_value) for row in right.collect()) == expected
        # Spark's rows have a field more than their schema; JSON of them would fail.
        assert len(left.select(F.to_json("value")).collect()) == len(given)
        assert reader.compare(reader, "q", state="left").count() == 0
        with pytest.raises(NotInCheckpoint, match="more than one state; name one of: left, right"):
            reader.read("q")
        if name == "join-hdfs":
            numbers = reader.read("q", options={"storeName": "left-keyToNumValues"})
            assert sum(row.value.value for row in numbers.collect()) == len(given)


def test_variables_of_transform_with_state_are_read_by_their_names(
    spark: SparkSession, own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    name = "transform-with-state-format-2"
    given, target = saved(name, own_session, file_stream, checkpoint, str(tmp_path / "s"))
    with cc.StateReader(target, spark) as reader:
        totals = {row.key.key: row.value.total for row in reader.read("q", state="total").collect()}
        assert totals == {
            key: sum(row["value"] for row in given if row["key"] == key) for key in {row["key"] for row in given}
        }
        seen = [(row.key.key, row.list_element.value) for row in reader.read("q", state="seen").collect()]
        assert sorted(seen) == sorted((row["key"], row["value"]) for row in given)
        assert reader.compare(reader, "q", state="seen").count() == 0
        with pytest.raises(NotInCheckpoint, match="no state 'totl'; it has: seen, total; did you mean total"):
            reader.read("q", state="totl")


def test_operators_of_one_query_are_told_apart(
    spark: SparkSession, own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    _, target = saved("two-operators", own_session, file_stream, checkpoint, str(tmp_path / "s"))
    with cc.StateReader(target, spark) as reader:
        assert "key" in reader.read("q", 1).schema["key"].dataType.names  # type: ignore[attr-defined]
        assert "key" not in reader.read("q", "0").schema["key"].dataType.names  # type: ignore[attr-defined]
        several = r"more than one operator with state; name one of: 0 \(stateStoreSave\), 1 \(stateStoreSave\)"
        for operator in (None, "stateStoreSave"):
            with pytest.raises(NotInCheckpoint, match=several):
                reader.read("q", operator)


@pytest.mark.parametrize(
    "name", ["dedup-hdfs", pytest.param("changelog-format-2-one-partition", marks=pytest.mark.slow)]
)
def test_other_states_can_be_read_compared_and_printed(
    name: str, spark: SparkSession, own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    given, target = saved(name, own_session, file_stream, checkpoint, str(tmp_path / "s"))
    with cc.StateReader(target, spark) as reader:
        frame = reader.read("q")
        distinct = {(row["key"], row["value"] % 7) for row in given}
        assert frame.count() == (len(distinct) if name == "dedup-hdfs" else 1)
        assert len(frame.select(F.to_json(F.struct("*"))).collect()) == frame.count()
        assert reader.compare(reader, "q").count() == 0
