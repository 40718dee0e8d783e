"""Keeps one driver process alive: decides when to start it, when to restart it, when to stop.

The decisions are made by a state machine without clock, process or thread (``Supervision``): inputs with a time go in,
actions come out. The loop around it (``supervise``) takes its clock, its inbox and the driver as arguments, so
that its tests run in virtual time.

    IDLE      begin                                   -> RUNNING   start
    RUNNING   the driver ended, to be restarted       -> WAITING   after a back-off; immediately if it requested it
              the driver ended permanently            -> FINISHED
              stop requested                          -> STOPPING  terminate
    WAITING   the wait is over                        -> RUNNING   start
              stop requested                          -> FINISHED
    STOPPING  the grace period is over, a second stop -> KILLING   kill
              the driver ended                        -> FINISHED
    KILLING   the driver ended                        -> FINISHED

The back-off is counted since the last stable run: a job runs for weeks, and a failure in March is no reason to wait
longer after one in May. The maximum number of restarts is counted in the same way. A driver that requests a restart has
not failed and is not counted; a pause prevents a hot loop if it requests one each time.

Threads: ``Supervision`` and ``supervise`` belong to one thread; signal handlers and the thread that waits for the
process only put messages into the inbox.
"""

from __future__ import annotations

import enum
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

from coord_control.driver_report import StartedJob
from coord_control.errors import InvalidTransition
from coord_control.exit_codes import NO_RESTART, ExitCode

__all__ = [
    "Action",
    "DriverEnded",
    "DriverHandle",
    "Finish",
    "Inbox",
    "Kill",
    "Phase",
    "Policy",
    "Reports",
    "RestartDriver",
    "RestartOnRequest",
    "StartDriver",
    "StopRequested",
    "Supervision",
    "Terminate",
    "supervise",
]

_log = logging.getLogger("coord_control.supervisor")
_CLEAN_STOP: Final = frozenset({ExitCode.FINISHED, ExitCode.STOPPED, ExitCode.RESTART})
_MAX_DOUBLINGS: Final = 60  # beyond any sensible cap, and far from a float's overflow


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient the supervisor is; all times in seconds."""

    grace: float = 30.0  #: from the request to stop to SIGKILL
    max_restarts: int | None = None  #: since the last stable run; None for no limit
    backoff_initial: float = 1.0
    backoff_max: float = 60.0
    stable_after: float = 60.0  #: a driver that lived this long resets the back-off
    request_pause: float = 5.0  #: the minimum time between two restarts on request


@dataclass(frozen=True, slots=True)
class DriverEnded:
    """A driver process has ended, and everything that it had started in its process group."""

    returncode: int  #: as in ``subprocess``: negative for a signal
    error: str | None = None  #: the driver's own error message, one line
    jobs: tuple[StartedJob, ...] = ()  #: those that it ran

    @property
    def exit_code(self) -> int:
        """Return the exit code in the shell's form: 128 + signal for a process that was ended by a signal."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    def __str__(self) -> str:
        end = _signal_name(-self.returncode) if self.returncode < 0 else f"exit code {self.returncode}"
        return end if self.error is None else f"{end}: {self.error}"


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The supervisor received a signal to stop."""

    signum: int


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start a driver."""


@dataclass(frozen=True, slots=True)
class RestartDriver:
    """Log that a driver will be started after ``delay`` seconds."""

    ended: DriverEnded
    number: int  #: restarts since the last stable run, this one included
    delay: float


@dataclass(frozen=True, slots=True)
class RestartOnRequest:
    """Log that the driver requested a restart, and will be started after ``delay`` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the driver to stop."""

    signum: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End the driver and its whole process group now."""

    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The supervisor is done."""

    exit_code: int
    why: str
    is_clean: bool  #: the last driver had begun its jobs, and has ended as it should


Action = StartDriver | RestartDriver | RestartOnRequest | Terminate | Kill | Finish


class Phase(enum.Enum):
    """See the table in the module's docstring."""

    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    KILLING = "killing"
    FINISHED = "finished"


