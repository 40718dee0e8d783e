"""`kill -9` of drivers that set back the sink of their job, at each step; then another one finishes.

What the sink holds in the end is what it would hold if the job had never run past the savepoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.restore_log import standing_restores
from tests.kill.life import CHECKOUT
from tests.kill.pausing import PAUSE_VARIABLE, Step, paused_mark
from tests.kill.rollback_driver import SETTINGS, copy_rows
from tests.patience import SECONDS

pytestmark = [pytest.mark.kill, pytest.mark.spark]

_STEPS = (Step.SINKS_MARKED, Step.ENTRY_PUT_BACK, Step.LATER_ENTRY_REMOVED)


def _feed(folder: Path, epochs: range) -> None:
    folder.mkdir(exist_ok=True)
    for epoch in epochs:
        hidden = folder / f".{epoch:03}"
        hidden.write_text("\n".join(json.dumps({"n": epoch * 4 + row}) for row in range(4)))
        # Spark orders files by modification time.
        os.utime(hidden, (1_700_000_000 + epoch, 1_700_000_000 + epoch))
        hidden.rename(folder / f"{epoch:03}.json")


def _killed_at(step: Step, folder: Path, savepoint: str) -> None:
    """Start a driver that restores the savepoint, and kill it at a step."""
    paused_mark(folder).unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "SPARK_LOCAL_IP": "127.0.0.1", PAUSE_VARIABLE: step.name}
    script = [sys.executable, str(Path(__file__).with_name("rollback_driver.py")), str(folder), "killed", savepoint]
    log = folder / f"{step.name}.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(script, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        until = time.monotonic() + SECONDS
        while not paused_mark(folder).exists():
            assert driver.poll() is None, f"{step}: it ended: {log.read_text()[-3000:]}"
            assert time.monotonic() < until, f"{step}: it did not get there: {log.read_text()[-3000:]}"
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(SECONDS)


# A restore that has only been committed is what test_kill_saving.py leaves, and spark/test_sink_rollback.py with sinks.
@pytest.mark.parametrize(
    "steps", [_STEPS, pytest.param((Step.RESTORE_COMMITTED, *_STEPS), marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_a_sink_is_set_back_whenever_the_driver_is_killed(
    spark: SparkSession, tmp_path: Path, steps: Sequence[Step]
) -> None:
    session = spark.newSession()
    for key, value in SETTINGS.items():
        session.conf.set(key, value)
    _feed(tmp_path / "in", range(7))
    savepoint = copy_rows(session, tmp_path, "one")
    _feed(tmp_path / "in", range(7, 15))
    copy_rows(session, tmp_path, "one")

    for step in steps:
        _killed_at(step, tmp_path, savepoint)
    copy_rows(session, tmp_path, "two", savepoint)

    rows = session.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row["n"], row["release"]) for row in rows) == [(n, "one" if n < 28 else "two") for n in range(60)]
    assert len([*standing_restores(LocalFiles(), str(tmp_path / "jobs" / "copying"))]) == 1
