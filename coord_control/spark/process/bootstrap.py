"""The bootstrap of a driver, which runs SCRIPT as Python would.

Its command is ``python -m coord_control.spark.process.bootstrap SCRIPT [ARGS...]``.

What it adds to ``python SCRIPT``:

- SIGTERM stops the jobs of the script cleanly (``coord_control.spark.process.shutdown``); the script then ends by
  itself. A second SIGTERM, or one while no job runs, raises SystemExit in the main thread. The exit code is 143, unless
  a command has ended the jobs: one that was stopped by command must not be started again.
- The end of the supervisor, seen as the end-of-file of the lifeline, does the same, and kills the driver when the
  grace period is over, because nobody else is left to do it: a driver without a supervisor would run beside the next
  one. A job that ends for this reason has failed (``SupervisorLost``): nobody has asked for its end.
- An error becomes an exit code by its class (``coord_control.exit_codes``), and one line for the supervisor's log.

The script is executed as the module ``__main__``, and stays it to the very end: classes and functions that the script
defines are pickled by value, and that is decided by the name of their module, also in callbacks after the script's
last line.

Threading: Python runs signal handlers in the main thread, between two steps of the script, which may hold any lock at
that moment. So the handler takes none: it starts a thread. The script may wait for whatever it likes: a signal wakes it
(``coord_control.signal_wakeup``).
"""

from __future__ import annotations

import builtins
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from coord_control.driver_process import GRACE_VARIABLE, LIFELINE_VARIABLE
from coord_control.errors import SupervisorLost
from coord_control.exit_codes import ExitCode, exit_code_of
from coord_control.signal_wakeup import signals_wake_main_thread
from coord_control.spark.process import shutdown, start_notice

__all__ = ["main"]

_DEFAULT_GRACE_SECONDS: Final = 30.0
_JOBS_SHARE: Final = 0.8  # of the grace period; the rest is for Spark's own shutdown
_SAYING_SECONDS: Final = 1.0
_REPORT_CHARACTERS: Final = 500


def main(argv: Sequence[str]) -> int:
    """Run a script; returns the exit code of the driver. To be called once, in the main thread.

    Args:
        argv: the script's path and its arguments.
    """
    if not argv:
        print("usage: python -m coord_control.spark.process.bootstrap SCRIPT [ARGS...]", file=sys.stderr)
        return ExitCode.USAGE
    grace = float(os.environ.pop(GRACE_VARIABLE, _DEFAULT_GRACE_SECONDS))
    stopper = _Stopper(grace)
    signal.signal(signal.SIGTERM, stopper.handle)
    with signals_wake_main_thread():
        return _supervised(argv, stopper)


def _supervised(argv: Sequence[str], stopper: _Stopper) -> int:
    lifeline = _open_lifeline()
    if lifeline is not None:
        threading.Thread(target=stopper.watch, args=(lifeline,), name="coord-lifeline", daemon=True).start()
    code, error = _run(argv)
    stopper.wait()
    if error is not None and lifeline is not None:
        with contextlib.suppress(OSError):
            lifeline.sendall(error.encode())
    if stopper.requested and code in (ExitCode.FINISHED, ExitCode.STOPPED):
        code = ExitCode.FINISHED if shutdown.is_end_commanded() else ExitCode.STOPPED
    return ExitCode.RESTART if code == ExitCode.FINISHED and shutdown.is_restart_requested() else code


class _Stopper:
    def __init__(self, grace: float) -> None:
        self._grace = grace
        self.requested = False
        self._lost: SupervisorLost | None = None  # set before the signal that it is about
        self._stopping: threading.Thread | None = None

    def handle(self, signum: int, frame: types.FrameType | None) -> None:
        """The handler of SIGTERM."""
        if self.requested or not shutdown.has_registered():
            self.requested = True
            raise SystemExit(ExitCode.STOPPED)
        self.requested = True
        seconds = self._grace * _JOBS_SHARE
        self._stopping = threading.Thread(
            target=shutdown.request_stop, args=(seconds, self._lost), name="coord-stop-request", daemon=True
        )
        self._stopping.start()

    def wait(self) -> None:
        """Let the jobs finish stopping, also when the script's last line came first."""
        if self._stopping is not None:
            self._stopping.join()

    def watch(self, lifeline: socket.socket) -> None:
        """Wait for the end of the supervisor, then do its work: SIGTERM, grace period, SIGKILL."""
        with contextlib.suppress(OSError):
            while lifeline.recv(64):
                pass
        saying = threading.Thread(target=_say_that_the_supervisor_is_gone, name="coord-last-words", daemon=True)
        saying.start()
        saying.join(_SAYING_SECONDS)  # a terminal or a pipe that is not read blocks
        if not self.requested:  # otherwise a stop was requested before
            self._lost = SupervisorLost()
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # the group is ours alone, see driver_process


def _say_that_the_supervisor_is_gone() -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal may have died with it
        print("the supervisor is gone: stopping", file=sys.stderr)


def _open_lifeline() -> socket.socket | None:
    """Take over the supervisor's end, if there is one, and hide it from all processes that the script starts."""
    number = os.environ.pop(LIFELINE_VARIABLE, None)
    if number is None:
        return None
    lifeline = socket.socket(fileno=int(number))
    lifeline.set_inheritable(False)
    return lifeline


def _run(argv: Sequence[str]) -> tuple[int, str | None]:
    """Run the script; returns the exit code and what to tell the supervisor about an error."""
    try:
        _execute(Path(argv[0]), argv)
    except SystemExit as exit_:
        return _exit_code(exit_)
    except BaseException as error:
        error.__traceback__ = _from_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return exit_code_of(error, is_start=not start_notice.has_started()), _summary(error)
    return ExitCode.FINISHED, None


def _execute(script: Path, argv: Sequence[str]) -> None:
    # dont_inherit: the script must not get the __future__ imports of this module.
    code = compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=str(script), __builtins__=builtins)
    sys.modules["__main__"] = module
    sys.argv = list(argv)
    folder = str(script.resolve().parent)
    if sys.flags.safe_path:
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder  # it was the working directory, because of -m
    exec(code, module.__dict__)


def _exit_code(exit_: SystemExit) -> tuple[int, str | None]:
    if exit_.code is None:
        return ExitCode.FINISHED, None
    if isinstance(exit_.code, int):
        return exit_.code, None
    print(exit_.code, file=sys.stderr)
    return ExitCode.FAILED, _one_line(str(exit_.code))


def _from_script(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this module, as for a script without a bootstrap."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _summary(error: BaseException) -> str:
    return _one_line("".join(traceback.format_exception_only(error)))


def _one_line(text: str) -> str:
    """The first line, and the last one where a longer text (a traceback inside a message) ends with the real reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    line = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    return line[:_REPORT_CHARACTERS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
