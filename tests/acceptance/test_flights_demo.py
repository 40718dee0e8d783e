"""The demo as a user runs it: to its end, interrupted, and killed in the middle and run again; without Dagster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(400)]

_CHECKOUT = Path(__file__).resolve().parents[2]

Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Start the demo, with its JSON on standard output and its progress on standard error."""
    started: list[subprocess.Popen[str]] = []

    def run(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "examples.flights", "--json", "--no-dagster", *options]
        environment = {**os.environ, "TMPDIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=_CHECKOUT, env=environment)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """The JSON of a demo that ends well, and what it said on standard error."""
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    result: dict[str, Any] = json.loads(out)
    return result, err


def await_epoch(process: subprocess.Popen[str], epoch: int) -> None:
    """Read the progress until query `alerts` has committed an epoch; the demo is at work on the next ones then."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        _, _, rest = line.partition("alerts running, epoch ")
        if rest and int(rest.split(",")[0]) >= epoch:
            return
    raise AssertionError("the demo has ended: " + "".join(said))


def assert_right(result: dict[str, Any]) -> None:
    assert result["ok"], result["checks"]
    assert len(result["checks"]) == 8
    assert all(check["ok"] for check in result["checks"])


def test_twenty_days_come_out_as_they_went_in(start: Run) -> None:
    result, err = finish(start("--days", "20"))
    assert_right(result)
    assert result["complete"]
    assert result["alerts"]["days"] == result["airports"]["days"] == 20
    assert result["alerts"]["flights"] == result["airports"]["departures"] == result["airports"]["arrivals"] == 17_314
    assert result["alerts"]["alerts"] > 0
    assert result["events"]["up"] == result["events"]["reports"] > 0
    assert result["events"]["down"] > 0
    assert len(result["events"]["blocked"]) == 4
    assert "Traceback" not in err
    assert "WARN" not in err


def test_a_killed_demo_goes_on_where_it_was(start: Run, tmp_path: Path) -> None:
    options = ("--days", "30", "--days-per-epoch", "1", "--work", str(tmp_path / "work"))
    killed = start(*options)
    await_epoch(killed, 2)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    result, _ = finish(start("--days", "30", "--work", str(tmp_path / "work")))
    assert_right(result)
    assert result["complete"]
    assert result["generation"] == 2
    assert result["alerts"]["flights"] == result["airports"]["departures"] == 26_076
    assert 0 < result["events"]["up"] < result["events"]["reports"]  # the rest came to the driver that was killed


def test_an_epoch_that_the_sink_has_and_spark_has_not_committed(start: Run, tmp_path: Path) -> None:
    """A crash between the two: Spark's file sink skips the epoch when it is run again, so no subtask runs in it."""
    options = ("--days", "10", "--work", str(tmp_path / "work"))
    before, _ = finish(start(*options))
    (commits,) = (tmp_path / "work" / "jobs").glob("flights/queries/alerts/lineage-*/spark/commits")
    for name in ("{}", ".{}.crc"):
        (commits / name.format(before["alerts"]["epochs"] - 1)).unlink()
    after, _ = finish(start(*options))
    assert_right(after)
    assert after["generation"] == 2
    assert after["alerts"] == before["alerts"]
    assert after["events"]["reports"] == before["events"]["reports"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_stops_between_epochs_and_checks_what_is_there(start: Run, number: signal.Signals) -> None:
    interrupted = start("--days-per-epoch", "1")
    await_epoch(interrupted, 1)
    interrupted.send_signal(number)
    result, err = finish(interrupted)
    assert_right(result)
    assert not result["complete"]
    assert 0 < result["alerts"]["days"] < 365
    assert "Traceback" not in err


def test_failing_attempts_are_recovered_from(start: Run) -> None:
    result, err = finish(start("--days", "10", "--days-per-epoch", "2", "--chaos", "0.4"))
    assert_right(result)
    assert result["attempts_failed"] > 0
    assert result["alerts"]["flights"] == 8_832
    assert "Traceback" not in err


def test_options_that_make_no_sense_are_refused(start: Run) -> None:
    process = start("--days", "366")
    _, err = process.communicate()
    assert process.returncode == 2
    assert "366 is not in 1..365" in err