class Supervision:
    """The state machine. Every input returns the action to execute, if any; an illegal input changes nothing."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.phase = Phase.IDLE
        self.deadline: float | None = None  #: call ``time_passed`` then
        self._started_at = 0.0
        self._restarts = 0  # since the last stable run
        self._requested_start: float | None = None  # the last start on request
        self._stop: StopRequested | None = None
        self._failed: DriverEnded | None = None  # after which a driver is to be started again

    def begin(self, now: float) -> Action:
        """Start the first driver."""
        self._require("begin", Phase.IDLE)
        return self._start(now)

    def stop_requested(self, request: StopRequested, now: float) -> Action | None:
        """Ask the driver to stop on the first request, kill it on the second; ignore further ones."""
        self._require("stop_requested", Phase.RUNNING, Phase.WAITING, Phase.STOPPING, Phase.KILLING)
        if self.phase is Phase.KILLING:
            return None
        if self.phase is Phase.STOPPING:
            return self._kill(f"a second {_signal_name(request.signum)} arrived")
        self._stop = request
        if self.phase is Phase.WAITING:
            why = f"{_signal_name(request.signum)} while no driver was running"
            why += "" if self._failed is None else f"; the last one ended with {self._failed}"
            return self._finish(128 + request.signum, why, is_clean=False)
        self.phase, self.deadline = Phase.STOPPING, now + self.policy.grace
        return Terminate(request.signum)

    def time_passed(self, now: float) -> Action | None:
        """Do what is due at ``deadline``, or nothing before it."""
        self._require("time_passed", Phase.RUNNING, Phase.WAITING, Phase.STOPPING, Phase.KILLING)
        if self.deadline is None or now < self.deadline:
            return None
        if self.phase is Phase.WAITING:
            return self._start(now)
        return self._kill(f"it has not stopped within {self.policy.grace:g} s")

    def driver_ended(self, ended: DriverEnded, now: float) -> Action:
        """Finish after the end of the driver, or wait and restart it."""
        self._require("driver_ended", Phase.RUNNING, Phase.STOPPING, Phase.KILLING)
        if self._stop is not None:
            return self._stopped(ended, self._stop)
        if ended.returncode == ExitCode.FINISHED:
            return self._finish(ExitCode.FINISHED, "the job is finished", is_clean=bool(ended.jobs))
        if ended.returncode in NO_RESTART:
            why = f"the driver ended with {ended}; a restart would not help"
            return self._finish(ended.exit_code, why, is_clean=False)
        if now - self._started_at >= self.policy.stable_after:
            self._restarts = 0
        if ended.returncode == ExitCode.RESTART:
            return self._restart_on_request(now)
        if self.policy.max_restarts is not None and self._restarts >= self.policy.max_restarts:
            why = f"the driver ended with {ended} after {self._restarts} restarts"
            return self._finish(ended.exit_code, why, is_clean=False)
        return self._restart(ended, now)

    def _restart(self, ended: DriverEnded, now: float) -> Action:
        doublings = min(self._restarts, _MAX_DOUBLINGS)
        delay = min(self.policy.backoff_max, self.policy.backoff_initial * 2.0**doublings)
        self._failed = ended
        self._restarts += 1
        self.phase, self.deadline = Phase.WAITING, now + delay
        return RestartDriver(ended, self._restarts, delay)

    def _restart_on_request(self, now: float) -> Action:
        last = self._requested_start
        start = now if last is None else max(now, last + self.policy.request_pause)
        self._requested_start = self.deadline = start
        self.phase = Phase.WAITING
        return RestartOnRequest(start - now)

    def _stopped(self, ended: DriverEnded, request: StopRequested) -> Action:
        terminated = ended.returncode == -signal.SIGTERM  # the interpreter had not installed its handler yet
        if ended.returncode in _CLEAN_STOP or terminated:
            why = f"stopped on {_signal_name(request.signum)}"
            return self._finish(128 + request.signum, why, is_clean=bool(ended.jobs))
        why = f"the driver ended with {ended} while it was being stopped"
        return self._finish(ended.exit_code, why, is_clean=False)

    def _start(self, now: float) -> Action:
        self.phase, self.deadline, self._started_at = Phase.RUNNING, None, now
        return StartDriver()

    def _kill(self, why: str) -> Action:
        self.phase, self.deadline = Phase.KILLING, None
        return Kill(why)

    def _finish(self, exit_code: int, why: str, *, is_clean: bool) -> Action:
        self.phase, self.deadline = Phase.FINISHED, None
        return Finish(exit_code, why, is_clean)

    def _require(self, input_: str, *allowed: Phase) -> None:
        if self.phase not in allowed:
            raise InvalidTransition("Supervision", self.phase, input_)


class DriverHandle(Protocol):
    """Starts and ends driver processes, one at a time; the end of each puts a ``DriverEnded`` into the inbox."""

    def start(self) -> int:
        """Start a driver and return its process id. Raises OSError if that fails (nothing is put into the inbox)."""

    def terminate(self) -> None:
        """Send SIGTERM to the driver's Python process, but not to its JVM. Harmless if it is gone."""

    def kill(self) -> None:
        """Send SIGKILL to all processes of the driver. Harmless if they are gone."""


