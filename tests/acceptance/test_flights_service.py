"""The driver of deploy/ as `coordctl run` runs it there: with the settings of the compose file, on a local master.

Only what names a place is replaced: the host and the ports, which may be taken here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import pytest

from coord_control.control.client.control_client import ControlClient
from tests.deploy_kit import DEPLOY
from tests.patience import SECONDS
from tests.places import CHECKOUT

pytestmark = pytest.mark.spark

HERE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.port": "0",
    "spark.driver.blockManager.port": "0",
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "coord_control.cli", "run", "--master", "local[2]", "--grace", "60s"]
    command += [str(CHECKOUT / "examples/flights/service.py"), "--work", str(tmp_path / "flights")]
    command += ["--days", "4", "--speed", "0", "--port", "0"]
    settings = [word for key, value in HERE.items() for word in ("--conf", f"{key}={value}")]
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"]),
        "SPARK_CONF_DIR": str(DEPLOY / "compose/spark"),
        "SPARK_SUBMIT_OPTS": "",  # none of the tests' own (tests/jvm.py)
        "COORD_CONTROL": f"sqlite:///{tmp_path / 'control.db'}",
        "COORD_METRICS": "127.0.0.1:0",
    }
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()  # if it still runs: the driver sees its supervisor's end, and ends itself


def line_with(text: str, lines: IO[str]) -> str:
    """Read on until a line has the text."""
    seen = []
    for line in lines:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"it ended without {text!r}:\n{''.join(seen[-40:])}")


@pytest.mark.slow
def test_it_stays_after_the_last_day_until_it_is_stopped(service: subprocess.Popen[str], tmp_path: Path) -> None:
    assert service.stderr is not None
    address = line_with("metrics at http://", service.stderr).split()[-1]
    line_with("day 4 of 4", service.stderr)
    with urllib.request.urlopen(address.replace("/metrics", "/healthz"), timeout=SECONDS) as answer:
        assert answer.status == 200
    with ControlClient(f"sqlite:///{tmp_path / 'control.db'}") as client:
        assert client.job("flights").is_alive

    service.send_signal(signal.SIGTERM)
    service.stderr.read()
    assert service.wait() == 128 + signal.SIGTERM
    with ControlClient(f"sqlite:///{tmp_path / 'control.db'}") as client:
        assert not client.job("flights").is_alive
