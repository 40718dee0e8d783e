"""A plain job as a service: killed, saved from the command line and from Dagster, stopped and restored.

Its driver runs under `coordctl run`; what is asked of it goes through the control database.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import dagster as dg
import psutil
import pytest

from coord_control.dagster.definitions.assets import build_assets
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.spec import StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from tests.patience import eventually
from tests.places import CHECKOUT
from tests.spark.jobs import rows

pytestmark = [pytest.mark.spark, pytest.mark.kill]

#: Two queries: a table of the rows that Spark's file sink keeps, and a file with the sums of each epoch.
_JOB: Final = """
    import json
    from pathlib import Path

    from pyspark.sql import SparkSession
    import coord_control as cc

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    rows = spark.readStream.schema("key STRING, value LONG").option("maxFilesPerTrigger", 1).json("in")

    def keep(frame, epoch):
        Path("sums", f".{epoch}").write_text(json.dumps(sorted(map(list, frame.collect()))))
        Path("sums", f".{epoch}").rename(f"sums/{epoch}.json")

    with cc.Job("service", spark, root="jobs") as job:
        sums = rows.groupBy("key").sum("value")
        job.start("sums", sums.writeStream.outputMode("update").foreachBatch(keep))
        job.start("rows", rows.writeStream.format("json").option("path", "rows"))
        job.await_termination()
"""


class Service:
    """The job, and a terminal in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = f"sqlite:///{folder / 'control.db'}"
        state = {"XDG_STATE_HOME": str(folder / "state"), "COORD_CONTROL": self.database, "COORD_ROOT": "jobs"}
        # PYTHONPATH may name the PySpark of this run.
        paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {**os.environ, **state, "PYTHONPATH": os.pathsep.join(paths)}
        self._files = 0
        self._log = Path()
        (folder / "in").mkdir()
        (folder / "sums").mkdir()
        (folder / "job.py").write_text(textwrap.dedent(_JOB))

    def type(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "coord_control.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=self._environment)
        assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.type(*arguments, "--json"))

    def start(self) -> None:
        started = self.type("run", "--detach", "--backoff-initial", "0.1s", "job.py")
        found = re.search(r"its log: (.*)", started)
        assert found is not None
        self._log = Path(found[1])

    def feed(self, files: int) -> None:
        """Give it so many epochs more, and wait until both queries have written their rows."""
        for _ in range(files):
            hidden = self.folder / "in" / f".{self._files:05}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows(self._files)))
            # Spark orders files by modification time.
            moment = time.time() - 86_400 + self._files
            os.utime(hidden, (moment, moment))
            hidden.rename(self.folder / "in" / f"{self._files:05}.json")
            self._files += 1

    def wait(self) -> None:
        """Wait until everything was processed."""

        def is_done() -> bool:
            assert "coordctl: done" not in (log := self._log.read_text()), log
            return self.sums() == self.expected_sums() and len(self.rows()) >= 8 * self._files

        eventually(is_done, self._log.read_text, pause=0.2)

    def kill(self) -> None:
        """End the driver at once, and its JVM with it."""
        driver = self.json("show", "service")["job"]
        os.killpg(driver["pid"], signal.SIGKILL)

    def sums(self) -> dict[str, int]:
        """The newest sum of each key."""
        found: dict[str, int] = {}
        for path in sorted((self.folder / "sums").glob("*.json"), key=lambda path: int(path.stem)):
            found.update(json.loads(path.read_text()))
        return found

    def expected_sums(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for row in (row for file in range(self._files) for row in rows(file)):
            sums[row["key"]] = sums.get(row["key"], 0) + row["value"]
        return sums

    def rows(self) -> list[int]:
        """The values of all rows in the table, as its log lists them."""
        names: set[str] = set()
        for entry in (self.folder / "rows" / "_spark_metadata").glob("[0-9]*"):
            lines = entry.read_text().splitlines()[1:]
            names |= {json.loads(line)["path"].rpartition("/")[2] for line in lines}
        texts = [(self.folder / "rows" / name).read_text() for name in names]
        return sorted(json.loads(line)["value"] for text in texts for line in text.splitlines())

    def materialize_savepoint(self) -> str:
        """Take a savepoint in a run of Dagster, and return its path."""
        job = StreamingJobSpec(name="service", queries=[])
        with dg.instance_for_test() as instance:
            result = dg.materialize(
                build_assets([job], StreamingJobTranslator()),
                selection=[dg.AssetKey(["service", "savepoint"])],
                resources={RESOURCE_KEY: ControlPlaneResource(database=self.database)},
                instance=instance,
            )
            (event,) = result.get_asset_materialization_events()
        found = event.step_materialization_data.materialization.metadata
        return str(found["coord_control/path"].value)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    yield Service(tmp_path)
    for process in _processes_in(tmp_path):
        process.kill()


def _processes_in(folder: Path) -> list[psutil.Process]:
    """All that runs in the folder: the supervisor, drivers, their JVMs and workers."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


# In every run tests/kill, tests/acceptance and spark/test_sink_rollback.py show its parts.
@pytest.mark.slow
def test_a_plain_job_is_killed_saved_stopped_and_restored(service: Service) -> None:
    service.start()
    for _ in range(3):
        service.feed(2)
        service.wait()
        service.feed(1)
        service.kill()
    service.wait()
    assert service.rows() == list(range(8 * 9))

    early = service.json("savepoint", "create", "service", "--label", "early")["result"]["path"]
    path = service.materialize_savepoint()
    service.type("savepoint", "verify", path)
    service.feed(2)
    service.wait()
    service.type("stop", "service", "--savepoint", "--label", "end")
    eventually(lambda: not _processes_in(service.folder))
    assert service.rows() == list(range(8 * 11))

    # Back, with the table: what comes after the savepoint is computed and written again.
    service.type("restore", "service", "early", "--roll-back-sinks", "--check")
    service.type("restore", "service", "early", "--roll-back-sinks")
    before = {path.name: path.stat().st_mtime_ns for path in (service.folder / "sums").glob("*.json")}
    service.start()
    service.feed(1)
    service.wait()
    after = {path.name: path.stat().st_mtime_ns for path in (service.folder / "sums").glob("*.json")}
    assert [name for name in before if before[name] != after[name]]
    assert service.sums() == service.expected_sums()
    assert service.rows() == list(range(8 * 12))
    assert early in service.type("savepoint", "list", "service")
