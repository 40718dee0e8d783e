"""The benchmark of requests runs. What it measures is not looked at here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.places import CHECKOUT


@pytest.mark.slow
def test_the_benchmark_of_requests_runs_and_prints_its_numbers_as_json() -> None:
    command = [sys.executable, "-m", "benchmarks.objects", "--quick"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["numbers"].keys() == {"epochs", "checkpoints", "listing"}
