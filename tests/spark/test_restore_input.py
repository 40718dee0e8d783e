"""A restore to an older cut reads files again: those that are gone refuse it, unless that is allowed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.errors import QueryFailed, RestoreRefused
from tests import cli_kit
from tests.patience import SECONDS
from tests.spark.jobs import (
    MakeJob,
    Trouble,
    drain,
    write,
)

pytestmark = pytest.mark.spark

SCHEMA: Final = "value LONG"
#: Each is a trap of its own: what URIs escape, what globs mean, and what is no ASCII.
NAMES: Final = ("plain", "a b", "a%20b", "50%", "ü+#?&", "日本", "x;y,[z]{w}^`|", "q'\"q")

Results = dict[int, list[int]]


class Input:
    """A folder of files with one row each, read one by one in the order in which they were added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.archive = folder.parent / "archive"
        self._first = time.time() - 86_400
        self._count = 0
        folder.mkdir(parents=True)

    def add(self, count: int) -> None:
        for number in range(self._count, self._count + count):
            name = f"{NAMES[number % len(NAMES)]}-{number}.json"
            hidden = self.folder / f".{number}"
            hidden.write_text(f'{{"value": {number}}}\n')
            os.utime(hidden, (self._first + number,) * 2)
            hidden.rename(self.folder / name)
        self._count += count

    def read(self, session: SparkSession, clean: str = "off") -> DataFrame:
        reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).option("cleanSource", clean)
        return reader.option("sourceArchiveDir", str(self.archive)).json(str(self.folder))

    def remove(self, *numbers: str) -> None:
        for path in self.folder.glob("*.json"):
            if not numbers or path.stem.rpartition("-")[2] in numbers:
                path.unlink()

    def unarchive(self) -> None:
        for path in self.archive.rglob("*.json"):
            path.rename(self.folder / path.name)


@pytest.fixture
def session(own_session: SparkSession) -> SparkSession:
    """Compacts the logs of file sources often, and removes what was compacted at once."""
    own_session.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "3")
    own_session.conf.set("spark.sql.streaming.fileSource.log.cleanupDelay", "0")
    return own_session


@pytest.fixture
def given(tmp_path: Path) -> Input:
    return Input(tmp_path / "in put" / "50%")


