from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run
from tests.metrics_kit import read
from tests.patience import SECONDS

UNKNOWN = "there is no job 'flihgts' yet, so it has no metrics; coordctl jobs lists all jobs\n"


def test_the_whole_database_until_it_is_told_to_end(tmp_path: Path, store: ControlStore) -> None:
    kit.put_live(store)
    kit.put_job(store, "orders")
    command = [sys.executable, "-m", "coord_control.cli", "exporter", "--listen", "127.0.0.1:0", kit.JOB]
    environment = {**os.environ, "COORD_CONTROL": kit.settings(tmp_path).url}
    command += ["flihgts", "flihgts"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            said = process.stdout.readline()
            assert said.startswith("metrics of sqlite:///")
            with urllib.request.urlopen(said.split()[-1], timeout=SECONDS) as answer:
                found = read(answer.read().decode())
            assert found.get("database_up") == 1
            assert found.get("fleet_blocked_events", job_name=kit.JOB, operator=kit.OPERATOR) == 12
            assert found.all("fleet_job_alive", job_name="orders") == []
            with urllib.request.urlopen(said.split()[-1].replace("/metrics", "/targets"), timeout=SECONDS) as answer:
                [target] = json.loads(answer.read())
            assert target["targets"] == ["127.0.0.1:9404"]
            assert process.stderr.readline() == UNKNOWN  # nothing comes after it
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_who_can_read_what_is_served_beyond_loopback_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coord_control.cli.exporter._wait_for_end", lambda: None)
    warning = "anyone who can reach this address can read the metrics"
    assert warning in run(tmp_path, "exporter", "--listen", "0.0.0.0:0")
    assert warning not in run(tmp_path, "exporter", "--listen", "127.0.0.1:0")


def test_an_address_that_is_none_is_named(tmp_path: Path) -> None:
    assert "metrics cannot be served at 'nowhere'" in run(tmp_path, "exporter", "--listen", "nowhere", code=78)


def test_a_port_that_is_taken_is_named_and_may_be_had_later(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = run(tmp_path, "exporter", "--listen", f":{port}", code=75)
    assert f"127.0.0.1, port {port}: [Errno {errno.EADDRINUSE}] Address already in use; choose" in said
    assert "with --listen" in said


def test_an_address_of_another_machine_is_named(tmp_path: Path) -> None:
    assert "cannot listen at 192.0.2.1, port 9405" in run(tmp_path, "exporter", "--listen", "192.0.2.1:9405", code=65)
