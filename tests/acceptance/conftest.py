"""What the tests of ``coordctl run`` share: real processes, scripts without Spark.

The scripts are in the place of a job: they register a stop function as `Job` does. Nothing here waits by the clock: a
test waits for a line that a process prints, or for its end. `ready` on standard output comes from the script, the
other lines are on standard error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.places import CHECKOUT

FAST = ["--backoff-initial", "10ms", "--backoff-max", "20ms"]

# A script that has a job: stops when it is asked to, then ends by itself.
STOPPABLE = """
    import sys, threading
    from coord_control.spark.process import shutdown
    stopped = threading.Event()
    def stop(seconds):
        print("asked to stop within", seconds, flush=True)
        stopped.set()
    shutdown.register(stop)
    print("ready", flush=True)
    stopped.wait()
    shutdown.unregister(stop)
    print("stopped cleanly", shutdown.lost_supervisor(), flush=True)
"""

# A script that does not stop, with a child beside it as a JVM is: it ends when its standard input does.
STUBBORN = """
    import os, signal, subprocess, sys, threading
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print("ready", os.getpid(), child.pid, flush=True)
    threading.Event().wait()
"""

Run = Callable[..., subprocess.Popen[str]]
Write = Callable[[str], Path]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CHECKOUT)}


@pytest.fixture
def script(tmp_path: Path) -> Write:
    def write(source: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Start coordctl, in a process that has run ``before``; what a failed test leaves behind is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(script: Path, *args: str, options: Sequence[str] = (), before: str = "") -> subprocess.Popen[str]:
        program = f"{before}\nfrom coord_control.cli.main import app\napp(prog_name='coordctl')"
        command = [sys.executable, "-c", program, "run", *options, str(script), *args]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, env=_environment())
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.communicate()


def await_line(process: subprocess.Popen[str], containing: str, *, errors: bool = False) -> str:
    """Read on, in standard output or in ``errors``, until a line contains this."""
    stream = process.stderr if errors else process.stdout
    assert stream is not None
    seen = []
    for line in stream:
        seen.append(line)
        if containing in line:
            return line
    raise AssertionError(f"no line with {containing!r} in {seen}")


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
