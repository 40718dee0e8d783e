"""`coordctl upgrade` of a real job while rows arrive: none is lost and none doubled, whatever becomes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow.parquet as pq
import pytest

from coord_control.dagster.definitions.action_jobs import build_jobs
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.spec import StartSpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.job_folder.upgrade_record import UpgradeStep, read_upgrade
from coord_control.durable.spark_layout.file_sink_log import LOG_NAME
from tests.patience import eventually
from tests.places import CHECKOUT

pytestmark = pytest.mark.spark

_JOB: Final = """
    import sys
    from pyspark.sql import SparkSession, functions as f
    import coord_control as cc

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    rows = spark.readStream.schema("n long").json("in")
    with cc.Job("copy", spark, root="jobs") as job:
        out = rows.select("n", f.lit("{version}").alias("version")).where({where})
        job.start("{query}", out.writeStream.format("parquet").option("path", "out"))
        {extra}
        job.await_termination()
"""
_FAILS: Final = "'raise_error(cast(n as string)) is null'"
_VERIFY: Final = ("--verify-for", "10s", "--start-within", "90s")


class Feed:
    """Writes a file with one row more, again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.count = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        folder.mkdir()
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._is_over.wait(0.6):
            hidden = self._folder / f".{self.count}"
            hidden.write_text(json.dumps({"n": self.count}))
            hidden.rename(self._folder / f"{self.count}.json")
            self.count += 1


class Place:
    """A job that copies rows, and somebody who upgrades it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state = {"XDG_STATE_HOME": str(folder / "state"), "COORD_CONTROL": f"sqlite:///{folder / 'control.db'}"}
        self._environment = {**os.environ, **state, "PYTHONPATH": str(CHECKOUT)}
        self.job_folder = str(folder / "jobs" / "copy")
        self.feed = Feed(folder / "in")
        self.write("old")
        self.type("run", "--detach", "old.py")

    def write(self, name: str, *, query: str = "rows", where: str = "'n is not null'", extra: str = "pass") -> None:
        source = textwrap.dedent(_JOB).format(version=name, query=query, where=where, extra=extra)
        (self.folder / f"{name}.py").write_text(source)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "coord_control.cli", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, cwd=self.folder, env=self._environment, start_new_session=True
        )

    def type(self, *arguments: str, code: int = 0) -> str:
        process = self.begin(*arguments)
        out, error = process.communicate()
        assert process.returncode == code, (arguments, process.returncode, out, error)
        return out

    def upgrade(self, name: str, code: int = 0) -> dict[str, Any]:
        out = self.type("upgrade", "copy", "--script", f"{name}.py", *_VERIFY, "--json", code=code)
        found: dict[str, Any] = json.loads(out)["upgrade"]
        return found

    def upgrade_from_dagster(self, script: str, **config: Any) -> tuple[dict[str, Any], str]:
        """Run ``upgrade_streaming_job`` for a definition that names a script; return its metadata and its failure."""
        start = StartSpec(script=script, working_directory=str(self.folder), env={"PYTHONPATH": str(CHECKOUT)})
        jobs = build_jobs([StreamingJobSpec(name="copy", start=start)], StreamingJobTranslator())
        [job] = [each for each in jobs if each.name == "upgrade_streaming_job"]
        resource = ControlPlaneResource(database=self._environment["COORD_CONTROL"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", self._environment["XDG_STATE_HOME"])
            result = job.execute_in_process(
                run_config={"ops": {job.name: {"config": config}}},
                resources={RESOURCE_KEY: resource},
                raise_on_error=False,
            )
        [failure] = [each.step_failure_data for each in result.all_events if each.is_step_failure]
        assert failure.user_failure_data is not None, failure.error
        found = {name.removeprefix("coord_control/"): v.value for name, v in failure.user_failure_data.metadata.items()}
        return found, failure.user_failure_data.description or ""

    def end(self) -> list[str]:
        """Let the job read what is left, stop it, and return the versions of the rows in their order."""
        self.feed.end()
        eventually(lambda: len(self.rows()) >= self.feed.count)
        self.type("stop", "copy")
        rows = self.rows()
        assert Counter(n for n, _ in rows) == Counter(range(self.feed.count))
        return [version for _, version in sorted(rows)]

    def rows(self) -> list[tuple[int, str]]:
        """The rows that readers of the file sink see: those of the files in its log."""
        tables = [pq.read_table(self.folder / "out" / name, partitioning=None) for name in self._logged()]
        return [(row["n"], row["version"]) for table in tables for row in table.to_pylist()]

    def _logged(self) -> set[str]:
        log = self.folder / "out" / LOG_NAME
        entries = {int(path.name.partition(".")[0]): path for path in sorted(log.glob("[0-9]*"))}
        names = set()
        for path in entries.values():
            names |= {json.loads(line)["path"].rpartition("/")[2] for line in path.read_text().splitlines()[1:]}
        return names


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        eventually(lambda: len(place.rows()) > 2)
        yield place
    finally:
        place.feed.end()
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(tmp_path):
                    process.kill()
            except psutil.Error:
                continue


@pytest.mark.slow
def test_a_program_that_fails_is_rolled_back(place: Place) -> None:
    place.write("new", where=_FAILS)
    found = place.upgrade("new", code=1)
    assert found["step"] == "rolled_back"
    assert "restarted" in found["why"] or "has ended" in found["why"] or "do not run" in found["why"]
    assert set(place.end()) == {"old"}


def test_an_upgrade_is_refused_then_rolled_back_and_then_done(place: Place) -> None:
    """One job has it all: a program that does not fit, one that fails later (from Dagster), and one that is fine."""
    _check_refused(place)
    place.write("wrong", extra="import os, threading; threading.Timer(8, os._exit, [1]).start()")
    shown, problem = place.upgrade_from_dagster("wrong.py", verify_seconds=60.0)
    assert "wrong.py has failed: its driver was restarted: generation" in problem
    assert shown["step"] == "rolled_back"
    restored = newest_restore(LocalFiles(), place.job_folder)
    assert restored is not None
    assert (restored.key, restored.path) == (f"upgrade-{shown['upgrade']}-back", shown["path"])
    _upgrade_though_killed(place, UpgradeStep.START)


def _check_refused(place: Place) -> None:
    """A program that does not fit is refused before the old one stops."""
    place.write("other", query="others")
    found = place.upgrade("other", code=78)
    assert (found["step"], found["savepoint"]) == ("refused", None)
    assert "others" in found["why"]
    assert not list(Path(place.job_folder, "generations").glob("2.json"))


@pytest.mark.slow
@pytest.mark.parametrize("step", [UpgradeStep.CHECK, UpgradeStep.STOP, UpgradeStep.VERIFY])
def test_an_upgrade_that_is_killed_is_continued_by_the_same_command(place: Place, step: UpgradeStep) -> None:
    _upgrade_though_killed(place, step)


def _upgrade_though_killed(place: Place, step: UpgradeStep) -> None:
    """Kill the command at a step, repeat it, and end the job: it has rows of the old program, then of the new."""
    place.write("new")
    process = place.begin("upgrade", "copy", "--script", "new.py", *_VERIFY)

    def is_there() -> bool:
        found = read_upgrade(LocalFiles(), place.job_folder)
        assert process.poll() is None, process.communicate()
        return found is not None and found.step is step

    eventually(is_there)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert place.upgrade("new")["step"] == "done"
    assert "upgrade-check" not in os.listdir(place.job_folder)
    versions = place.end()
    assert versions == sorted(versions, reverse=True)  # "old" before "new"
    assert set(versions) == {"old", "new"}
