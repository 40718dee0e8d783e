"""The benchmarks run and say what they measured. What that is, is not looked at here: it takes a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.live_crash import BEFORE, CHANGED, crashes

CHECKOUT: Final = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "name",
    [
        "endpoint",
        "events",
        pytest.param("history", marks=pytest.mark.slow),
        "metrics",
        "scale",
        pytest.param("dagster_sensor", marks=pytest.mark.slow),
        pytest.param("dagster_savepoint", marks=pytest.mark.slow),
        pytest.param("ask", marks=pytest.mark.slow),
        pytest.param("overhead", marks=pytest.mark.slow),
        pytest.param("live", marks=[pytest.mark.slow, pytest.mark.kill]),
        pytest.param("shuffle", marks=pytest.mark.slow),
        pytest.param("wake", marks=pytest.mark.slow),
        pytest.param("checkpoints", marks=pytest.mark.slow),
        pytest.param("recovery", marks=[pytest.mark.slow, pytest.mark.kill]),
    ],
)
def test_a_quick_benchmark_runs_and_prints_its_numbers_as_json(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["benchmark"] == name
    assert document["quick"] is True
    assert document["numbers"]
    assert document["goals"]
    assert done.stderr.splitlines()[-1] == f"{name}: ran (quick, not judged)"


@pytest.mark.slow
@pytest.mark.kill
def test_what_an_epoch_sees_again_after_a_crash_is_the_same_for_a_live_value_alone(tmp_path: Path) -> None:
    changed = [BEFORE, CHANGED]
    assert crashes(tmp_path) == {"live": [BEFORE, BEFORE], "table": changed, "broadcast": changed}
