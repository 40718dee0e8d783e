from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from coord_control import driver_process
from coord_control.driver_process import (
    GRACE_VARIABLE,
    DriverProcess,
    QueueInbox,
    driver_environment,
    submit_arguments,
)
from coord_control.supervisor import DriverEnded
from tests.patience import SECONDS


@pytest.mark.parametrize(
    ("existing", "result"),
    [
        ("pyspark-shell", "--master local[3] pyspark-shell"),
        ("--conf spark.x=1 pyspark-shell", "--master local[3] --conf spark.x=1 pyspark-shell"),
        ("--master yarn --conf a=b pyspark-shell", "--master local[3] --conf a=b pyspark-shell"),
        ("--master=yarn pyspark-shell", "--master local[3] pyspark-shell"),
        ("--name 'two words' pyspark-shell", "--master local[3] --name 'two words' pyspark-shell"),
    ],
)
def test_the_option_is_the_only_master_and_all_else_is_kept(existing: str, result: str) -> None:
    assert submit_arguments(existing, "local[3]").replace("'local[3]'", "local[3]") == result


def test_without_a_master_the_arguments_of_spark_submit_are_left_alone() -> None:
    assert "PYSPARK_SUBMIT_ARGS" not in driver_environment({"A": "1"})
    assert driver_environment({"PYSPARK_SUBMIT_ARGS": "x"})["PYSPARK_SUBMIT_ARGS"] == "x"


@pytest.mark.parametrize(
    ("master", "given", "result"),
    [
        (None, {}, "--conf spark.ui.showConsoleProgress=false pyspark-shell"),
        ("yarn", {}, "--conf spark.ui.showConsoleProgress=false --master yarn pyspark-shell"),
        (
            None,
            {"PYSPARK_SUBMIT_ARGS": "--conf spark.ui.showConsoleProgress=true pyspark-shell"},
            "--conf spark.ui.showConsoleProgress=true pyspark-shell",
        ),
    ],
)
def test_a_log_has_no_progress_bars_unless_they_are_asked_for(
    master: str | None, given: dict[str, str], result: str
) -> None:
    assert driver_environment(given, master=master, is_logged=True)["PYSPARK_SUBMIT_ARGS"] == result


@pytest.mark.parametrize(
    ("master", "given", "python"),
    [
        (None, {}, sys.executable),
        ("local[2]", {}, sys.executable),
        ("local[2]", {"PYSPARK_PYTHON": "/usr/bin/python3"}, "/usr/bin/python3"),
        ("spark://host:7077", {}, None),
    ],
)
def test_python_workers_on_this_machine_use_the_driver_s_interpreter(
    master: str | None, given: dict[str, str], python: str | None
) -> None:
    assert driver_environment(given, master=master).get("PYSPARK_PYTHON") == python


def test_the_driver_is_told_the_grace_period() -> None:
    assert driver_environment({}, grace=2.5)[GRACE_VARIABLE] == "2.5"


def _end_of(command: str) -> DriverEnded:
    inbox = QueueInbox()
    DriverProcess([sys.executable, "-c", command], dict(os.environ), inbox).start()
    ended = inbox.get(SECONDS)
    assert isinstance(ended, DriverEnded), "the supervisor would wait for ever"
    return ended


def test_processes_that_end_while_they_are_looked_through_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: the supervisor never heard of its driver's end, and not even SIGTERM ended it."""
    read = Path.read_text

    def gone(path: Path, *args: object, **options: object) -> str:
        if path.parts[:2] == ("/", "proc"):
            raise ProcessLookupError(3, "No such process", str(path))
        return read(path, *args, **options)  # type: ignore[arg-type]

    leaves_a_child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.5)'])"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", gone)
        assert _end_of(leaves_a_child).returncode == 0
    assert caplog.text == ""


@pytest.mark.parametrize("error", [ProcessLookupError("gone"), ValueError("not what /proc says"), MemoryError()])
def test_the_end_of_a_driver_is_told_whatever_fails_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fails(group: int) -> bool:
        raise error

    monkeypatch.setattr(driver_process, "_is_alive", fails)
    with caplog.at_level(logging.ERROR):
        assert _end_of("raise SystemExit(75)").returncode == 75
    assert "may be left" in caplog.text
