"""A real job in the background, asked from the command line: nothing is left of it after `coordctl stop`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.errors import DatabaseError, JobNotFound
from coord_control.storage.records import JobState
from tests.patience import eventually

# In every run: test_live_pages.py types most of these commands; test_coordctl_detach.py has the rest, without Spark.
pytestmark = [pytest.mark.spark, pytest.mark.slow]

_CHECKOUT = Path(__file__).resolve().parents[2]
_JOB = """
    from pyspark.sql import SparkSession
    import coord_control as cc

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    with cc.Job("background", spark, root="jobs") as job:
        job.start("rows", rows.writeStream.format("parquet").option("path", "out"))
        job.await_termination()
"""


class Terminal:
    """Somebody who types commands into one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        state = {"XDG_STATE_HOME": str(folder / "state"), "COORD_CONTROL": f"sqlite:///{folder / 'control.db'}"}
        self._environment = {**os.environ, **state, "PYTHONPATH": str(_CHECKOUT)}

    def type(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "coord_control.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self._folder, env=self._environment)
        assert done.returncode == 0 or not check, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self.type(*arguments, "--json").stdout)

    def wait_until_running(self, log: Path) -> None:
        with ControlClient(self._environment["COORD_CONTROL"]) as client:
            eventually(lambda: _is_running(client, log), log.read_text)
        assert self.json("show", "background")["job"]["state"] == "running"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    yield Terminal(tmp_path)
    for process in _processes_in(tmp_path):
        process.kill()


def _is_running(client: ControlClient, log: Path) -> bool:
    assert "coordctl: done" not in log.read_text(), log.read_text()
    try:
        return client.job("background").state is JobState.RUNNING
    except (DatabaseError, JobNotFound):  # its driver is about to make it
        return False


def _processes_in(folder: Path) -> list[psutil.Process]:
    """Everything that runs in the folder: the supervisor, drivers, their JVMs and workers."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_job_in_the_background_from_its_start_to_its_end(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(textwrap.dedent(_JOB))
    started = terminal.type("run", "--detach", "job.py").stdout
    found = re.search(r"its log: (.*)", started)
    assert found is not None
    log = Path(found[1])
    terminal.wait_until_running(log)

    assert terminal.json("checkpoint", "trigger", "background")["state"] == "completed"
    assert terminal.json("restart", "background")["result"] == {"generation": 2}
    [job] = terminal.json("jobs")
    assert (job["generation"], job["is_supervised"], job["log_file"]) == (2, True, str(log))
    logged = terminal.type("logs", "background", "-n", "100000").stdout
    assert "driver started" in logged
    hint = "show it: coordctl show background; stop it: coordctl stop background"
    assert f"job background is running, generation 2; {hint}" in logged
    stopped = terminal.json("stop", "background", "--savepoint", "--label", "end")

    while _processes_in(tmp_path):
        time.sleep(0.1)
    assert Path(stopped["result"]["savepoint"]["path"], "_metadata").exists()
    assert "done: the job is finished (exit code 0)" in log.read_text()
    assert terminal.type("checkpoint", "trigger", "background", check=False).returncode == 75
