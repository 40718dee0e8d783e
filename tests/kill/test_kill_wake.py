"""`kill -9` of drivers around epochs that only events cause: each event is applied once, by whom the epoch wakes.

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
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kill.life import CHECKOUT
from tests.kill.wake_driver import SUBTASKS, TOKENS, Book
from tests.patience import SECONDS, eventually

pytestmark = [pytest.mark.kill, pytest.mark.spark]

#: A kill comes so long after a file of Spark's shows that an epoch is planned, or committed: an epoch takes a second.
_LATER_SECONDS: Final = 1.0


def spark_log(folder: Path, name: str) -> list[int]:
    log = folder / "jobs" / "wake" / "queries" / "q" / "lineage-000001" / "spark" / name
    return sorted(int(path.name) for path in log.glob("[0-9]*") if path.name.isdigit())


def woken(folder: Path) -> dict[int, list[int]]:
    """Which subtasks each planned epoch wakes."""
    log = folder / "jobs" / "wake" / "queries" / "q" / "lineage-000001" / "spark" / "offsets"
    found = {}
    for epoch in spark_log(folder, "offsets"):
        lines = (log / str(epoch)).read_text().splitlines()
        found[epoch] = next(json.loads(line)["subtasks"] for line in lines if line.startswith('{"wake":'))
    return found


def executions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (folder / "seen").glob("*.json")]


def check(folder: Path) -> int:
    """Check what has been executed so far; returns how many (epoch, subtask) were executed more than once."""
    plans, found = woken(folder), dict[tuple[int, int], list[dict[str, Any]]]()
    for execution in executions(folder):
        found.setdefault((execution["epoch"], execution["subtask"]), []).append(execution)
    committed = set(spark_log(folder, "commits"))
    last = dict[int, list[int]]()
    for (epoch, subtask), runs in sorted(found.items()):
        where = f"subtask {subtask} in epoch {epoch}"
        assert all(run == runs[0] for run in runs), f"{where}: {runs}"
        assert (runs[0]["rows"], runs[0]["before"]) == (0, last.get(subtask, [])), where
        assert epoch not in plans or subtask in plans[epoch], f"{where} was not woken"
        numbers = runs[0]["before"] + runs[0]["numbers"]
        assert numbers == list(range(len(numbers))), where
        last[subtask] = numbers
    for epoch in committed & plans.keys():
        assert {subtask for other, subtask in found if other == epoch} == set(plans[epoch]), f"epoch {epoch}"
    return sum(len(runs) > 1 for runs in found.values())


def run(folder: Path, kills: int) -> Book:
    dice = random.Random(os.environ.get("COORD_KILL_SEED", "wake"))
    for life in range(kills + 1):
        before = spark_log(folder, "commits")[-1:] or [-1]
        process = _start(folder)
        try:
            eventually(functools.partial(_has_run, folder, process, before[0] + dice.randint(1, 3)))
            if life < kills:
                log = dice.choice(["offsets", "commits"])
                newest = spark_log(folder, log)[-1:]
                eventually(functools.partial(_has_moved, folder, process, log, newest), pause=0.01)
                time.sleep(dice.uniform(0.0, _LATER_SECONDS))
            else:
                (folder / "stop").touch()
                assert process.wait(SECONDS) == 0, (folder / "log").read_text()[-4000:]
        finally:
            _kill(process)
        check(folder)
    return Book.model_validate_json((folder / "book").read_text())


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.kill.wake_driver", str(folder)]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log, start_new_session=True)


def _has_run(folder: Path, process: subprocess.Popen[bytes], epoch: int) -> bool:
    assert process.poll() is None, (folder / "log").read_text()[-4000:]
    return (spark_log(folder, "commits")[-1:] or [-1])[0] >= epoch


def _has_moved(folder: Path, process: subprocess.Popen[bytes], log: str, newest: list[int]) -> bool:
    assert process.poll() is None, (folder / "log").read_text()[-4000:]
    return spark_log(folder, log)[-1:] != newest


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _check_book(book: Book) -> None:
    assert book.trouble == []
    assert sum(book.sent) - sum(book.passed_on) == TOKENS, "each token is either passed on or on its way"
    assert len(book.sent) == SUBTASKS
    assert min(book.passed_on) > 0


@pytest.mark.timeout(900)
def test_each_event_of_a_silent_stream_is_applied_once_when_drivers_are_killed(tmp_path: Path) -> None:
    _check_book(run(tmp_path, 1))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_each_event_of_a_silent_stream_is_applied_once_when_drivers_are_killed_many_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = int(os.environ.get("COORD_KILLS", "50"))
    _check_book(run(tmp_path, kills))
    again = check(tmp_path)
    assert again > 0, "no epoch was run again: the kills came too seldom in the middle of one"
    with capsys.disabled():
        print(f"{kills} kills, {len(spark_log(tmp_path, 'commits'))} commits, {again} subtasks woken again")
