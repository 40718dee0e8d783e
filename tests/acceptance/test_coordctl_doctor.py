"""`coordctl doctor` on the machine that runs the tests, and on one that lacks something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_CHECKOUT = Path(__file__).resolve().parents[2]


def _doctor(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coord_control.cli", "doctor", *options]
    environment = {**os.environ, "PYTHONPATH": str(_CHECKOUT), "COLUMNS": "200", **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def _checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_this_machine_passes_and_the_report_is_json(tmp_path: Path) -> None:
    done = _doctor("--no-spark", "--json", "--root", str(tmp_path / "jobs"))
    checks = _checks(done)

    assert done.returncode == 0
    assert json.loads(done.stdout)["skipped"] == ["spark"]
    assert {"python", "java", "pyspark", "loopback", "driver host", "storage"} <= checks.keys()
    assert all(set(check) == {"name", "status", "found", "expected", "next_step"} for check in checks.values())


def test_options_come_from_the_environment_too(tmp_path: Path) -> None:
    done = _doctor(COORD_SPARK="false", COORD_JSON="true", COORD_ROOT=str(tmp_path))

    assert _checks(done)["storage"]["status"] == "ok"


def test_a_missing_java_fails_with_the_next_step(tmp_path: Path) -> None:
    done = _doctor("--json", JAVA_HOME=str(tmp_path))  # Spark is not even tried

    assert done.returncode == 1
    assert _checks(done)["java"]["status"] == "failed"
    assert _checks(done)["java"]["next_step"]
    assert "spark" in json.loads(done.stdout)["skipped"]


def test_a_root_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    done = _doctor("--no-spark", "--json", "--root", str(tmp_path / "file" / "jobs"))

    assert done.returncode == 1
    assert _checks(done)["storage"]["status"] == "failed"


def test_the_report_for_people_shows_every_check_and_every_next_step(tmp_path: Path) -> None:
    done = _doctor("--no-spark", JAVA_HOME=str(tmp_path))

    assert done.returncode == 1
    for text in (
        "python",
        "loopback",
        "failed",
        "java: let JAVA_HOME name a Java installation",
        "not checked: storage",
    ):
        assert text in done.stdout


def test_the_command_line_starts_without_pyspark() -> None:
    code = "import sys, coord_control.cli.main; sys.exit(bool({'pyspark', 'pyarrow', 'pandas'} & sys.modules.keys()))"
    environment = {**os.environ, "PYTHONPATH": str(_CHECKOUT)}

    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.spark
def test_spark_starts_and_reaches_the_storage_by_uri(tmp_path: Path) -> None:
    done = _doctor("--json", "--root", f"file:{tmp_path}/jobs", SPARK_LOCAL_IP="127.0.0.1")
    checks = _checks(done)

    assert done.returncode == 0
    assert checks["spark"]["status"] == "ok"
    assert checks["storage"]["status"] == "ok"


@pytest.mark.spark
def test_a_spark_that_takes_too_long_is_given_up() -> None:
    done = _doctor("--json", "--spark-timeout", "10ms")

    assert done.returncode == 1
    assert "no result within 0.01 s" in _checks(done)["spark"]["found"]
