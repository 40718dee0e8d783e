"""Ctrl-C and SIGTERM: the first stops the job after its current epochs, the second ends the demo immediately.

While Spark starts, a signal is only noted. If PySpark is interrupted there, it removes the files by which its JVM finds
it, and the JVM never notices that its pipe is closed: it would never end. The start takes seconds; after that, the
session can be ended normally.

Immediately means that the JVM is killed, as in a crash: a graceful end would first finish its work, and the job's files
survive a crash at any point. All other child processes end with this process.

Threads: handlers run on the main thread and only take notes, because they may interrupt anything; a separate thread
prints and acts.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Final

from pyspark.sql import SparkSession

from coord_control.exit_codes import ExitCode
from examples.flights.progress import Progress

__all__ = ["Interrupts"]

_WHILE_STARTING: Final = "stopping as soon as Spark has started"
_WHILE_RUNNING: Final = "stopping at the end of the running epochs; Ctrl-C again ends at once"
_AT_ONCE: Final = "interrupted before the end of the running epochs; --work resumes from here"


class Interrupts:
    """Handles the signals; must be created by the main thread, before Spark is started.

    Args:
        stop: set by the first signal.
        progress: prints what will happen, and restores the terminal.
    """

    def __init__(self, stop: threading.Event, progress: Progress) -> None:
        self._stop = stop
        self._progress = progress
        self._spark: SparkSession | None = None
        self._arrived, self._again = threading.Event(), threading.Event()
        self._take_over()
        threading.Thread(target=self._act, name="interrupts", daemon=True).start()

    def spark_runs(self, spark: SparkSession) -> None:
        """Let a second signal end everything from now on.

        Raises:
            KeyboardInterrupt: a signal has already arrived.
        """
        self._spark = spark
        self._take_over()  # again: Spark has installed a handler that cancels all jobs immediately
        if self._arrived.is_set():
            raise KeyboardInterrupt

    def _take_over(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._spark is not None and self._arrived.is_set():
            self._again.set()
        self._arrived.set()
        self._stop.set()

    def _act(self) -> None:
        self._arrived.wait()
        self._progress.say(_WHILE_STARTING if self._spark is None else _WHILE_RUNNING)
        self._again.wait()
        assert self._spark is not None, "there is no second one before"
        self._progress.say(_AT_ONCE)
        self._progress.close()
        gateway = self._spark.sparkContext._gateway
        if gateway is not None:
            gateway.proc.kill()
        os._exit(ExitCode.INTERRUPTED)
