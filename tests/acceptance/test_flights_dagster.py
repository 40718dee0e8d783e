"""The demo with Dagster beside it: a savepoint through its API, and nothing that outlives the demo."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from examples.flights.graphql import DagsterApi
from examples.flights.server import DagsterServer, NoDagster

pytestmark = [pytest.mark.spark, pytest.mark.kill]

CHECKOUT = Path(__file__).resolve().parents[2]
#: Few days; the job waits for Dagster anyway.
FEW = ("--days", "5")

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*options: str, **how: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "examples.flights", "--work", str(tmp_path / "work"), *FEW, *options]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "TERM": "xterm"}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
        process = subprocess.Popen(command, text=True, cwd=CHECKOUT, env=environment, **pipes)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def dagster_processes(work: Path) -> list[int]:
    """All that run with the Dagster of a demo: they have its home in their environment."""
    home, found = str(work / "dagster"), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("DAGSTER_HOME") == home and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def await_no_dagster(work: Path) -> None:
    while dagster_processes(work):
        time.sleep(0.1)


def await_lines(process: subprocess.Popen[str], *texts: str) -> None:
    """Read the progress until there was a line with each of these."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if all(any(text in each for each in said) for text in texts):
            return
    raise AssertionError("the demo has ended: " + "".join(said))


# As in a terminal, below, but it ends by itself: tests/unit/examples/test_flights_visit.py has the rule.
@pytest.mark.slow
def test_dagster_takes_a_savepoint_of_the_running_job(start: Start, tmp_path: Path) -> None:
    process = start("--headless", "--json")
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    result = json.loads(out)
    assert result["ok"]
    assert result["complete"]
    assert len(result["checks"]) == 8
    assert all(check["ok"] for check in result["checks"])
    dagster = result["dagster"]
    savepoint = dagster["savepoint"]
    assert dagster["problem"] is None
    assert savepoint["id"] == 1
    assert savepoint["size_bytes"] > 0
    assert Path(savepoint["path"]).is_relative_to(tmp_path / "work" / "jobs" / "flights")
    assert any(path.is_file() for path in Path(savepoint["path"]).rglob("*"))
    for step in result["next_steps"].values():
        done = subprocess.run(step, shell=True, cwd=CHECKOUT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "In another terminal: " + result["next_steps"]["show_job"] in err
    assert result["control"] in result["next_steps"]["show_job"]
    urls = [urlsplit(url) for url in re.findall(r"http://\S+", err)]
    assert {url.hostname for url in urls} == {"127.0.0.1"}
    ends = ("/assets/flights/savepoint", "/schedules/flights_every_minute", "/jobs/send_thresholds/playground")
    assert all(any(url.path.endswith(end) for url in urls) for end in ends)
    before, _, after = err.partition("Dagster: savepoint 1")
    assert "/playground" in before
    assert "http://" not in after + out  # they are dead then
    assert "Traceback" not in err
    assert dagster_processes(tmp_path / "work") == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urls[0].port or 0))


# Signals that can be handled end the demo as its last day does, which the tests around this one see Dagster end with;
# SIGKILL closes the pipe to Dagster's keeper (tests/unit/examples/test_flights_keeper.py).
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_dagster_ends_with_the_demo(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process = start("--speed", "0.01", "--json")
    await_lines(process, "Dagster: http://127.0.0.1:", "alerts running")
    assert dagster_processes(tmp_path / "work")
    process.send_signal(number)
    out, err = process.communicate()
    await_no_dagster(tmp_path / "work")
    assert process.returncode == (0 if number is not signal.SIGKILL else -signal.SIGKILL), out + err


@pytest.mark.parametrize("package", ["dagster", "dagster_webserver"])
def test_without_dagster_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NoDagster, match=rf"{package} is not installed: pip install 'coord-control\[demo\]'"):
        DagsterServer(tmp_path, {}, 0)
    assert list(tmp_path.iterdir()) == []


def test_in_a_terminal_dagster_takes_a_savepoint_and_the_job_idles_and_can_be_saved_again(
    start: Start, tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    process = start(stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = Screen(ours)
    screen.await_text("Dagster: savepoint 1,")
    screen.await_text("Ctrl-C ends it")
    before = screen.plain()
    urls = [urlsplit(url) for url in re.findall(r"http://\S+", before)]
    assert {url.hostname for url in urls} == {"127.0.0.1"}
    ends = ("/assets/flights/savepoint", "/schedules/flights_every_minute", "/jobs/send_thresholds/playground")
    assert all(any(url.path.endswith(end) for url in urls) for end in ends)
    assert re.search(r"In another terminal: .*coordctl", before)

    api = DagsterApi(f"http://127.0.0.1:{urls[0].port}")
    location = api.location()
    assert location is not None
    run = api.materialize(location, ["flights", "savepoint"], {})
    while api.run_status(run) not in ("SUCCESS", "FAILURE"):
        time.sleep(0.5)
    assert api.metadata(["flights", "savepoint"], run)["coord_control/checkpoint_id"] == "2"
    process.send_signal(signal.SIGINT)
    screen.await_text("No flight is lost or counted twice.")
    assert process.wait() == 0
    await_no_dagster(tmp_path / "work")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urls[0].port or 0))
    screen.close()

    summary = screen.plain().rpartition("Dagster: savepoint 1,")[2]
    assert len(re.findall(r"^ok {7}", summary, flags=re.MULTILINE)) == 8
    assert "1 Jan to 5 Jan" in summary
    assert "stopped before the end" not in summary
    assert "http://" not in summary  # they are dead then
    assert "Traceback" not in summary
    said = re.search(r"^savepoint +1, by Dagster's run \S+: (/\S+)", summary, flags=re.MULTILINE)
    assert said is not None
    assert Path(said[1]).is_relative_to(tmp_path / "work" / "jobs" / "flights")
    assert any(path.is_file() for path in Path(said[1]).rglob("*"))
    steps = re.findall(r"^  (\S.*)$", summary.partition("can be looked at:")[2], flags=re.MULTILINE)
    assert len(steps) == 2
    for step in steps:
        done = subprocess.run(step, shell=True, cwd=CHECKOUT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


class Screen:
    """What is printed to a terminal, read as it comes so that nobody has to wait for us."""

    def __init__(self, terminal: int) -> None:
        self.text = ""
        self._terminal = terminal
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def await_text(self, text: str) -> None:
        while text not in self.text:
            assert self._thread.is_alive(), self.text
            time.sleep(0.1)

    def plain(self) -> str:
        """What was printed, without colours and movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text).replace("\r\n", "\n")

    def close(self) -> None:
        self._thread.join()
        os.close(self._terminal)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nobody has the other end any more
            while chunk := os.read(self._terminal, 65536):
                self.text += chunk.decode(errors="replace")
