"""`kill -9` of drivers whose live value changes every 100 ms: each row's value is checked against the history.

COORD_KILLS sets the number of kills of the long version (50), COORD_KILL_SEED the seed.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kill.life import CHECKOUT
from tests.patience import SECONDS, eventually

pytestmark = [pytest.mark.kill, pytest.mark.spark]

QUERIES = ("plain", "counted")


def executions(folder: Path, query: str) -> dict[int, list[list[list[int]]]]:
    """What each execution of an epoch has seen; those without rows are left out."""
    found: dict[int, list[list[list[int]]]] = {}
    for path in sorted((folder / "seen" / query).glob("[0-9]*.json")):
        if rows := json.loads(path.read_text()):
            found.setdefault(int(path.name[:6]), []).append(rows)
    return found


def changes(folder: Path) -> list[dict[str, Any]]:
    path = folder / "changes"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def check(folder: Path, first: Mapping[str, set[int]]) -> int:
    """Compare what epochs have seen with the history; returns how many epochs there were.

    Args:
        first: the epochs with which drivers began, by query.
    """
    asked = [change["number"] for change in changes(folder) if "version" not in change]
    accepted = [change for change in changes(folder) if "version" in change]
    assert asked == sorted(asked)
    versions = [change["version"] for change in accepted]
    assert versions == sorted(set(versions)), "no version is given twice"
    epochs = 0
    for query in QUERIES:
        before = 0
        for epoch, runs in sorted(executions(folder, query).items()):
            epochs += 1
            numbers = {number for rows in runs for row in rows for number in row}
            assert len(numbers) == 1, f"epoch {epoch} of {query} has seen {runs}"
            number = numbers.pop()
            assert number == 0 or number in asked
            assert number >= before, f"epoch {epoch} of {query} sees {number}, the one before it {before}"
            # Planned when a driver died and not asked for yet, an epoch sees what the one before it has seen.
            bound = epoch if epoch in first[query] else epoch - 1
            while bound in first[query]:
                bound -= 1
            due = [change["number"] for change in accepted if change["in_force"].get(query, epoch) <= bound]
            assert number >= max(due, default=0), f"epoch {epoch} of {query} sees {number}, {max(due)} was in force"
            before = number
    return epochs


def run(folder: Path, kills: int) -> int:
    """Kill drivers, and check after each one; returns how many epochs there were."""
    dice = random.Random(os.environ.get("COORD_KILL_SEED", "live"))
    first: dict[str, set[int]] = {query: set() for query in QUERIES}
    for life in range(kills + 1):
        seen = {query: max(executions(folder, query), default=-1) for query in QUERIES}
        for query in QUERIES:
            first[query].add(seen[query] + 1)
        process = _start(folder)
        try:
            wanted = dice.randint(0, 4)
            eventually(functools.partial(_has_run, folder, process, seen, wanted))
            if life == kills:
                (folder / "stop").touch()
                assert process.wait(SECONDS) == 0, (folder / "log").read_text()[-4000:]
            else:
                time.sleep(dice.uniform(0.0, 0.6))
        finally:
            _kill(process)
        epochs = check(folder, first)
    return epochs


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.kill.live_driver", str(folder)]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log, start_new_session=True)


def _has_run(folder: Path, process: subprocess.Popen[bytes], seen: dict[str, int], wanted: int) -> bool:
    assert process.poll() is None, (folder / "log").read_text()[-4000:]
    return all(max(executions(folder, query), default=-1) >= seen[query] + wanted for query in QUERIES)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.timeout(900)
def test_each_row_has_a_value_of_its_epoch_when_drivers_are_killed(tmp_path: Path) -> None:
    assert run(tmp_path, 1) > 5
    assert len([change for change in changes(tmp_path) if "version" in change]) > 10


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_each_row_has_a_value_of_its_epoch_when_drivers_are_killed_many_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = int(os.environ.get("COORD_KILLS", "50"))
    epochs = run(tmp_path, kills)
    again = sum(len(runs) > 1 for query in QUERIES for runs in executions(tmp_path, query).values())
    assert again > 0, "no epoch was run again: the kills came too seldom in the middle of one"
    accepted = sum("version" in change for change in changes(tmp_path))
    with capsys.disabled():
        print(f"{kills} kills, {epochs} epochs, {again} of them run again, {accepted} changes accepted")
