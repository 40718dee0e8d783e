"""Ctrl-C and SIGTERM: the first stops the job at the end of its running epochs, the second ends the demo at once.

While Spark starts, a signal is only remembered. PySpark cleans up what its JVM needs to find it when it is interrupted
there, and such a JVM never sees that nobody is at the other end of its pipe: it would be left for ever. The start takes
seconds; afterwards the session can be ended as always.

At once means that the JVM is killed, as in a crash: asked politely it would first finish what it does, and the files of
the job are made for drivers that die anywhere. What else was started ends with this process.

Threads: handlers run in the main one and only take notes, because they may interrupt anything; a thread of its own
talks and acts.
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
_AT_ONCE: Final = "interrupted before the end of the running epochs; --work goes on from here"


class Interrupts:
    """Takes the signals over; to be made by the main thread, before Spark is started.

    Args:
        stop: set by the first one.
        progress: says what will happen, and gives the terminal back.
    """

    def __init__(self, stop: threading.Event, progress: Progress) -> None:
        self._stop = stop
        self._progress = progress
        self._spark: SparkSession | None = None
        self._arrived, self._again = threading.Event(), threading.Event()
        self._take_over()
        threading.Thread(target=self._act, name="interrupts", daemon=True).start()

    def spark_runs(self, spark: SparkSession) -> None:
        """From now on a second signal ends everything.

        Raises:
            KeyboardInterrupt: there was a signal already.
        """
        self._spark = spark
        self._take_over()  # again: Spark has set a handler that cancels all work at once
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
