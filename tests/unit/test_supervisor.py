"""The supervisor in virtual time: with scripted drivers and requests, where a wait costs nothing."""

from __future__ import annotations

import heapq
import itertools
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from coord_control.driver_report import StartedJob
from coord_control.errors import InvalidTransition
from coord_control.exit_codes import NO_RESTART, ExitCode
from coord_control.supervisor import (
    Action,
    DriverEnded,
    Finish,
    Kill,
    Phase,
    Policy,
    RestartDriver,
    StartDriver,
    StopRequested,
    Supervision,
    Terminate,
    supervise,
)

_TERM = StopRequested(signal.SIGTERM)
_CRASH = DriverEnded(1, "ValueError: boom")


@dataclass
class Life:
    """What one driver process does: live for ``seconds``, and after SIGTERM for ``after_term`` (None: ignores it)."""

    seconds: float = 1e9
    end: DriverEnded = _CRASH
    after_term: float | None = None
    end_after_term: DriverEnded = field(default_factory=lambda: DriverEnded(ExitCode.STOPPED))


class Reported:
    """What is reported of jobs without a driver."""

    def __init__(self) -> None:
        self.jobs: list[StartedJob] = []
        self.texts: list[tuple[str, bool]] = []

    def ended(self, jobs: Sequence[StartedJob]) -> None:
        self.jobs += jobs

    def not_started(self, reason: str, *, is_final: bool) -> None:
        self.texts.append((reason, is_final))


class SupervisorRig:
    """Clock, launcher and inbox in one: messages come in the order of their times, waiting moves the clock."""

    def __init__(self, *lives: Life) -> None:
        self.now = 0.0
        self.log: list[tuple[float, str]] = []
        self.reports = Reported()
        self._lives = iter(lives)
        self._life: Life | None = None
        self._generation = 0
        self._order = itertools.count()
        self._schedule: list[tuple[float, int, int | None, DriverEnded | StopRequested]] = []

    def clock(self) -> float:
        return self.now

    def request_stop(self, at: float, signum: int = signal.SIGTERM) -> None:
        heapq.heappush(self._schedule, (at, next(self._order), None, StopRequested(signum)))

    def start(self) -> int:
        self.log.append((self.now, "start"))
        self._life = next(self._lives)
        self._generation += 1
        self._end(self._life.seconds, self._life.end)
        return self._generation

    def terminate(self) -> None:
        self.log.append((self.now, "terminate"))
        if self._life is not None and self._life.after_term is not None:
            self._end(self._life.after_term, self._life.end_after_term)

    def kill(self) -> None:
        self.log.append((self.now, "kill"))
        self._end(0.0, DriverEnded(-signal.SIGKILL))

    def get(self, timeout: float | None) -> DriverEnded | StopRequested | None:
        until = None if timeout is None else self.now + timeout
        while self._schedule and (until is None or self._schedule[0][0] <= until):
            at, _, generation, message = heapq.heappop(self._schedule)
            if generation is not None and (generation != self._generation or self._life is None):
                continue  # that driver has ended in another way meanwhile
            self.now = max(self.now, at)
            if isinstance(message, DriverEnded):
                self._life = None
            return message
        assert until is not None, "the supervisor waits for ever"
        self.now = until
        return None

    def _end(self, after: float, end: DriverEnded) -> None:
        heapq.heappush(self._schedule, (self.now + after, next(self._order), self._generation, end))

    def run(self, policy: Policy) -> int:
        return supervise(policy, self, self, self.clock, self.reports)

    def starts(self) -> list[float]:
        return [at for at, what in self.log if what == "start"]


def test_a_driver_that_ends_with_0_has_finished_the_job() -> None:
    rig = SupervisorRig(Life(5.0, DriverEnded(0)))

    assert rig.run(Policy()) == 0
    assert rig.log == [(0.0, "start")]


def test_waits_double_up_to_the_cap() -> None:
    rig = SupervisorRig(*[Life(0.0)] * 6, Life(0.0, DriverEnded(0)))

    assert rig.run(Policy(backoff_initial=1.0, backoff_max=10.0)) == 0
    assert rig.starts() == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0, 35.0]


