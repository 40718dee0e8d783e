"""Real queries restart from exactly the files that `layout` names, for every layout of Spark's checkpoint directory.

Each query runs nine epochs to its end. Then only the named files of an earlier epoch are linked into a new place, the
old one is taken away, and the query goes on from there over the same input: every later epoch must give what it gave
at first.

The queries are those of `layouts`. Snapshots of the stores of joins are made in the background; it is made quick, and
one epoch waits for it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.spark_layout.layout import layout_of, relocated
from coord_control.errors import StateFileMissing
from coord_control.ids import Epoch
from tests.patience import eventually
from tests.spark.conftest import MakeStream
from tests.spark.layouts import (
    BACKGROUND,
    EPOCHS,
    FORMAT_2,
    LAYOUTS,
    SCHEMA,
    SETTINGS,
    Layout,
    Results,
    after,
    join,
    rows_of,
)
from tests.spark.streams import batch_ids, drain

pytestmark = pytest.mark.spark

WAITING_EPOCH: Final = 5

CHANGES: Final = ("delta", "changelog")
COMPLETE: Final = ("snapshot", "zip")

# --- kit -------------------------------------------------------------------------------------------------------------


class Runner:
    """Runs one query, in any checkpoint directory, and keeps what each epoch gave."""

    def __init__(self, session: SparkSession, make: MakeStream, layout: Layout, epochs: int = EPOCHS) -> None:
        background = BACKGROUND if layout.build is join else {}
        for key, value in {**SETTINGS, **background, **layout.settings}.items():
            session.conf.set(key, value)
        self._session = session
        self._layout = layout
        self._streams = [make(SCHEMA, session=session) for _ in range(layout.inputs)]
        self._epochs = 0
        self.add(epochs)

    def add(self, epochs: int) -> None:
        """Add input for some epochs; of two sources the second ends earlier."""
        for index, stream in enumerate(self._streams):
            for epoch in range(self._epochs, self._epochs + epochs - 2 * index):
                stream.add(rows_of(epoch))
        self._epochs += epochs

    def run(self, checkpoint: Path, fail_in: int | None = None) -> Results:
        """Run to the end of the input; `fail_in`: the sink fails in this epoch, after the state was written."""
        results: Results = {}

        def collect(batch: DataFrame, epoch: int) -> None:
            rows = sorted(tuple(row) for row in batch.collect())
            if epoch == fail_in:
                raise RuntimeError("failed on purpose")
            if epoch == WAITING_EPOCH and self._layout.build is join:
                eventually(lambda: self._all_stores_have_snapshots(checkpoint))
            results[epoch] = rows

        drain(self._writer(checkpoint).foreachBatch(collect))
        return results

    def _all_stores_have_snapshots(self, checkpoint: Path) -> bool:
        stores = by_store(list(listed(checkpoint)))
        return len([kinds for kinds in stores.values() if kinds.keys() & set(COMPLETE)]) == self._layout.count

    def _writer(self, checkpoint: Path) -> DataStreamWriter:
        frame, mode = self._layout.build([stream.read(self._session) for stream in self._streams])
        return frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))


def listed(checkpoint: Path) -> dict[str, int]:
    files = (path for path in checkpoint.rglob("*") if path.is_file())
    return {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}


def needed(checkpoint: Path, epoch: int) -> list[str]:
    return list(layout_of(listed(checkpoint), Epoch(epoch), lambda path: (checkpoint / path).read_bytes()).files)


def restore(source: Path, target: Path, names: Sequence[str], relocate: bool = True) -> Path:
    """Put the named files and the query id in another place."""
    for name in ["metadata", *names]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        content = (source / name).read_bytes()
        moved = relocated(name, content, str(target)) if relocate else content
        if moved == content:
            os.link(source / name, target / name)
        else:
            (target / name).write_bytes(moved)
    return target


def by_store(names: Sequence[str]) -> dict[str, dict[str, set[int]]]:
    """Store folder -> kind of file -> versions."""
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for name in names:
        folder, _, file = name.rpartition("/")
        kind = file.rpartition(".")[2]
        if name.startswith("state/") and kind in COMPLETE + CHANGES:
            found[folder][kind].add(int(file.split(".")[0].split("_")[0]))
    return {folder: dict(kinds) for folder, kinds in found.items()}


@pytest.fixture
def own_background_work(spark: SparkSession) -> Iterator[None]:
    """The first store that is opened in a JVM decides how often Spark's background work is done, until `stop`."""
    jvm: Any = spark._jvm
    stores = getattr(getattr(jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$"), "MODULE$")
    stores.stop()
    yield
    stores.stop()


# --- every layout ----------------------------------------------------------------------------------------------------


#: Each is made of what two of the others have: their kind of query, and their format, provider or partitions. A join
#: with HDFS's provider and `transformWithState` are restored from the named files by test_savepoint_matrix.py.
SLOW: Final = (
    "join-format-2",
    "rocksdb-changelog",
    "changelog-format-2-one-partition",
    "rocksdb-format-2",
    "hdfs-one-partition",
    "dedup-hdfs",
    "dedup-changelog",
    "join-hdfs",
    "join-changelog",
    "join-column-families-format-2",
    "transform-with-state",
    "transform-with-state-format-2",
)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in LAYOUTS]
)
def test_a_query_goes_on_from_the_named_files_alone(
    name: str,
    own_session: SparkSession,
    file_stream: MakeStream,
    checkpoint: Path,
    tmp_path: Path,
    own_background_work: None,
) -> None:
    layout = LAYOUTS[name]
    runner = Runner(own_session, file_stream, layout)
    original = runner.run(checkpoint)
    assert sorted(original) == list(range(EPOCHS))
    assert any(after(original, EPOCHS - 3).values())
    away = checkpoint.rename(tmp_path / "away")

    named = {epoch: needed(away, epoch) for epoch in range(EPOCHS)}
    for names in named.values():
        check_minimal(names, layout)
    # Every version that ever was is still there; the last one does not need the first change of any store.
    assert not [kinds for kinds in by_store(named[EPOCHS - 1]).values() if any(1 in kinds.get(k, ()) for k in CHANGES)]
    mixed = [epoch for epoch in range(3, EPOCHS - 2) if is_mixed(named[epoch])]
    assert bool(mixed) == layout.changes
    for epoch in {*layout.epochs, *(mixed[-1:] or [4])}:
        target = restore(away, tmp_path / f"from-{epoch}", named[epoch])
        assert runner.run(target) == after(original, epoch)

    operators = layout_of(listed(away), Epoch(6), lambda path: (away / path).read_bytes()).operators
    assert [operator.id for operator in operators] == list(range(layout.operators))
    for operator in operators:
        assert operator.provider == ("rocksdb" if layout.settings else "hdfs")
        assert operator.partitions == layout.partitions
        assert len(operator.stores) == layout.stores
        assert operator.checkpoint_format == (2 if FORMAT_2.items() <= layout.settings.items() else 1)
        assert operator.name


