"""A job goes back to an older checkpoint with its sinks: afterwards the output is that of a job that never went on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import coord_control as cc
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.offline.offline_restore import check_restore, restore_job
from coord_control.durable.offline.undo import undo_restore
from coord_control.durable.restore.checks import Verdict
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import DamagedRecord, QueryFailed, RestoreNotUndone, RestoreRefused
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob, query_status, rows
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

EPOCH_ROWS = 4
FILES = LocalFiles()


class Runs:
    """Runs of a program that writes with Spark's file sink; each release of it marks its rows."""

    def __init__(self, make_job: MakeJob, session: SparkSession, source: FileStream, root: Path) -> None:
        self._make_job, self._session, self._source = make_job, session, source
        self.out = root / "out"
        self.root = str(root / "jobs")
        self._epochs = 0

    def input(self, epochs: int) -> None:
        """Add so many epochs of input."""
        for _ in range(epochs):
            self._source.add(rows(self._epochs, EPOCH_ROWS))
            self._epochs += 1

    def __call__(self, release: str, *, savepoint: bool = False, **options: Any) -> str:
        """Run over all input that is there, and return a savepoint of its end if one is wanted."""
        with self._make_job(session=self._session, **options) as job:
            self.start(job, release)
            assert job.await_termination(SECONDS)
            return job.trigger_savepoint().wait(SECONDS).path if savepoint else ""

    def start(self, job: cc.Job, release: str) -> None:
        writer = (
            self.frame(release).writeStream.format("parquet").option("path", str(self.out)).trigger(availableNow=True)
        )
        job.start("q", writer)

    def frame(self, release: str) -> DataFrame:
        return self._source.read().select("value", F.lit(release).alias("release"))

    def nothing(self) -> DataStreamWriter:
        """A writer of a query that writes elsewhere."""
        return self._source.read().writeStream.format("noop").trigger(availableNow=True)

    def output(self) -> dict[int, str]:
        """Which release has written each value."""
        frame: DataFrame = self._session.read.parquet(str(self.out))
        found = [(row["value"], row["release"]) for row in frame.collect()]
        assert len(dict(found)) == len(found), "a row came out twice"
        return dict(found)

    def restore(self, ref: str, **options: Any) -> None:
        """Restore without the program."""
        request = RestoreRequest(ref=ref, **options)
        restore_job(FILES, lambda path: FILES, request, root=self.root, job="job")

    def log(self) -> set[str]:
        return {path.name for path in (self.out / "_spark_metadata").iterdir()}


def released(*parts: tuple[str, int]) -> dict[int, str]:
    """What is to be in the output: each release with its number of epochs."""
    marks = [release for release, epochs in parts for _ in range(epochs * EPOCH_ROWS)]
    return dict(enumerate(marks))


@pytest.fixture
def runs(make_job: MakeJob, spark: SparkSession, source: FileStream, tmp_path: Path, file_stream: MakeStream) -> Runs:
    return Runs(make_job, spark, file_stream(), tmp_path)


@pytest.fixture
def compacting(make_job: MakeJob, own_session: SparkSession, tmp_path: Path, file_stream: MakeStream) -> Runs:
    """The log is compacted at every third epoch, and what is older is removed at once."""
    own_session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    own_session.conf.set("spark.sql.streaming.fileSink.log.cleanupDelay", "0")
    own_session.conf.set("spark.sql.streaming.minBatchesToRetain", "5")
    return Runs(make_job, own_session, file_stream(session=own_session), tmp_path)


def test_rows_of_epochs_that_the_file_sink_has_are_not_lost_in_silence(runs: Runs) -> None:
    """Fault: rows were lost, and the restore was accepted with a warning."""
    runs.input(3)
    path = runs("one", savepoint=True)
    runs.input(3)
    runs("one")
    with pytest.raises(RestoreRefused, match="epochs 3 to 5 were received after the checkpoint") as refused:
        runs("two", restore_from=path)
    for way_out in ("--roll-back-sinks", "--as NAME", "--accept-skipped-epochs"):
        assert way_out in str(refused.value)
    runs.input(3)
    runs("two", restore_from=path, accept_skipped_epochs=True)
    assert runs.output() == released(("one", 6), ("two", 3)), "the sink skips what it has"


def test_a_file_sink_goes_back_with_its_job(runs: Runs) -> None:
    runs.input(3)
    path = runs("one", savepoint=True)
    runs.input(3)
    runs("one")
    runs.input(1)
    runs("two", restore_from=path, roll_back_sinks=True)
    assert runs.output() == released(("one", 3), ("two", 4))
    # Asked for again, the job resumes where it stands.
    runs.input(1)
    runs("three", restore_from=path, roll_back_sinks=True)
    assert runs.output() == released(("one", 3), ("two", 4), ("three", 1))


@pytest.mark.parametrize("kind", ["checkpoint", pytest.param("savepoint", marks=pytest.mark.slow)])
def test_a_compacted_log_goes_back(compacting: Runs, make_job: MakeJob, kind: str, own_session: SparkSession) -> None:
    """What holds the epochs up to the boundary is gone by then, and what is there holds later ones."""
    compacting.input(8)
    with make_job(session=own_session) as job:
        compacting.start(job, "one")
        assert job.await_termination(SECONDS)
        take = job.trigger_savepoint if kind == "savepoint" else job.trigger_checkpoint
        path = take().wait(SECONDS).path
    compacting.input(8)
    compacting("one")
    assert "7" not in compacting.log()
    compacting("two", restore_from=path, roll_back_sinks=True)
    assert compacting.output() == released(("one", 8), ("two", 8))
    compacting.input(9)  # it is compacted again
    compacting("three")
    assert compacting.output() == released(("one", 8), ("two", 8), ("three", 9))