class Inbox(Protocol):
    """Receives the messages for the loop."""

    def get(self, timeout: float | None) -> DriverEnded | StopRequested | None:
        """Wait for the next message; return None after ``timeout`` seconds (None for no limit)."""


class Reports(Protocol):
    """Records why the jobs of a supervisor have no driver."""

    def ended(self, jobs: Sequence[StartedJob]) -> None:
        """Note the jobs of a driver that has ended."""

    def not_started(self, reason: str, *, is_final: bool) -> None:
        """Report that no driver runs, and that none will be started if it ``is_final``. Never raises."""


def supervise(policy: Policy, driver: DriverHandle, inbox: Inbox, clock: Callable[[], float], reports: Reports) -> int:
    """Run a driver until it has finished or a stop is requested; return the exit code (see ``exit_codes``).

    Args:
        clock: a monotonic clock, in seconds.
    """
    machine = Supervision(policy)
    action: Action | None = machine.begin(clock())
    while not isinstance(action, Finish):
        failed = None if action is None else _execute(action, driver, policy, reports)
        action = machine.driver_ended(failed, clock()) if failed else _next(machine, inbox, clock, reports)
    _log.info("done: %s (exit code %d)", action.why, action.exit_code)
    if not action.is_clean:
        reports.not_started(f"coordctl run has ended: {action.why}", is_final=True)
    return action.exit_code


def _next(machine: Supervision, inbox: Inbox, clock: Callable[[], float], reports: Reports) -> Action | None:
    timeout = None if machine.deadline is None else max(0.0, machine.deadline - clock())
    match inbox.get(timeout):
        case DriverEnded() as ended:
            reports.ended(ended.jobs)
            return machine.driver_ended(ended, clock())
        case StopRequested() as request:
            return machine.stop_requested(request, clock())
        case None:
            return machine.time_passed(clock())


def _execute(action: Action, driver: DriverHandle, policy: Policy, reports: Reports) -> DriverEnded | None:
    """Execute and log an action; return the end of a driver that could not be started."""
    match action:
        case StartDriver():
            return _start(driver)
        case RestartDriver(ended, number, delay):
            _log.warning("the driver ended with %s; restart %d in %.3g s", ended, number, delay)
            if not ended.jobs:  # a job that has started reports its end
                reports.not_started(f"its driver does not start: {ended}", is_final=False)
        case RestartOnRequest(delay):
            _log.info("the driver requested a restart; starting it in %.3g s", delay)
        case Terminate(signum):
            _log.info("%s: asking the driver to stop within %g s", _signal_name(signum), policy.grace)
            driver.terminate()
        case Kill(why):
            _log.warning("killing the driver: %s", why)
            driver.kill()
        case Finish():
            pass  # the loop ends
        case _:
            assert_never(action)
    return None


def _start(driver: DriverHandle) -> DriverEnded | None:
    try:
        pid = driver.start()
    except OSError as error:
        return DriverEnded(ExitCode.TEMPORARY, f"cannot start a process: {error}")
    _log.info("driver started, pid %d", pid)
    return None


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
