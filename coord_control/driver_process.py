"""The driver process: started in its own session, watched, and ended together with everything that it started.

Why its own session: Ctrl-C in a terminal goes to the whole foreground process group, and would hit the driver's JVM
before the driver could stop its queries. In its own session the driver only receives what the supervisor sends, and the
supervisor sends SIGTERM only to the Python process. SIGKILL goes to the group, because a JVM that outlives its driver
would keep writing to the job's storage. For the same reason a driver counts as ended only when its whole group is gone.

A socket pair is the lifeline between the two. The driver reads it, and end-of-file means that the supervisor died (even
from ``kill -9``, on every POSIX system). A driver writes to it which jobs it runs, and why it fails
(:mod:`coord_control.driver_report`).
Standard output and error are inherited, so that a driver can draw on a terminal.

Threads: the supervisor's thread calls ``start``, ``terminate`` and ``kill``; one thread per driver waits for its end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from coord_control.driver_report import parse_reports
from coord_control.supervisor import DriverEnded, StopRequested

__all__ = [
    "ACCEPT_SKIPPED_VARIABLE",
    "ALLOW_MISSING_INPUT_VARIABLE",
    "ALLOW_VARIABLE",
    "CHECK_VARIABLE",
    "GRACE_VARIABLE",
    "LIFELINE_VARIABLE",
    "LOG_FILE_VARIABLE",
    "RESTORE_VARIABLE",
    "ROLL_BACK_VARIABLE",
    "SUPERVISED_VARIABLE",
    "DriverProcess",
    "QueueInbox",
    "driver_environment",
    "launch_environment",
    "submit_arguments",
]

LIFELINE_VARIABLE: Final = "COORD_LIFELINE_FD"  #: tells the driver the number of its end of the socket pair
GRACE_VARIABLE: Final = "COORD_GRACE_SECONDS"  #: tells the driver how long a stop may take
RESTORE_VARIABLE: Final = "COORD_RESTORE_FROM"  #: tells the driver's job which checkpoint to restore
ALLOW_VARIABLE: Final = "COORD_ALLOW_NON_RESTORED_STATE"  #: ... and that queries and operators may differ from it
ALLOW_MISSING_INPUT_VARIABLE: Final = "COORD_ALLOW_MISSING_INPUT"  #: ... and that files of its sources may be missing
ROLL_BACK_VARIABLE: Final = "COORD_ROLL_BACK_SINKS"  #: ... and that the sinks go back too
ACCEPT_SKIPPED_VARIABLE: Final = "COORD_ACCEPT_SKIPPED_EPOCHS"  #: ... and that sinks may skip epochs
CHECK_VARIABLE: Final = "COORD_PROGRAM_CHECK"  #: tells the driver to compare its program with a checkpoint, and end
SUPERVISED_VARIABLE: Final = "COORD_SUPERVISED"  #: tells the driver that a supervisor restarts it, and which one
LOG_FILE_VARIABLE: Final = "COORD_LOG_FILE"  #: tells the driver the file that its output goes to, if any
_SHELL: Final = "pyspark-shell"  # the application that PySpark asks spark-submit for
_PROGRESS_BARS: Final = "spark.ui.showConsoleProgress"
_LEFTOVER_SECONDS: Final = 10.0  # for the JVM's shutdown hooks after the Python process ended
_POLL_SECONDS: Final = 0.05
_REPORT_BYTES: Final = 4096

_log = logging.getLogger("coord_control.supervisor")


#: What a driver is started with must not come from another driver's environment.
_OF_ONE_DRIVER: Final = (
    ACCEPT_SKIPPED_VARIABLE,
    ALLOW_MISSING_INPUT_VARIABLE,
    ALLOW_VARIABLE,
    CHECK_VARIABLE,
    LOG_FILE_VARIABLE,
    RESTORE_VARIABLE,
    ROLL_BACK_VARIABLE,
    SUPERVISED_VARIABLE,
)


def launch_environment() -> dict[str, str]:
    """Return the environment of this process without what belongs to one driver: for starting another one."""
    return {name: value for name, value in os.environ.items() if name not in _OF_ONE_DRIVER}


def driver_environment(
    environment: Mapping[str, str], *, master: str | None = None, grace: float | None = None, is_logged: bool = False
) -> dict[str, str]:
    """Return the environment of a driver: the given one, and the variables for PySpark and the bootstrap.

    Args:
        master: the Spark master for a script that does not set one (PySpark has no variable for it).
        grace: how long a stop may take, in seconds.
        is_logged: its output goes to a file, where Spark's progress bars would bury all else.

    On a local master the Python workers run the driver's interpreter; PySpark alone would take ``python3`` from PATH.
    """
    result = dict(environment)
    if grace is not None:
        result[GRACE_VARIABLE] = str(grace)
    arguments = environment.get("PYSPARK_SUBMIT_ARGS", _SHELL)
    if master is not None:
        result["PYSPARK_SUBMIT_ARGS"] = arguments = submit_arguments(arguments, master)
    if is_logged and _PROGRESS_BARS not in arguments:
        result["PYSPARK_SUBMIT_ARGS"] = f"--conf {_PROGRESS_BARS}=false {arguments}"
    if master is None or master.startswith("local"):
        result.setdefault("PYSPARK_PYTHON", sys.executable)
    return result


def submit_arguments(existing: str, master: str) -> str:
    """Return the arguments for PySpark's spark-submit with ``master`` as the only ``--master``."""
    rest: list[str] = []
    words = iter(shlex.split(existing))
    for word in words:
        if word == "--master":
            next(words, None)
        elif not word.startswith("--master="):
            rest.append(word)
    return shlex.join(["--master", master, *rest])


