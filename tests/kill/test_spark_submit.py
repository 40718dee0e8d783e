"""A job under `spark-submit` on a standalone cluster, as docs/operations/spark-submit.md says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil
import pyarrow.parquet as pq
import pytest

from tests.docs_kit import blocks
from tests.kill.standalone import MEGABYTES, Standalone
from tests.patience import SECONDS, eventually
from tests.places import CHECKOUT

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.slow]

_MARK: Final = "COORD_SUBMIT_TRIAL"  # in the environment of everything that the test starts
_PAGE: Final = CHECKOUT / "docs" / "operations" / "spark-submit.md"
_JOB: Final = """
    from pyspark.sql import SparkSession
    import coord_control as cc

    spark = SparkSession.builder.config("spark.executor.memory", "{memory}m").getOrCreate()
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json("in")
    with cc.Job("flights", spark, root="jobs") as job:
        writer = rows.repartition(2).writeStream.format("parquet").option("path", "out")
        job.start("copy", writer)
        job.await_termination()
"""


class Site:
    """A cluster with two workers, and a folder in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.cluster = Standalone(folder / "cluster", {_MARK: self.mark}, lambda done, what: eventually(done))
        for _ in range(2):
            self.cluster.add_worker()
        binaries = f"{Path(sys.executable).parent}:{self.cluster.home}/bin"
        self.environment: Mapping[str, str] = {
            **os.environ,
            _MARK: self.mark,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(CHECKOUT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": self.cluster.home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "COORD_CONTROL": f"sqlite:///{folder / 'control.db'}",
        }
        (folder / "in").mkdir()
        (folder / "flights.py").write_text(textwrap.dedent(_JOB).format(memory=MEGABYTES))
        self.sent = 0

    def begin(self, line: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                line.replace("spark://master:7077", self.cluster.url).split(),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def type(self, line: str, code: int = 0) -> str:
        done = subprocess.run(
            line, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, (line, done.stdout, done.stderr, self.log())
        return done.stdout + done.stderr

    def feed(self) -> None:
        """Add a file with ten rows."""
        rows = [json.dumps({"n": self.sent * 10 + row}) for row in range(10)]
        hidden = self.folder / f".{self.sent}"
        hidden.write_text("\n".join(rows))
        hidden.rename(self.folder / "in" / f"{self.sent}.json")
        self.sent += 1

    def await_all(self) -> None:
        """Wait until the sink has each row that was sent, and none twice."""
        eventually(lambda: sorted(self.rows()) == list(range(self.sent * 10)), self.log)

    def rows(self) -> list[int]:
        names = set()
        for entry in (self.folder / "out" / "_spark_metadata").glob("[0-9]*"):
            names |= {json.loads(line)["path"].rpartition("/")[2] for line in entry.read_text().splitlines()[1:]}
        tables = [pq.read_table(self.folder / "out" / name, partitioning=None) for name in names]
        return [row["n"] for table in tables for row in table.to_pylist()]

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:] if (self.folder / "log").exists() else ""

    def close(self) -> None:
        self.cluster.close()
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark:
                    process.kill()
            except psutil.Error:
                continue


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_a_job_is_asked_cut_off_stopped_and_set_back(site: Site) -> None:
    _run, submitted = blocks(_PAGE)
    submit, save, stop = submitted.text.splitlines()
    site.feed()
    driver = site.begin(submit)
    site.await_all()
    assert "savepoint" in site.type(save)
    assert "NOT_SUPERVISED" in site.type("coordctl restart flights", code=78)

    # The JVM gets the signal first, and the epoch is cut off.
    site.feed()
    driver.send_signal(signal.SIGTERM)
    driver.wait(SECONDS)
    site.feed()
    driver = site.begin(submit)
    site.await_all()

    site.feed()
    assert "savepoint" in site.type(stop)
    assert driver.wait(SECONDS) == 0, site.log()
    site.type("coordctl restore flights latest")
    site.feed()
    driver = site.begin(submit)
    site.await_all()
    site.type("coordctl stop flights")
    assert driver.wait(SECONDS) == 0, site.log()
