"""`coordctl run` over a real job: a driver that dies is followed by another, a request to stop ends all in order."""

from __future__ import annotations

import os
import signal

import pytest

from tests.kill.audit import audit, recovered
from tests.kill.life import HANG_SECONDS, Moment, Trial

pytestmark = [pytest.mark.kill, pytest.mark.spark, pytest.mark.timeout(600)]

_RUN = ["-m", "coord_control.cli", "run", "--backoff-initial", "10ms", "--backoff-max", "20ms", "--grace", "100s"]


def test_a_killed_driver_is_followed_by_another_and_a_request_to_stop_ends_the_job_in_order(trial: Trial) -> None:
    supervisor = trial.start(command=_RUN)
    python, _ = trial.processes(1)
    trial.wait_for_moment(Moment.ACKED, 1)
    os.kill(python, signal.SIGKILL)

    _, jvm = trial.processes(2)
    trial.wait_for_moment(Moment.BEGUN, 2)
    os.kill(jvm, signal.SIGKILL)

    trial.processes(3)
    trial.wait_for_epochs(1)
    supervisor.send_signal(signal.SIGTERM)
    code = supervisor.wait(HANG_SECONDS)
    log = trial.log(1).read_text()

    assert code == 143, log[-4000:]
    assert "the driver ended with SIGKILL; restart 1" in log
    assert "the driver ended with exit code 75: " in log, "a driver without its JVM asks to be started again"
    assert [(trial.job / "generations" / f"{number}.released").exists() for number in (1, 2, 3)] == [False, True, True]
    _, operator = recovered(trial)
    assert operator.replay is None or operator.replay.barrier is None, "the last epoch was cut off"
    assert audit(trial).orders > 0
    assert trial.violations() == []
    trial.wait_for(lambda: not trial.leftovers(), "every process of the trial to end")
