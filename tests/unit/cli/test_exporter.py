from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run
from tests.metrics_kit import read

SECONDS = 60.0


def test_the_whole_database_until_it_is_told_to_end(tmp_path: Path, store: ControlStore) -> None:
    kit.put_live(store)
    kit.put_job(store, "orders")
    command = [sys.executable, "-m", "coord_control.cli", "exporter", "--listen", "127.0.0.1:0", "--job", kit.JOB]
    environment = {**os.environ, "COORD_CONTROL": kit.settings(tmp_path).url}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith("metrics of sqlite:///")
            with urllib.request.urlopen(said.split()[-1], timeout=SECONDS) as answer:
                found = read(answer.read().decode())
            assert found.get("database_up") == 1
            assert found.get("fleet_blocked_events", job_name=kit.JOB, operator=kit.OPERATOR) == 12
            assert found.all("fleet_job_alive", job_name="orders") == []
            with urllib.request.urlopen(said.split()[-1].replace("/metrics", "/targets"), timeout=SECONDS) as answer:
                assert json.loads(answer.read()) == []  # the driver of this test serves none
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def test_an_address_that_is_none_is_named(tmp_path: Path) -> None:
    assert "metrics cannot be served at 'nowhere'" in run(tmp_path, "exporter", "--listen", "nowhere", code=78)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    assert "cannot listen at 192.0.2.1, port 9405" in run(tmp_path, "exporter", "--listen", "192.0.2.1:9405", code=65)