def test_a_file_sink_goes_back_and_forth(compacting: Runs) -> None:
    compacting.input(4)
    early = compacting("one", savepoint=True)
    compacting.input(5)
    late = compacting("one", savepoint=True)
    compacting.input(5)
    compacting("one")
    compacting("two", restore_from=early, roll_back_sinks=True)
    assert compacting.output() == released(("one", 4), ("two", 10))
    # The files of the epochs between are still there.
    with pytest.raises(RestoreRefused, match="set back to epoch 3 after the checkpoint, which is of epoch 8"):
        compacting.restore(late)
    compacting.restore(late, roll_back_sinks=True)
    compacting("three")
    assert compacting.output() == released(("one", 9), ("three", 5))
    compacting.restore(early, roll_back_sinks=True)
    compacting("four")
    assert compacting.output() == released(("one", 4), ("four", 10))


def test_a_query_before_its_first_epoch_goes_back_to_an_empty_output(runs: Runs, make_job: MakeJob) -> None:
    with make_job() as job:
        runs.start(job, "one")
        path = job.trigger_savepoint().wait(SECONDS).path
    runs.input(3)
    runs("one")
    runs("two", restore_from=path, roll_back_sinks=True)
    assert runs.output() == released(("two", 3))


def test_the_driver_after_a_restore_without_the_program_sets_the_sinks_back(runs: Runs) -> None:
    runs.input(3)
    path = runs("one", savepoint=True)
    runs.input(3)
    runs("one")
    with pytest.raises(RestoreRefused):
        runs.restore(path)
    before = runs.log()
    request = RestoreRequest(ref=path, roll_back_sinks=True)
    _, checks = check_restore(FILES, lambda path: FILES, request, root=runs.root, job="job")
    [check] = [check for check in checks if check.name == "sink"]
    assert check.verdict is Verdict.OK
    assert f"file:{runs.out} is set back to epoch 2" in check.found
    # Until a driver has begun, it can be undone.
    runs.restore(path, roll_back_sinks=True)
    undo_restore(FILES, f"{runs.root}/job")
    assert runs.log() == before
    assert runs.output() == released(("one", 6))
    runs.restore(path, roll_back_sinks=True)
    shutil.rmtree(path)  # it is not needed any more
    runs("two")
    assert runs.output() == released(("one", 3), ("two", 3))


def test_a_restore_that_a_query_refuses_leaves_the_sinks_alone(runs: Runs, make_job: MakeJob) -> None:
    runs.input(3)
    path = runs("one", savepoint=True)
    runs.input(3)
    runs("one")
    before = runs.log()
    runs.restore(path, roll_back_sinks=True)
    with make_job() as job:
        with pytest.raises(RestoreRefused, match="another"):
            job.start("another", runs.nothing())
    assert runs.log() == before
    undo_restore(FILES, f"{runs.root}/job")
    runs.input(1)
    runs("one")
    assert runs.output() == released(("one", 7))


def test_a_restore_whose_sinks_are_back_cannot_be_undone(
    runs: Runs, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.input(3)
    path = runs("one", savepoint=True)
    runs.input(3)
    runs("one")
    runs.restore(path, roll_back_sinks=True)

    def dies(*args: object) -> None:
        raise OSError("the storage of the sink hangs")

    with monkeypatch.context() as patch:
        patch.setattr("coord_control.spark.job.sink_rollback.set_back_file_sink", dies)
        with pytest.raises(OSError, match="hangs"):
            runs("two")
    with pytest.raises(RestoreNotUndone, match="sinks"):
        undo_restore(FILES, f"{runs.root}/job")
    runs("two")
    assert runs.output() == released(("one", 3), ("two", 3))


def test_an_entry_that_another_driver_writes_after_the_rollback_ends_the_query(runs: Runs, make_job: MakeJob) -> None:
    """Fault: Spark skipped all epochs up to that entry, and later could not read its log at all."""
    runs.input(3)
    path = runs("one", savepoint=True)
    runs.input(3)
    runs("one")
    runs.input(1)
    late = runs.out / "_spark_metadata" / "9"
    left = (runs.out / "_spark_metadata" / "5").read_bytes()
    said = "its newest entry is 9, and its query has planned epochs up to"
    with make_job(restore_from=path, roll_back_sinks=True) as job:
        frame = runs.frame("two")
        job.start("q", frame.writeStream.format("parquet").option("path", str(runs.out)))
        eventually(lambda: query_status(job).committed >= 6)
        late.write_bytes(left)
        runs.input(1)
        with pytest.raises(QueryFailed, match=said):
            job.await_termination(SECONDS)
    runs.input(1)
    with pytest.raises(DamagedRecord, match=said):
        runs("three")
    runs.restore(path, roll_back_sinks=True)
    runs("three")
    assert runs.output() == released(("one", 3), ("three", 6))


def test_a_fork_leaves_the_sinks_of_its_original_alone(runs: Runs, make_job: MakeJob, tmp_path: Path) -> None:
    runs.input(3)
    path = runs("one", savepoint=True)
    runs.input(3)
    runs("one")
    before = runs.log()
    with pytest.raises(RestoreRefused, match="the sinks belong to the original"):
        make_job("fork", restore_from=path, roll_back_sinks=True)
    with make_job("fork", restore_from=path) as job:
        job.start("q", runs.nothing())
        assert job.await_termination(SECONDS)
    assert runs.log() == before
    assert runs.output() == released(("one", 6))