class QueueInbox:
    """An inbox that signal handlers may put into: ``SimpleQueue.put`` is reentrant, ``Queue.put`` is not."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[DriverEnded | StopRequested] = queue.SimpleQueue()

    def put(self, message: DriverEnded | StopRequested) -> None:
        self._queue.put(message)

    def get(self, timeout: float | None) -> DriverEnded | StopRequested | None:
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None


class DriverProcess:
    """Starts ``command`` as the driver; see ``supervisor.DriverHandle``.

    Args:
        output: where its standard output and error go, or None for where those of this process go.
        folder: its working directory, or None for that of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        inbox: QueueInbox,
        output: int | None = None,
        folder: str | None = None,
    ) -> None:
        self._command = list(command)
        self._output, self._folder = output, folder
        self._environment = environment
        self._inbox = inbox
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = self._spawn(theirs.fileno())
            except OSError:
                ours.close()
                raise
        self._process = process
        threading.Thread(target=self._watch, args=(process, ours), name=f"driver-{process.pid}", daemon=True).start()
        return process.pid

    def terminate(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self._process is not None:
            _kill_group(self._process.pid)

    def _spawn(self, lifeline: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            cwd=self._folder,
            env={**self._environment, LIFELINE_VARIABLE: str(lifeline)},
            pass_fds=[lifeline],
            start_new_session=True,
        )

    def _watch(self, process: subprocess.Popen[bytes], lifeline: socket.socket) -> None:
        with lifeline:
            returncode = process.wait()
            report = parse_reports(_read(lifeline))
            try:
                _end_group(process.pid)
            except Exception:  # whatever it is: without the message below the supervisor would never hear of the end
                _log.exception("processes of the driver %d may be left", process.pid)
        self._inbox.put(DriverEnded(returncode, report.error, report.jobs))


def _read(lifeline: socket.socket) -> bytes:
    """Return what the driver has written: not up to the end, which a process that it left behind would delay."""
    lifeline.setblocking(False)
    content = b""
    with contextlib.suppress(OSError):
        while more := lifeline.recv(_REPORT_BYTES):
            content += more
    return content


def _end_group(group: int) -> None:
    """Wait until all processes of the driver have ended; kill those that do not end by themselves."""
    if _wait_gone(group):
        return
    _log.warning(
        "processes of the driver %d are still there %g s after its end; killing them", group, _LEFTOVER_SECONDS
    )
    _kill_group(group)
    if not _wait_gone(group):
        _log.error("processes of the driver %d survive SIGKILL (blocked in the kernel?)", group)


def _wait_gone(group: int) -> bool:
    until = time.monotonic() + _LEFTOVER_SECONDS
    while _is_alive(group):
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_alive(group: int) -> bool:
    _reap_adopted()
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # what macOS raises for a group of zombies
        return False
    return _has_running_member(group)


def _has_running_member(group: int) -> bool:
    """Tell zombies that are never reaped (in containers without an init) from running processes, if there is /proc."""
    try:
        # Not a glob: it looks at each file, and fails for a process that ends at that moment.
        stats = [Path("/proc", name, "stat") for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        stats = []
    if not stats:
        return True
    return any(_is_running_member(stat, group) for stat in stats)


def _is_running_member(stat: Path, group: int) -> bool:
    try:
        _, _, fields = stat.read_text(errors="replace").rpartition(")")  # the name before it may contain anything
    except OSError:
        return False  # it ended meanwhile
    state, _parent, process_group = fields.split()[:3]
    return int(process_group) == group and state not in "ZX"


def _reap_adopted() -> None:
    """Reap the driver's orphans, which a supervisor inherits as process 1 of a container; it has no other children."""
    if os.getpid() != 1:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