def is_mixed(names: Sequence[str]) -> bool:
    """Some store needs a snapshot and changes."""
    return any(kinds.keys() & set(COMPLETE) and kinds.keys() & set(CHANGES) for kinds in by_store(names).values())


def check_minimal(names: Sequence[str], layout: Layout) -> None:
    """One snapshot at most in each store, and just the changes after it."""
    stores = by_store(names)
    assert len(stores) == layout.count
    for kinds in stores.values():
        complete = {version for kind in COMPLETE for version in kinds.get(kind, ())}
        changes = {version for kind in CHANGES for version in kinds.get(kind, ())}
        assert len(complete) <= 1
        assert layout.changes or not changes
        first = max(complete, default=0) + 1
        assert changes == set(range(first, first + len(changes)))


# --- nothing of it can be left out -----------------------------------------------------------------------------------


# Which file of HDFS's provider is missing, unit/durable/test_state_files.py finds without Spark.
@pytest.mark.parametrize("name", [pytest.param("hdfs", marks=pytest.mark.slow), "rocksdb-changelog"])
def test_without_one_of_the_named_state_files_the_query_does_not_start(
    name: str, own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    runner = Runner(own_session, file_stream, LAYOUTS[name])
    runner.run(checkpoint)
    names = needed(checkpoint, 4)
    victims = {file.rpartition(".")[2]: file for file in names if file.startswith("state/0/1/")}
    assert victims.keys() in ({"snapshot", "delta"}, {"zip", "sst", "changelog"})
    for kind, victim in victims.items():
        target = restore(checkpoint, tmp_path / kind, [file for file in names if file != victim])
        with pytest.raises(StateFileMissing, match=r"state/0/1/.* is missing"):
            needed(target, 4)
        with pytest.raises(StreamingQueryException):
            runner.run(target)


# In every run: test_savepoint_matrix.py restores such a query elsewhere, which takes what `relocated` does.
@pytest.mark.slow
def test_a_description_that_was_not_relocated_ties_a_query_to_its_old_place(
    own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    """What `relocated` is for: Spark writes absolute paths into a checkpoint directory."""
    runner = Runner(own_session, file_stream, LAYOUTS["transform-with-state"])
    runner.run(checkpoint)
    target = restore(checkpoint, tmp_path / "restored", needed(checkpoint, 4), relocate=False)
    checkpoint.rename(tmp_path / "away")
    with pytest.raises(StreamingQueryException, match=r"_stateSchema/.* does not exist"):
        runner.run(target)


# --- logs of sources -------------------------------------------------------------------------------------------------


def test_a_file_source_goes_on_before_at_and_after_a_compaction(
    own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    runner = Runner(own_session, file_stream, Layout(lambda inputs: (inputs[0], "append")), epochs=7)
    original = runner.run(checkpoint)
    logs = {}
    for epoch in range(1, 6):
        names = needed(checkpoint, epoch)
        logs[epoch] = [name.removeprefix("sources/0/") for name in names if name.startswith("sources/")]
        if epoch in (1, 2, 3):  # after 2 it is compacted
            assert runner.run(restore(checkpoint, tmp_path / str(epoch), names)) == after(original, epoch)
    assert [logs[epoch] for epoch in (1, 2, 4, 5)] == [
        ["0", "1"],
        ["2.compact"],
        ["2.compact", "3", "4"],
        ["2.compact", "5.compact"],
    ]


# --- several tries of one epoch --------------------------------------------------------------------------------------


def test_only_the_committed_try_of_an_epoch_is_taken(
    own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    """Checkpoint format 2: a failed try leaves state files of the same version with other ids."""
    runner = Runner(own_session, file_stream, LAYOUTS["rocksdb-changelog-format-2"], epochs=7)
    with pytest.raises(StreamingQueryException, match="failed on purpose"):
        runner.run(checkpoint, fail_in=3)
    original = runner.run(checkpoint)
    tries = [name for name in listed(checkpoint) if name.startswith("state/0/0/4_") and name.endswith(".changelog")]
    assert len(tries) == 2
    # As the newest change, and as one below it.
    for epoch in (3, 4):
        names = needed(checkpoint, epoch)
        assert len(set(tries) & set(names)) == 1
        assert runner.run(restore(checkpoint, tmp_path / str(epoch), names)) == after(original, epoch)


# --- purged epochs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hdfs", pytest.param("rocksdb-changelog-format-2", marks=pytest.mark.slow)])
def test_epochs_that_spark_has_purged_are_named_and_kept_ones_restart(
    name: str, own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    runner = Runner(own_session, file_stream, LAYOUTS[name])
    own_session.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    original = runner.run(checkpoint)
    commits = batch_ids(checkpoint, "commits")
    assert 2 <= len(commits) < EPOCHS - 1
    with pytest.raises(StateFileMissing, match=r"spark\.sql\.streaming\.minBatchesToRetain"):
        needed(checkpoint, commits[0] - 1)
    epoch = commits[-2]
    assert runner.run(restore(checkpoint, tmp_path / "kept", needed(checkpoint, epoch))) == after(original, epoch)


# --- fewer partitions ------------------------------------------------------------------------------------------------


def test_what_a_repartitioned_query_left_behind_is_not_taken(
    own_session: SparkSession, file_stream: MakeStream, checkpoint: Path, tmp_path: Path
) -> None:
    """Spark's own repartitioning is an epoch without input, and leaves the folders of the partitions it took away."""
    runner = Runner(own_session, file_stream, LAYOUTS["rocksdb-changelog"], epochs=5)
    own_session.conf.set("spark.sql.shuffle.partitions", "3")
    runner.run(checkpoint)
    own_session._streamingCheckpointManager.repartition(str(checkpoint), 2)
    runner.add(3)
    original = runner.run(checkpoint)
    assert sorted(original) == [6, 7, 8]
    assert {path.name for path in (checkpoint / "state" / "0").glob("[0-9]")} == {"0", "1", "2"}
    assert set(by_store(needed(checkpoint, 4))) == {"state/0/0", "state/0/1", "state/0/2"}
    for epoch in (5, 6):
        names = needed(checkpoint, epoch)
        assert set(by_store(names)) == {"state/0/0", "state/0/1"}
        assert runner.run(restore(checkpoint, tmp_path / str(epoch), names)) == after(original, epoch)
