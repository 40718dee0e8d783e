"""What every table format with versions must do as the sink of a job; each has a test module that inherits this.

Rows carry the release of the program that has written them. Going back and running a newer release must leave what the
old one had written up to the checkpoint, and behind it what the new one writes: no row lost, and none twice.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import coord_control as cc
from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.checkpoints.metadata_file import SinkSnapshot
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.errors import RestoreRefused
from coord_control.ids import Epoch, QueryName
from coord_control.spark.sinks.table_format import FORMATS
from tests.acceptance.docs_reader import exported, reading
from tests.cli_kit import call
from tests.compat.table_drivers import Drivers
from tests.docs_kit import blocks
from tests.kill.pausing import PAUSE_VARIABLE, Step, paused_mark
from tests.patience import SECONDS, eventually
from tests.places import CHECKOUT
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, Dialogue, MakeJob, apply, rows, talk
from tests.spark.streams import FileStream
from tests.spark_session import session_jars

__all__ = ["TableContract"]

_QUERY: Final = QueryName("q")
_DRIVER: Final = Path(__file__).with_name("table_driver.py")
_ROLLBACK_DRIVER: Final = Path(__file__).with_name("table_rollback_driver.py")
_names: Final = (f"t{number}" for number in itertools.count())

Rows = list[tuple[int, str]]


class TableContract(abc.ABC):
    """The tests; a subclass says what its format needs.

    Attributes:
        steps: where a driver that sets a table back is killed.
    """

    kind: str
    steps: Sequence[str]

    @abc.abstractmethod
    def create(self, session: SparkSession, name: str) -> str:
        """Create an empty table with the columns value and release, and return its name in SQL."""

    @abc.abstractmethod
    def read_late(self, session: SparkSession, folder: Path) -> DataFrame:
        """Return the table that the program of the format's page writes below a folder."""

    @abc.abstractmethod
    def remove_history(self, session: SparkSession, table: str) -> None:
        """Remove all versions but the newest one."""

    @pytest.fixture
    def table(self, own_session: SparkSession) -> str:
        return self.create(own_session, next(_names))

    @pytest.fixture
    def source(self, file_stream: MakeStream, own_session: SparkSession) -> FileStream:
        return file_stream(SCHEMA, session=own_session)

    def start(
        self,
        job: cc.Job,
        source: FileStream,
        session: SparkSession,
        table: str,
        release: str,
        *,
        operator: bool = False,
    ) -> None:
        frame = source.read(session)
        if operator:
            frame = apply(talk(job, Dialogue()), frame)
        marked = frame.select("value", sf.lit(release).alias("release"))
        job.start("q", marked.writeStream.format(self.kind).outputMode("append"), table=table)

    @pytest.mark.parametrize("operator", [False, True], ids=["plain", "operator"])
    def test_a_job_goes_back_with_its_table(
        self,
        make_job: MakeJob,
        own_session: SparkSession,
        source: FileStream,
        table: str,
        tmp_path: Path,
        *,
        operator: bool,
    ) -> None:
        def run(release: str, **options: Any) -> str:
            job = make_job(session=own_session, **options)
            self.start(job, source, own_session, table, release, operator=operator)
            eventually(lambda: job.status().queries and job.status().queries[0].committed == epochs - 1)
            path = job.trigger_savepoint().wait(SECONDS).path
            job.stop()
            return path

        for epoch in range(3):
            source.add(rows(epoch))
        epochs = 3
        early = run("one")
        for epoch in range(3, 5):
            source.add(rows(epoch))
        epochs = 5
        run("one")
        assert found(own_session, table) == written("one", 0, 5)

        with pytest.raises(RestoreRefused, match="skips them"):
            run("two", restore_from=early)
        run("two", restore_from=early, roll_back_sinks=True)
        assert found(own_session, table) == written("one", 0, 3) + written("two", 3, 5)

        # The same option again restores nothing.
        source.add(rows(5))
        epochs = 6
        run("three", restore_from=early, roll_back_sinks=True)
        assert found(own_session, table) == [*written("one", 0, 3), *written("two", 3, 5), *written("three", 5, 6)]

        # A command that finds it stopped sets it back once more.
        restore = ("restore", "job", early, "--root", str(tmp_path / "jobs"))
        assert "skips them" in call(*restore).output
        done = call(*restore, "--roll-back-sinks")
        assert done.exit_code == 0, done.output
        run("four")
        assert found(own_session, table) == written("one", 0, 3) + written("four", 3, 6)

    def test_a_checkpoint_records_the_version_at_its_boundary(
        self, make_job: MakeJob, own_session: SparkSession, source: FileStream, table: str
    ) -> None:
        """Also when later epochs, and others' rows, are in the table already."""
        for epoch in range(3):
            source.add(rows(epoch))
        job = make_job(session=own_session)
        self.start(job, source, own_session, table, "one")
        eventually(lambda: job.status().queries[0].committed == 2)
        sink = sink_of(job.trigger_checkpoint().wait(SECONDS).path)
        assert (sink.kind, sink.unknown) == (self.kind, "")
        assert sink.place is not None
        assert sink.position is not None
        assert found(own_session, table, sink.position) == written("one", 0, 3)

        identifier = str(next(iter(own_session.streams.active)).id)
        table_format = FORMATS[self.kind]
        for epoch in (0, 1):
            position = table_format.position(own_session, sink.place, identifier, Epoch(epoch))
            assert found(own_session, table, position) == written("one", 0, epoch + 1)
            assert table_format.exists(own_session, sink.place, position)
        own_session.sql(f"INSERT INTO {table} VALUES (-1, 'other')")
        position = table_format.position(own_session, sink.place, identifier, Epoch(2))
        assert found(own_session, table, position) == [(-1, "other"), *written("one", 0, 3)]

    def test_an_epoch_that_runs_again_after_a_way_back_and_forward_is_not_doubled(
        self, own_session: SparkSession, source: FileStream, table: str, tmp_path: Path
    ) -> None:
        """Fault: of Delta's transactions only those of later epochs were set, going back; forward they stayed."""

        def run() -> str:
            frame = source.read(own_session).select("value", sf.lit("one").alias("release"))
            writer = frame.writeStream.format(self.kind).outputMode("append").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable(table)
            assert query.awaitTermination(SECONDS)
            return str(query.id)

        for epoch in range(3):
            source.add(rows(epoch))
        identifier, table_format = run(), FORMATS[self.kind]
        early, late = (table_format.position(own_session, table, identifier, Epoch(epoch)) for epoch in (0, 2))
        for position, epochs in ((early, 1), (late, 3)):
            table_format.roll_back(own_session, table, position)
            assert found(own_session, table) == written("one", 0, epochs)
        for name in ("2", ".2.crc"):  # it was planned, and not committed
            (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
        assert run() == identifier
        assert found(own_session, table) == written("one", 0, 3)

    def test_a_version_that_the_table_has_removed_is_refused(
        self, make_job: MakeJob, own_session: SparkSession, source: FileStream, table: str
    ) -> None:
        for epoch in range(2):
            source.add(rows(epoch))
        with make_job(session=own_session) as job:
            self.start(job, source, own_session, table, "one")
            eventually(lambda: job.status().queries[0].committed == 1)
            early = job.trigger_savepoint().wait(SECONDS).path
            source.add(rows(2))
            eventually(lambda: job.status().queries[0].committed == 2)
        self.remove_history(own_session, table)
        again = make_job(session=own_session, restore_from=early, roll_back_sinks=True)
        with pytest.raises(RestoreRefused, match="cannot go back to version"):
            self.start(again, source, own_session, table, "two")
        assert found(own_session, table) == written("one", 0, 3)

    def test_a_fork_writes_to_its_own_table(
        self, make_job: MakeJob, own_session: SparkSession, source: FileStream, table: str
    ) -> None:
        for epoch in range(2):
            source.add(rows(epoch))
        with make_job(session=own_session) as job:
            self.start(job, source, own_session, table, "one")
            eventually(lambda: job.status().queries[0].committed == 1)
            early = job.trigger_savepoint().wait(SECONDS).path
        source.add(rows(2))
        separate = self.create(own_session, next(_names))
        with make_job("fork", session=own_session, restore_from=early) as job:
            self.start(job, source, own_session, separate, "two")
            eventually(lambda: job.status().queries[0].committed == 2)
        assert found(own_session, separate) == written("two", 2, 3)
        assert found(own_session, table) == written("one", 0, 2)

    # Of the file sink tests/kill/test_kill_rollback.py shows it in every run.
    @pytest.mark.slow
    def test_source_and_table_agree_whenever_a_driver_that_sets_it_back_is_killed(self, tmp_path: Path) -> None:
        drivers = Drivers(self.kind, tmp_path, _ROLLBACK_DRIVER)

        def run(release: str, *options: str) -> str:
            assert drivers.start(release, *options).wait(SECONDS) == 0, drivers.log()
            return (tmp_path / "savepoint").read_text()

        try:
            drivers.add(3)
            early = run("one")
            drivers.add(2)
            run("one")
            for step in (Step.RESTORE_COMMITTED.name, Step.SINKS_MARKED.name, *self.steps, self.steps[0]):
                paused_mark(tmp_path).unlink(missing_ok=True)
                driver = drivers.start("killed", "--restore", early, **{PAUSE_VARIABLE: step})
                _await_pause(tmp_path, driver, drivers)
                drivers.kill(driver)
            drivers.add(1)
            run("two", "--restore", early)
        finally:
            drivers.clean_up()
        table = [tuple(row) for row in json.loads((tmp_path / "result.json").read_text())]
        assert table == written("one", 0, 3) + written("two", 3, 6)

    def test_nothing_is_lost_or_written_twice_when_drivers_are_killed(self, tmp_path: Path) -> None:
        """A stream into a table, and a foreachBatch function that merges into another one, once per epoch."""
        drivers = Drivers(self.kind, tmp_path, _DRIVER)
        try:
            for files in (2, 4):
                drivers.add(2)
                driver = drivers.start()
                drivers.wait_for(files, driver)
                drivers.kill(driver)
            drivers.add(2)
            last = drivers.start("--finish")
            assert last.wait(SECONDS) == 0, drivers.log()
        finally:
            drivers.clean_up()
        result = json.loads((tmp_path / "result.json").read_text())
        assert result["appended"] == list(range(8 * 6))
        sums: dict[str, int] = {}
        for row in (row for file in range(6) for row in rows(file)):
            sums[row["key"]] = sums.get(row["key"], 0) + row["value"]
        assert result["merged"] == sums

    def test_the_program_and_the_commands_of_its_page_work(self, own_session: SparkSession, tmp_path: Path) -> None:
        exports, program, commands, *_ = blocks(CHECKOUT / "docs" / "operations" / f"{self.kind}.md")
        for reader in reading(tmp_path, "/tmp/tour", exported(exports, session_jars())):
            (tmp_path / "in").mkdir()
            _fly(tmp_path, 0, 20, 40, 90)
            reader.save("flights.py", program)
            for line in commands.text.splitlines():
                if line.startswith("coordctl restore"):  # what ran since the savepoint was wrong
                    reader.save("flights.py", dataclasses.replace(program, text=program.text.replace("> 30", "> 60")))
                if line.startswith("coordctl stop"):
                    _fly(tmp_path, 1, 50, 70)
                    reader.wait_for("flights", "late", 1)
                    assert _delays(self.read_late(own_session, tmp_path)) == [40, 50, 70, 90]
                reader.type(f".venv/bin/{line}")
                if line.startswith("coordctl run"):
                    reader.wait_for("flights", "late", len(list((tmp_path / "in").iterdir())) - 1)
            assert _delays(self.read_late(own_session, tmp_path)) == [40, 70, 90]
            reader.type(".venv/bin/coordctl stop flights")


def _fly(folder: Path, number: int, *delays: float) -> None:
    rows = [json.dumps({"carrier": "AA", "dep_delay": delay}) for delay in delays]
    (folder / f"{number}.json").write_text("\n".join(rows))
    (folder / f"{number}.json").rename(folder / "in" / f"{number}.json")


def _delays(table: DataFrame) -> list[float]:
    return sorted(row.dep_delay for row in table.collect())


def _await_pause(folder: Path, driver: subprocess.Popen[bytes], drivers: Drivers) -> None:
    def is_there() -> bool:
        assert driver.poll() is None, drivers.log()
        return paused_mark(folder).exists()

    eventually(is_there, drivers.log, pause=0.05)


def written(release: str, begin: int, end: int) -> Rows:
    """The rows of these epochs."""
    return [(value, release) for value in range(8 * begin, 8 * end)]


def found(session: SparkSession, table: str, version: str | None = None) -> Rows:
    """The rows of a table, by value."""
    suffix = "" if version is None else f" VERSION AS OF {version}"
    return sorted((row.value, row.release) for row in session.sql(f"SELECT * FROM {table}{suffix}").collect())


def sink_of(path: str) -> SinkSnapshot:
    metadata = read_metadata(LocalFiles(), path)
    assert metadata is not None
    sink = metadata.queries[_QUERY].sink
    assert sink is not None
    return sink
