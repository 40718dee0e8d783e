"""`coordctl run --detach` as a user runs it: real processes and signals, scripts without Spark.

Nothing here waits by the clock: a test waits for a line in the log file, or for the end of a process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.acceptance.conftest import is_running
from tests.places import CHECKOUT

_STOPPABLE = """
    import os, threading
    from coord_control.spark.process import shutdown
    stopped = threading.Event()
    shutdown.register(lambda seconds: stopped.set())
    print("supervised", bool(os.environ["COORD_SUPERVISED"]), os.environ["COORD_LOG_FILE"], os.getpid(), flush=True)
    stopped.wait()
    print("stopped cleanly", flush=True)
"""


@dataclass
class Detached:
    pid: int
    log: Path
    out: str

    def line(self, containing: str) -> str:
        while True:
            is_over = not is_running(self.pid)
            text = self.log.read_text()
            found = [line for line in text.splitlines() if containing in line]
            if found:
                return found[0]
            assert not is_over, text
            time.sleep(0.02)

    def wait_gone(self, *others: int) -> str:
        while any(is_running(pid) for pid in (self.pid, *others)):
            time.sleep(0.02)
        return self.log.read_text()


Run = Callable[..., Detached]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started: list[int] = []

    def start(source: str, *options: str) -> Detached:
        script = tmp_path / "my job.py"
        script.write_text(textwrap.dedent(source))
        state = {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(CHECKOUT)}
        command = [
            sys.executable,
            "-m",
            "coord_control.cli",
            "run",
            "--detach",
            "--wait-for-job",
            "0s",
            *options,
            str(script),
        ]
        environment = {**os.environ, **state}
        environment.pop("COORD_CONTROL", None)
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        pid = re.search(r"process (\d+)", done.stdout)
        log = re.search(r"its log: (.*)", done.stdout)
        assert pid is not None
        assert log is not None
        started.append(int(pid[1]))
        return Detached(started[-1], Path(log[1]), done.stdout)

    yield start
    for pid in started:
        if is_running(pid):
            for child in psutil.Process(pid).children(recursive=True):
                child.kill()
            psutil.Process(pid).kill()


def test_it_goes_on_in_a_session_of_its_own_and_says_how_to_stop_it(run: Run, tmp_path: Path) -> None:
    found = run(_STOPPABLE)

    supervised = found.line("supervised")
    driver = int(supervised.split()[-1])
    assert supervised == f"supervised True {found.log} {driver}"
    assert found.log.parent == tmp_path / "state" / "coord-control" / "logs"
    assert found.log.stat().st_mode & 0o077 == 0
    assert os.getsid(found.pid) == found.pid
    for command in ("coordctl watch JOB", "coordctl logs JOB -f", "coordctl stop JOB", f"kill {found.pid}"):
        assert command in found.out
    database = f"sqlite:///{tmp_path}/state/coord-control/control.db"
    assert f"control: {database}, visible only to you on this machine" in found.out

    os.kill(found.pid, signal.SIGTERM)
    log = found.wait_gone(driver)
    assert "stopped cleanly" in log
    assert "done: stopped on SIGTERM" in log


def test_a_driver_that_asks_for_it_is_started_again_and_one_that_has_stopped_leaves_nothing(run: Run) -> None:
    found = run("""
        import os, pathlib, sys
        mark = pathlib.Path(__file__).with_name("mark")
        print("driver", os.getpid(), flush=True)
        if not mark.exists():
            mark.touch()
            sys.exit(76)
    """)

    drivers = [int(line.split()[1]) for line in found.wait_gone().splitlines() if line.startswith("driver ")]
    assert len(drivers) == 2
    assert not any(map(is_running, drivers))
    assert "the driver requested a restart; starting it in 0 s" in found.log.read_text()
    assert "the job is finished (exit code 0)" in found.log.read_text()


def test_it_waits_for_the_job_and_shows_why_there_is_none(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import sys; print('no such thing', flush=True); sys.exit(78)")
    command = [sys.executable, "-m", "coord_control.cli", "run", "--detach", str(script)]
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **state})
    assert done.returncode == 78
    assert "it has ended with exit code 78; the end of its log:" in done.stderr
    assert "no such thing" in done.stderr


def test_the_log_file_may_be_named_and_is_appended_to(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "own.log"
    log.parent.mkdir()
    log.write_text("before\n")

    found = run("print('after', flush=True)", "--log-file", str(log))

    assert found.log == log
    assert found.wait_gone().startswith("before\n")
    assert "after" in log.read_text()