def test_waits_stay_at_the_cap_for_ever() -> None:
    rig = SupervisorRig(*[Life(0.0)] * 3000, Life(0.0, DriverEnded(0)))

    assert rig.run(Policy(backoff_initial=1.0, backoff_max=60.0)) == 0
    assert rig.starts()[-1] - rig.starts()[-2] == 60.0


def test_a_stable_run_resets_the_waits() -> None:
    rig = SupervisorRig(Life(0.0), Life(0.0), Life(60.0), Life(0.0), Life(0.0, DriverEnded(0)))

    assert rig.run(Policy(stable_after=60.0)) == 0
    assert rig.starts() == [0.0, 1.0, 3.0, 64.0, 66.0]


def test_restarts_are_limited_since_the_last_stable_run() -> None:
    rig = SupervisorRig(Life(0.0), Life(0.0), Life(60.0), Life(0.0), Life(0.0, DriverEnded(70)))

    assert rig.run(Policy(max_restarts=2, stable_after=60.0)) == 70
    assert len(rig.starts()) == 5


def test_no_restart_allowed_means_one_start_and_the_driver_s_code() -> None:
    rig = SupervisorRig(Life(1.0, DriverEnded(-signal.SIGSEGV)))

    assert rig.run(Policy(max_restarts=0)) == 128 + signal.SIGSEGV
    assert len(rig.starts()) == 1


@pytest.mark.parametrize("code", sorted(NO_RESTART))
def test_a_driver_that_no_restart_can_help_ends_the_supervisor_with_its_code(code: int) -> None:
    rig = SupervisorRig(Life(1.0, DriverEnded(code)))

    assert rig.run(Policy()) == code
    assert len(rig.starts()) == 1


def test_a_driver_that_somebody_else_stopped_is_started_again() -> None:
    rig = SupervisorRig(Life(1.0, DriverEnded(ExitCode.STOPPED)), Life(1.0, DriverEnded(0)))

    assert rig.run(Policy()) == 0
    assert len(rig.starts()) == 2


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("end", [DriverEnded(0), DriverEnded(143), DriverEnded(-signal.SIGTERM)], ids=str)
def test_a_clean_stop_within_the_grace_period_is_told_by_the_code(signum: int, code: int, end: DriverEnded) -> None:
    rig = SupervisorRig(Life(after_term=29.0, end_after_term=end))
    rig.request_stop(100.0, signum)

    assert rig.run(Policy(grace=30.0)) == code
    assert rig.log == [(0.0, "start"), (100.0, "terminate")]


def test_an_error_while_stopping_is_not_hidden() -> None:
    rig = SupervisorRig(Life(after_term=1.0, end_after_term=DriverEnded(ExitCode.TEMPORARY, "StoreUnavailable: ...")))
    rig.request_stop(100.0)

    assert rig.run(Policy()) == ExitCode.TEMPORARY


def test_a_driver_that_ignores_the_request_is_killed_after_the_grace_period() -> None:
    rig = SupervisorRig(Life())
    rig.request_stop(100.0)

    assert rig.run(Policy(grace=30.0)) == ExitCode.KILLED
    assert rig.log == [(0.0, "start"), (100.0, "terminate"), (130.0, "kill")]


def test_a_second_request_kills_at_once_and_a_third_changes_nothing() -> None:
    rig = SupervisorRig(Life())
    for at in (100.0, 101.0, 101.0):
        rig.request_stop(at)

    assert rig.run(Policy(grace=30.0)) == ExitCode.KILLED
    assert rig.log == [(0.0, "start"), (100.0, "terminate"), (101.0, "kill")]


def test_a_request_during_the_back_off_ends_the_wait() -> None:
    rig = SupervisorRig(Life(0.0))
    rig.request_stop(0.5)

    assert rig.run(Policy(backoff_initial=10.0)) == ExitCode.STOPPED
    assert (rig.now, len(rig.starts())) == (0.5, 1)


