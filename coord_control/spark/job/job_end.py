"""How a job ends: by its program, or because its process is asked to stop, on request with a last savepoint.

With ``on_stop="savepoint"`` a job whose process is asked to stop (SIGTERM, or the end of its supervisor) takes a
savepoint first, and processes nothing after it:

| when its process is asked to stop                    | the job                                              |
| ---------------------------------------------------- | ---------------------------------------------------- |
| and it runs                                          | pauses, takes a savepoint, ends                      |
| and the savepoint fails, or is not complete in time  | ends without it, after its running epochs            |
| while its program may still start queries            | ends without a savepoint: some queries would miss    |
| during a stop with savepoint                         | ends with that one; if that fails, takes another one |
| while a command or an error ends it                  | ends as it does without the request                  |

A part of the time stays reserved for the end itself. What comes in between ends the job at once, without the savepoint:
a command, an error, a second signal.

Threads: any; the request has a thread of :mod:`coord_control.spark.process.shutdown`.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final, Literal, TypeAlias, get_args

from coord_control.ids import CheckpointKind
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.spark.checkpoints.stop_first import CLOSE_SECONDS, STOP_SECONDS, stop_queries
from coord_control.spark.job.agent_port import AgentPort
from coord_control.spark.job.job_driver import JobDriver
from coord_control.spark.job.job_outside import JobOutside
from coord_control.spark.process import shutdown
from coord_control.spark.process.interrupts import InterruptsWait

__all__ = ["JobEnd", "OnStop", "check_on_stop", "savepoint_seconds"]

_log = logging.getLogger("coord_control.job")

OnStop: TypeAlias = Literal["stop", "savepoint"]

# Kept for the end of the job: to abort the savepoint, end what runs, and write the last records.
_RESERVED_SHARE: Final = 1 / 3
_RESERVED_SECONDS: Final = 10.0


def check_on_stop(value: OnStop) -> None:
    """Refuse what is no ``on_stop``.

    Raises:
        ValueError: it is none.
    """
    if value not in get_args(OnStop):
        raise ValueError(f"on_stop is {value!r}; it must be one of {', '.join(get_args(OnStop))}")


def savepoint_seconds(grace_seconds: float) -> float:
    """Return how much of the time for the whole end a savepoint may take."""
    return grace_seconds - min(grace_seconds * _RESERVED_SHARE, _RESERVED_SECONDS)


class JobEnd:
    """Ends one job, once.

    Args:
        on_stop: what precedes the end that is requested of the process.
    """

    def __init__(self, driver: JobDriver, port: AgentPort, outside: JobOutside, on_stop: OnStop) -> None:
        self._driver = driver
        self._life = driver.life
        self._port = port
        self._outside = outside
        self._on_stop = on_stop

    def listen(self) -> None:
        """End the job when its process is asked to stop; at once if it was."""
        shutdown.register(self._requested)

    def stop(self, grace_seconds: float) -> None:
        """End the job, as ``Job.stop`` does."""
        if self._driver.thread.is_current():
            threading.Thread(target=self.stop, args=(grace_seconds,), name="coord-stop", daemon=True).start()
            return
        with InterruptsWait():
            self._stop(grace_seconds)

    def leave(self, error: BaseException | None) -> None:
        """End the job with the block of its program, which ``error`` has ended; None for its normal end.

        That waits for a savepoint after which the job ends anyway: a program whose queries pause for it may believe
        that they have ended.
        """
        # An exit or an interrupt is a request to stop.
        if isinstance(error, Exception) and not isinstance(error, SystemExit):
            self._life.program_error = error
        if isinstance(error, KeyboardInterrupt):
            self._stop(STOP_SECONDS)  # another interrupt does not wait
            return
        try:
            if error is None:
                self._life.wait_for(lambda: not self._life.is_paused)
        finally:
            self.stop(STOP_SECONDS)

    def _stop(self, grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        with self._life.turns:  # a query that is just being started is stopped as well
            if self._life.is_closed:
                return
            self._life.lost_supervisor = shutdown.lost_supervisor()
            self._driver.checkpoints.close(CLOSE_SECONDS)
            stop_queries(self._driver.queries.all(), deadline)
            try:
                self._driver.close()
                self._outside.close()
            finally:
                # Last: a SIGTERM would end the process at once, without the last records and the command's outcome.
                shutdown.unregister(self._requested, on_command=self._life.is_ended_by_command)
        self._life.changed()

    def _requested(self, grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        if self._on_stop == "savepoint":
            try:
                self._save(time.monotonic() + savepoint_seconds(grace_seconds))
            except Exception as error:  # whatever it is, the job ends now
                if not self._ends_otherwise():
                    self._warn(str(error))
        self.stop(max(0.0, deadline - time.monotonic()))

    def _save(self, deadline: float) -> None:
        self._life.wait_for(lambda: not self._life.is_paused, deadline - time.monotonic())
        if self._ends_otherwise():
            return
        if not self._port.is_ready():
            self._warn("its program has not waited for it yet, and may still start queries")
            return
        generation = self._driver.generation
        request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, label=f"stop-{generation}", cause="stop request")
        taken = self._port.savepoint_at_end(request, max(0.0, deadline - time.monotonic()))
        _log.info("= job %s stops after savepoint %d: %s", self._port.facts.name, taken.id, taken.path)

    def _ends_otherwise(self) -> bool:
        return self._life.is_closed or self._life.is_ended_by_command or self._driver.first_error() is not None

    def _warn(self, reason: str) -> None:
        _log.warning(
            "= job %s stops without a savepoint: %s. Nothing is lost: what it has processed is durable, its "
            "checkpoints are kept, and the next driver resumes there",
            self._port.facts.name,
            reason,
            extra={"action": "no_savepoint_on_stop", "job": self._port.facts.name},
        )