class Runs:
    """Runs the job over all that is there; the sink keeps what each epoch gave last."""

    def __init__(self, make_job: MakeJob, session: SparkSession, given: Input, folder: Path) -> None:
        self._make_job = make_job
        self._session = session
        self._given = given
        self._folder = folder
        self.results: Results = {}

    def __call__(self, count: int = 0, *, clean: str = "off", label: str | None = None, **options: Any) -> None:
        self._given.add(count)

        def keep(batch: DataFrame, epoch: int) -> None:
            self.results[epoch] = [row.value for row in batch.collect()]

        job = self._make_job(session=self._session, **options)
        drain(job, self._given.read(self._session, clean).writeStream.foreachBatch(keep))
        if label is not None:
            job.trigger_savepoint(label=label).wait(SECONDS)
        job.stop()

    def values(self) -> list[int]:
        return [value for epoch in sorted(self.results) for value in self.results[epoch]]

    def checks(self, ref: str, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        """Return what ``coordctl restore --check`` says of the input."""
        root = ("--root", str(self._folder / "jobs"))
        found = cli_kit.run_json(self._folder, "restore", "job", ref, *root, "--check", *arguments, code=code)
        return [each for each in found["checks"] if each["name"] == "input"]

    def check(self, ref: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        [check] = self.checks(ref, *arguments, code=code)
        return check


@pytest.fixture
def runs(make_job: MakeJob, session: SparkSession, given: Input, tmp_path: Path) -> Runs:
    return Runs(make_job, session, given, tmp_path)


#: Files that are read after the checkpoint; logs of sources are compacted every three epochs.
_LATER: Final = 8
REMOVALS: Final = {"delete": "delete", "archive": "archive", "by hand": "off"}


@pytest.mark.parametrize("clean", REMOVALS.values(), ids=REMOVALS)
def test_a_restore_whose_input_is_gone_is_refused_and_not_done_without_a_word(
    runs: Runs, given: Input, make_job: MakeJob, session: SparkSession, tmp_path: Path, clean: str
) -> None:
    runs(5, clean=clean, label="early")
    assert runs.check("early")["found"] == "no file was read after the checkpoint"
    runs(_LATER, clean=clean)
    assert runs.values() == list(range(5 + _LATER))
    if clean == "off":
        assert runs.check("early")["found"] == f"all {_LATER} files that were read after the checkpoint are there"
        given.remove()
    # Spark cleans up an epoch when it plans the next one: the last file is still there.
    left = sorted(path.name for path in given.folder.glob("*.json"))
    count = _LATER - len(left)
    check = runs.check("early", code=78)
    assert (check["verdict"], check["subject"]) == ("refused", "q/0")
    assert check["found"].startswith(f"{count} of {_LATER} files that were read after the checkpoint are gone")
    assert "--allow-missing-input" in check["way_out"]
    with pytest.raises(RestoreRefused, match=f"{count} of {_LATER} files"):
        make_job(session=session, restore_from="early")
    jobs = tmp_path / "jobs"
    cli_kit.run(tmp_path, "restore", "job", "early", "--root", str(jobs), code=78)
    assert newest_restore(LocalFiles(), str(jobs / "job")) is None
    if clean == "archive":
        given.unarchive()
        assert runs.check("early")["verdict"] == "ok"
        runs.results.clear()
        runs(restore_from="early")
        assert runs.values() == list(range(5, 5 + _LATER))
        return
    assert runs.check("early", "--allow-missing-input")["verdict"] == "warning"
    runs.results.clear()
    runs(restore_from="early", allow_missing_input=True)
    assert len(runs.values()) == len(left)
    record = newest_restore(LocalFiles(), str(jobs / "job"))
    assert record is not None
    assert record.allow_missing_input


def test_a_restored_lineage_goes_back_to_an_older_cut_and_its_own_input_counts_too(
    runs: Runs, given: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(4, label="one")
    runs(4, label="two")
    runs(4)
    runs(restore_from="two")
    runs(2)
    assert runs.check("one")["found"] == "all 10 files that were read after the checkpoint are there"
    given.remove("5", "9", "13")
    check = runs.check("one", code=78)
    assert check["found"].startswith("3 of 10 files that were read after the checkpoint are gone")
    assert all(f"-{number}.json" in check["found"] for number in (5, 9, 13))
    assert runs.check("two", code=78)["found"].startswith("2 of 6 files")
    runs.results.clear()
    monkeypatch.setenv("COORD_RESTORE_FROM", "one")
    monkeypatch.setenv("COORD_ALLOW_MISSING_INPUT", "1")
    runs(label="three")
    monkeypatch.undo()
    assert runs.values() == [4, 6, 7, 8, 10, 11, 12]
    # What this restore has given up is no longer asked for.
    runs(1)
    assert runs.check("three")["found"] == "all 1 files that were read after the checkpoint are there"


def test_a_fork_from_an_older_cut_needs_the_same_input(
    runs: Runs, given: Input, make_job: MakeJob, tmp_path: Path
) -> None:
    runs(2, label="early")
    runs(3)
    assert runs.check("early", "--as", "fork")["verdict"] == "ok"
    given.remove("4")
    assert runs.check("early", "--as", "fork", code=78)["found"].startswith("1 of 3 files")
    with pytest.raises(RestoreRefused, match="1 of 3 files"):
        make_job("fork", restore_from=str(tmp_path / "jobs/job/savepoints/1-early"))


def test_in_another_root_it_is_not_known_what_was_read_after_the_cut(runs: Runs, given: Input, tmp_path: Path) -> None:
    runs(2, label="early")
    runs(3)
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "jobs" / "job" / "savepoints" / "1-early", moved)
    arguments = ("restore", "job", str(moved), "--root", str(tmp_path / "other"), "--check")
    [check] = [each for each in cli_kit.run_json(tmp_path, *arguments)["checks"] if each["name"] == "input"]
    assert (check["verdict"], check["subject"]) == ("warning", "q/0")
    assert "not known here" in check["found"]


def test_a_cut_with_a_planned_epoch_needs_the_input_of_that_epoch(
    runs: Runs, given: Input, make_job: MakeJob, session: SparkSession, tmp_path: Path
) -> None:
    runs(2)
    given.add(1)

    def fail(batch: DataFrame, epoch: int) -> None:
        raise Trouble(f"in epoch {epoch}")

    job = make_job(session=session)
    job.start("q", given.read(session).writeStream.foreachBatch(fail))
    with pytest.raises(QueryFailed):
        job.await_termination(SECONDS)
    job.stop()
    cli_kit.run(tmp_path, "savepoint", "create", "job", "--root", str(tmp_path / "jobs"), "--label", "dead")
    assert runs.check("dead")["found"] == "all 1 files that were read after the checkpoint are there"
    given.remove("2")
    assert runs.check("dead", code=78)["found"].startswith("1 of 1 files")


def test_a_source_without_files_is_said_to_be_unseen(
    make_job: MakeJob, session: SparkSession, runs: Runs, given: Input
) -> None:
    given.add(1)
    job = make_job(session=session)
    rate = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().select("value")
    drain(job, write(rate.union(given.read(session))))
    job.trigger_savepoint(label="early").wait(SECONDS)
    job.stop()
    of_rate, of_files = runs.checks("early")
    assert (of_rate["subject"], of_rate["verdict"]) == ("q/0", "warning")
    assert "it is not a file source" in of_rate["found"]
    assert (of_files["subject"], of_files["verdict"]) == ("q/1", "ok")


def test_a_savepoint_of_a_restored_query_can_be_restored_at_whatever_interval_spark_compacts_the_log(
    runs: Runs,
) -> None:
    """Bug: of compacted entries only the newest was kept. From one Spark derives another interval than from two, so the
    restored query compacted its log every six epochs, and the next one missed the entries of every third.
    """
    runs(7, label="first")
    runs(8, restore_from="first", label="second")
    runs(1, restore_from="second")
    assert runs.values() == list(range(16))