def test_a_process_that_cannot_be_started_counts_as_a_failed_driver() -> None:
    class Poor(SupervisorRig):
        def start(self) -> int:
            if not self.log:
                self.log.append((self.now, "no memory"))
                raise OSError(12, "Cannot allocate memory")
            return super().start()

    rig = Poor(Life(1.0, DriverEnded(0)))

    assert rig.run(Policy()) == 0
    assert rig.log == [(0.0, "no memory"), (1.0, "start")]


def test_the_reason_of_a_restart_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="coord_control.supervisor")

    SupervisorRig(Life(0.0), Life(0.0, DriverEnded(-signal.SIGKILL)), Life(0.0, DriverEnded(0))).run(Policy())

    messages = [record.getMessage() for record in caplog.records]
    assert "the driver ended with exit code 1: ValueError: boom; restart 1 in 1 s" in messages
    assert "the driver ended with SIGKILL; restart 2 in 2 s" in messages


# --- the machine: every input in every phase

_INPUTS: dict[str, Callable[[Supervision], Action | None]] = {
    "begin": lambda machine: machine.begin(1.0),
    "stop_requested": lambda machine: machine.stop_requested(_TERM, 1.0),
    "time_passed": lambda machine: machine.time_passed(1e6),
    "driver_ended": lambda machine: machine.driver_ended(_CRASH, 1.0),
}
_EXPECTED: dict[tuple[Phase, str], tuple[Phase, type[Action] | None]] = {
    (Phase.IDLE, "begin"): (Phase.RUNNING, StartDriver),
    (Phase.RUNNING, "stop_requested"): (Phase.STOPPING, Terminate),
    (Phase.RUNNING, "time_passed"): (Phase.RUNNING, None),
    (Phase.RUNNING, "driver_ended"): (Phase.WAITING, RestartDriver),
    (Phase.WAITING, "stop_requested"): (Phase.FINISHED, Finish),
    (Phase.WAITING, "time_passed"): (Phase.RUNNING, StartDriver),
    (Phase.STOPPING, "stop_requested"): (Phase.KILLING, Kill),
    (Phase.STOPPING, "time_passed"): (Phase.KILLING, Kill),
    (Phase.STOPPING, "driver_ended"): (Phase.FINISHED, Finish),
    (Phase.KILLING, "stop_requested"): (Phase.KILLING, None),
    (Phase.KILLING, "time_passed"): (Phase.KILLING, None),
    (Phase.KILLING, "driver_ended"): (Phase.FINISHED, Finish),
}


def _in_phase(phase: Phase) -> Supervision:
    way = {
        Phase.IDLE: [],
        Phase.RUNNING: ["begin"],
        Phase.WAITING: ["begin", "driver_ended"],
        Phase.STOPPING: ["begin", "stop_requested"],
        Phase.KILLING: ["begin", "stop_requested", "stop_requested"],
        Phase.FINISHED: ["begin", "stop_requested", "driver_ended"],
    }
    machine = Supervision(Policy())
    for name in way[phase]:
        _INPUTS[name](machine)
    assert machine.phase is phase
    return machine


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("name", _INPUTS)
def test_every_input_in_every_phase_is_taken_as_declared_or_refused(phase: Phase, name: str) -> None:
    machine = _in_phase(phase)
    before = (machine.phase, machine.deadline)
    expected = _EXPECTED.get((phase, name))

    if expected is None:
        with pytest.raises(InvalidTransition):
            _INPUTS[name](machine)
        assert (machine.phase, machine.deadline) == before
    else:
        action = _INPUTS[name](machine)
        assert (machine.phase, type(action)) == (expected[0], expected[1] or type(None))


def test_before_its_deadline_nothing_is_due() -> None:
    machine = _in_phase(Phase.WAITING)
    assert machine.deadline is not None

    assert machine.time_passed(machine.deadline - 0.001) is None
    assert machine.time_passed(machine.deadline) == StartDriver()


_AGAIN = DriverEnded(ExitCode.RESTART)


def test_a_driver_that_asks_for_it_is_started_again_at_once() -> None:
    rig = SupervisorRig(Life(30.0, _AGAIN), Life(30.0, _AGAIN), Life(1.0, DriverEnded(0)))

    assert rig.run(Policy(max_restarts=0)) == 0
    assert rig.starts() == [0.0, 30.0, 60.0]


