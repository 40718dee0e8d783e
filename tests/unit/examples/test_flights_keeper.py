"""What the keeper starts ends with the pipe to it: in time, or the hard way, and also what was started by that."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
#: A command with a child; both write their process ids, and do as their signal handler says.
COMMAND = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, {handler})
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
{then}
"""
STAYS = "time.sleep(600)"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    keepers: list[subprocess.Popen[str]] = []
    yield keepers
    for keeper in keepers:
        keeper.kill()
        with keeper:  # closes its pipes
            pass


def start(
    started: list[subprocess.Popen[str]], handler: str, then: str = STAYS
) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    command = [sys.executable, "-c", COMMAND.format(handler=handler, then=then)]
    keeper = subprocess.Popen(
        [sys.executable, "-m", "examples.flights.keeper", "0.5", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    started.append(keeper)
    assert keeper.stdout is not None
    numbers = keeper.stdout.readline().split()
    return keeper, [psutil.Process(int(number)) for number in numbers]


def await_end(processes: list[psutil.Process]) -> None:
    while any(map(is_alive, processes)):
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_all_of_it_ends_with_the_pipe(started: list[subprocess.Popen[str]], handler: str) -> None:
    keeper, processes = start(started, handler)
    assert len(processes) == 2
    assert keeper.stdin is not None
    keeper.stdin.close()
    await_end(processes)
    assert keeper.wait() == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_keeper_ends_all_of_it(started: list[subprocess.Popen[str]], number: signal.Signals) -> None:
    keeper, processes = start(started, "signal.SIG_IGN")
    keeper.send_signal(number)
    await_end(processes)
    keeper.wait()


def test_what_the_command_leaves_behind_when_it_ends_by_itself_ends_as_well(
    started: list[subprocess.Popen[str]],
) -> None:
    keeper, processes = start(started, "signal.SIG_DFL", then="time.sleep(0.3)")
    await_end(processes)
    keeper.wait()
