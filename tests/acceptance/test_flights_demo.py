"""The demo as a user runs it: to its end, interrupted, and killed in the middle and run again; without Dagster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from coord_control.exit_codes import ExitCode
from examples.flights.data import flights_until, load_flights

pytestmark = [pytest.mark.spark, pytest.mark.kill]

_CHECKOUT = Path(__file__).resolve().parents[2]

Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Start the demo, with its JSON on standard output and its progress on standard error."""
    started: list[subprocess.Popen[str]] = []

    def run(*options: str, dagster: Sequence[str] = ("--no-dagster",)) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "examples.flights", "--json", *dagster, *options]
        environment = {**os.environ, "TMPDIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, cwd=_CHECKOUT, env=environment, start_new_session=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """The JSON of a demo that ends well, and what it said on standard error."""
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    result: dict[str, Any] = json.loads(out)
    return result, err


def await_line(process: subprocess.Popen[str], text: str) -> None:
    """Read the progress until there is a line with this."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise AssertionError("the demo has ended: " + "".join(said))


def await_epoch(process: subprocess.Popen[str], epoch: int) -> str:
    """Read the progress until query `alerts` has committed an epoch; the demo is at work on the next ones then."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        _, _, rest = line.partition("alerts running, epoch ")
        if rest and int(rest.split(",")[0]) >= epoch:
            return "".join(said)
    raise AssertionError("the demo has ended: " + "".join(said))


def jvms(process: subprocess.Popen[str]) -> list[int]:
    """Those of a demo, also when nobody is left who would end them."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(each.pid) == process.pid and each.name() == "java" and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
    return found


def assert_right(result: dict[str, Any]) -> None:
    assert result["ok"], result["checks"]
    assert len(result["checks"]) == 8
    assert all(check["ok"] for check in result["checks"])


def lose_last_commit(work: Path, epoch: int) -> None:
    """Leave query `alerts` as a crash leaves it that comes between the commit of its sink and Spark's own.

    Spark's file sink skips the epoch when it is run again, so no subtask runs in it.
    """
    (commits,) = (work / "jobs").glob("flights/queries/alerts/lineage-*/spark/commits")
    for name in ("{}", ".{}.crc"):
        (commits / name.format(epoch)).unlink()


# What Ctrl-C does is seen at a terminal (test_flights_dagster.py), and at night when it comes twice, below.
# Drivers are killed in tests/kill.
@pytest.mark.parametrize("kills", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_flight_is_lost_by_an_interrupt_a_lost_commit_kills_and_attempts_that_fail(
    start: Run, tmp_path: Path, kills: int
) -> None:
    folder = tmp_path / "work"
    # A day every five seconds: it is at work for as long as the test needs.
    year = ("--work", str(folder), "--days-per-epoch", "1", "--speed", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as server:  # and a port that Dagster cannot have costs one line
        port = server.getsockname()[1]
        interrupted = start(*year, dagster=("--dagster-port", str(port)))
        said = await_epoch(interrupted, 1)
    assert f"port {port} cannot be used" in said
    assert "the demo continues without it" in said
    interrupted.send_signal(signal.SIGTERM)
    first, err = finish(interrupted)
    assert_right(first)
    assert first["dagster"] is None
    assert not first["complete"]
    alerts, events = first["alerts"], first["events"]
    assert 0 < alerts["days"] < 365
    assert 0 < events["up"] <= events["reports"]  # counted before the last epochs end
    assert events["down"] > 0
    assert "Traceback" not in err
    assert "WARN" not in err

    lose_last_commit(folder, alerts["epochs"] - 1)
    for _ in range(kills):
        killed = start(*year)
        await_epoch(killed, alerts["epochs"] + 1)
        killed.send_signal(signal.SIGKILL)
        killed.wait()

    days = len(list((folder / "input").glob("day-*"))) + 6
    last, err = finish(start("--work", str(folder), "--days", str(days), "--days-per-epoch", "2", "--chaos", "0.4"))
    assert_right(last)
    assert last["complete"]
    assert last["generation"] == 2 + kills
    assert last["alerts"]["days"] == last["airports"]["days"] == days
    flights = flights_until(load_flights(), days).num_rows
    assert last["alerts"]["flights"] == last["airports"]["departures"] == last["airports"]["arrivals"] == flights
    assert last["alerts"]["alerts"] > 0
    assert 0 < last["events"]["up"] < last["events"]["reports"]  # the rest came to the drivers before
    assert last["attempts_failed"] > 0
    assert "Traceback" not in err


def test_a_demo_that_is_interrupted_while_spark_starts_leaves_no_jvm(start: Run) -> None:
    process = start()
    while not jvms(process):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "stopping as soon as Spark has started" in err
    assert "Traceback" not in err
    while jvms(process):
        time.sleep(0.1)


# In every run: spark/test_driver_end.py, with a plain program.
@pytest.mark.slow
def test_a_second_interrupt_ends_at_once(start: Run) -> None:
    process = start()
    await_line(process, "alerts running, no epoch yet")  # it takes seconds
    os.killpg(process.pid, signal.SIGINT)
    await_line(process, "stopping at the end of the running epochs; Ctrl-C again ends at once")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "--work resumes from here" in err
    assert out == ""
    while jvms(process):
        time.sleep(0.1)


def test_options_that_make_no_sense_are_refused(start: Run) -> None:
    process = start("--days", "366")
    _, err = process.communicate()
    assert process.returncode == 2
    assert "366 is not in 1..365" in err