def test_a_driver_that_asks_for_it_each_time_is_no_hot_loop() -> None:
    rig = SupervisorRig(*[Life(0.0, _AGAIN)] * 3, Life(4.0, _AGAIN), Life(0.0, DriverEnded(0)))

    assert rig.run(Policy(request_pause=5.0)) == 0
    assert rig.starts() == [0.0, 0.0, 5.0, 10.0, 15.0]


def test_a_restart_on_request_is_no_failure() -> None:
    rig = SupervisorRig(Life(0.0), Life(10.0, _AGAIN), Life(0.0), Life(0.0, DriverEnded(0)))

    assert rig.run(Policy(backoff_initial=1.0, max_restarts=2)) == 0
    assert rig.starts() == [0.0, 1.0, 11.0, 13.0]


def test_a_stop_comes_before_a_restart_on_request() -> None:
    rig = SupervisorRig(Life(after_term=2.0, end_after_term=_AGAIN))
    rig.request_stop(1.0)

    assert rig.run(Policy()) == 128 + signal.SIGTERM
    assert len(rig.starts()) == 1


def test_a_stop_during_the_pause_before_a_restart_on_request_ends_it() -> None:
    rig = SupervisorRig(Life(0.0, _AGAIN), Life(0.0, _AGAIN))
    rig.request_stop(2.0)

    assert rig.run(Policy(request_pause=5.0)) == 128 + signal.SIGTERM
    assert rig.starts() == [0.0, 0.0]


_JOB = StartedJob(name="flights", generation=3, control="sqlite:////tmp/control.db")


def test_a_driver_that_does_not_start_is_reported_with_its_reason() -> None:
    rig = SupervisorRig(Life(9.0, DriverEnded(76, None, (_JOB,))), Life(0.0), Life(9.0, DriverEnded(0, None, (_JOB,))))
    rig.run(Policy())

    assert rig.reports.jobs == [_JOB, _JOB]
    again = "its driver does not start: exit code 1: ValueError: boom"
    assert rig.reports.texts == [(again, False)], "a job that had started says itself why it ends"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (
            DriverEnded(78, "SyntaxError: x"),
            "the driver ended with exit code 78: SyntaxError: x; a restart would not help",
        ),
        (_CRASH, "the driver ended with exit code 1: ValueError: boom after 0 restarts"),
    ],
)
def test_the_end_of_a_supervisor_without_a_driver_is_reported(end: DriverEnded, reason: str) -> None:
    rig = SupervisorRig(Life(0.0, end))
    rig.run(Policy(max_restarts=0))

    assert rig.reports.texts == [(f"coordctl run has ended: {reason}", True)]


def test_a_stop_while_no_driver_runs_is_reported() -> None:
    rig = SupervisorRig(Life(5.0))
    rig.request_stop(5.5)
    rig.run(Policy())

    why = "SIGTERM while no driver was running; the last one ended with exit code 1: ValueError: boom"
    assert rig.reports.texts[-1] == (f"coordctl run has ended: {why}", True)


def test_a_job_that_ends_as_it_should_is_not_reported() -> None:
    stopped = DriverEnded(ExitCode.STOPPED, None, (_JOB,))
    for rig in (
        SupervisorRig(Life(5.0, DriverEnded(0, None, (_JOB,)))),
        SupervisorRig(Life(after_term=1.0, end_after_term=stopped)),
    ):
        rig.request_stop(6.0)
        rig.run(Policy())
        assert rig.reports.texts == []


@pytest.mark.parametrize("end", [DriverEnded(143), DriverEnded(-signal.SIGTERM), DriverEnded(0)], ids=str)
def test_a_stop_before_the_next_driver_has_begun_its_jobs_is_reported(end: DriverEnded) -> None:
    rig = SupervisorRig(Life(9.0, DriverEnded(76, None, (_JOB,))), Life(after_term=1.0, end_after_term=end))
    rig.request_stop(12.0)
    rig.run(Policy())

    assert rig.reports.texts == [("coordctl run has ended: stopped on SIGTERM", True)]
