"""The bootstrap of a driver: runs SCRIPT like ``python SCRIPT``, and stops its jobs cleanly.

Its command is ``python -m coord_control.spark.process.bootstrap SCRIPT [ARGS...]``. Differences to ``python SCRIPT``:

- SIGTERM stops the jobs of the script cleanly (``coord_control.spark.process.shutdown``); the script then ends
  normally. A second SIGTERM, or one while no job runs, raises SystemExit in the main thread. Where that is ignored (in
  the callback of a weak reference, and Py4J has one for each Java object), a job that the script starts afterwards is
  stopped at once. The exit code is 143, unless a command ended the jobs: a job that was stopped by a command must not
  be started again.
- If the supervisor ends, which closes the lifeline, the driver stops in the same way, and kills itself after the grace
  period: without its supervisor it could run at the same time as the next driver. A job that ends for this reason has
  failed (``SupervisorLost``), because its end was not requested.
- An error becomes an exit code by its class (``coord_control.exit_codes``), and one line in the supervisor's log.

The script is executed as the module ``__main__``, and keeps that name to the very end: the name decides that classes
and functions of the script are pickled by value, even in callbacks after the script's last line.

Threads: Python runs signal handlers in the main thread, between two instructions of the script, which may hold any lock
at that moment. The handler therefore takes no lock and only starts a thread. A signal wakes the script from whatever it
waits for (``coord_control.signal_wakeup``).
"""

from __future__ import annotations

import builtins
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from coord_control.driver_process import GRACE_VARIABLE
from coord_control.driver_report import DriverReport
from coord_control.errors import SupervisorLost
from coord_control.exit_codes import ExitCode, exit_code_of
from coord_control.signal_wakeup import signals_wake_main_thread
from coord_control.spark.process import shutdown, start_notice
from coord_control.spark.process.lifeline import Lifeline, open_lifeline

__all__ = ["main"]

_DEFAULT_GRACE_SECONDS: Final = 30.0
_JOBS_SHARE: Final = 0.8  # of the grace period; the rest is for Spark's own shutdown
_SAYING_SECONDS: Final = 1.0
_REPORT_CHARACTERS: Final = 500


def main(argv: Sequence[str]) -> int:
    """Run a script and return the exit code of the driver. Call it once, in the main thread.

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
    lifeline = open_lifeline()
    if lifeline is not None:
        threading.Thread(target=stopper.watch, args=(lifeline,), name="coord-lifeline", daemon=True).start()
    code, error = _run(argv)
    stopper.wait()
    if error is not None and lifeline is not None:
        lifeline.report(DriverReport(error=error))
    if stopper.requested and code in (ExitCode.FINISHED, ExitCode.STOPPED):
        code = ExitCode.FINISHED if shutdown.is_end_commanded() else ExitCode.STOPPED
    return ExitCode.RESTART if code == ExitCode.FINISHED and shutdown.is_restart_requested() else code


class _Stopper:
    def __init__(self, grace: float) -> None:
        self._grace = grace
        self.requested = False
        self._lost: SupervisorLost | None = None  # set before the signal that it causes
        self._stopping: threading.Thread | None = None

    def handle(self, signum: int, frame: types.FrameType | None) -> None:
        """Handle SIGTERM."""
        is_first, self.requested = not self.requested, True
        has_jobs = shutdown.has_registered()
        if is_first:  # also without a job: the script may ignore SystemExit, and start one
            seconds = self._grace * _JOBS_SHARE
            self._stopping = threading.Thread(
                target=shutdown.request_stop, args=(seconds, self._lost), name="coord-stop-request", daemon=True
            )
            self._stopping.start()
        if not (is_first and has_jobs):
            raise SystemExit(ExitCode.STOPPED)

    def wait(self) -> None:
        """Wait until the jobs have stopped, even if the script has already ended."""
        if self._stopping is not None:
            self._stopping.join()

    def watch(self, lifeline: Lifeline) -> None:
        """Wait for the end of the supervisor, then stop the driver in its place: SIGTERM, grace period, SIGKILL."""
        lifeline.wait_for_end()
        saying = threading.Thread(target=_say_that_the_supervisor_is_gone, name="coord-last-words", daemon=True)
        saying.start()
        saying.join(_SAYING_SECONDS)  # printing blocks if the terminal or pipe is not read
        if not self.requested:  # otherwise a stop was requested before
            self._lost = SupervisorLost()
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # the group contains only this driver, see driver_process


def _say_that_the_supervisor_is_gone() -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal may have died with it
        print("the supervisor is gone: stopping", file=sys.stderr)


def _run(argv: Sequence[str]) -> tuple[int, str | None]:
    """Run the script; return the exit code, and the error for the supervisor's log."""
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
    # dont_inherit: the __future__ imports of this module must not apply to the script.
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
    """Remove the frames of this module, as if the script ran without a bootstrap."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _summary(error: BaseException) -> str:
    return _one_line("".join(traceback.format_exception_only(error)))


def _one_line(text: str) -> str:
    """Return the first line, and the last: a text with a traceback ends with the real reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    line = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    return line[:_REPORT_CHARACTERS].encode(errors="replace").decode()  # names of files may contain lone surrogates


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
