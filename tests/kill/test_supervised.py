"""`coordctl run` over a real job: a driver that dies is followed by another, a request to stop ends all in order."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.errors import DatabaseError, JobNotFound, JobNotRunning, SupervisorLost
from coord_control.storage.records import JobRecord, JobState
from tests.kill.audit import audit, recovered
from tests.kill.life import (
    Moment,
    Trial,
)
from tests.patience import SECONDS

pytestmark = [pytest.mark.kill, pytest.mark.spark]

_RUN = ["-m", "coord_control.cli", "run", "--backoff-initial", "10ms", "--backoff-max", "20ms", "--grace", "100s"]


# In every run: the death of a JVM below, that of a driver without Spark in acceptance/test_coordctl_run_restarts.py.
@pytest.mark.slow
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
    code = supervisor.wait(SECONDS)
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


def test_a_driver_without_its_jvm_is_followed_by_another_and_a_job_whose_supervisor_was_killed_has_failed(
    trial: Trial,
) -> None:
    with _control(trial) as control:
        supervisor = trial.start(command=_RUN)
        _, jvm = trial.processes(1)
        trial.wait_for_moment(Moment.BEGUN, 1)
        os.kill(jvm, signal.SIGKILL)
        trial.processes(2)
        trial.wait_for(lambda: _runs(control, 2), "the job to run")
        trial.wait_for_epochs(1)
        assert "the driver ended with exit code 75: " in trial.log(1).read_text()
        _kill(supervisor)
        trial.wait_for(lambda: not trial.leftovers(), "the driver to end itself")

        job = control.job("killed")
        assert (job.state, job.end_reason) == (JobState.FAILED, str(SupervisorLost()))
        assert job.dead_since == job.ended_at, "what looks for dead drivers finds it"
        assert (job.is_supervised, job.is_restarting) == (False, False), "nobody is expected to start it"
        assert (trial.job / "generations" / "2.released").exists(), "its epochs were not cut off"
        with pytest.raises(JobNotRunning, match=r"supervisor .* was killed"):
            control.wait(control.trigger_checkpoint("killed"), 60.0)
    _, operator = recovered(trial)
    assert operator.replay is None or operator.replay.barrier is None, "the last epoch was cut off"
    assert audit(trial).orders > 0
    assert trial.violations() == []


# In every run: acceptance/test_coordctl_run_orphans.py, without Spark; what the job says then is the driver's answer to
# whether its supervisor was lost, as above.
@pytest.mark.slow
def test_a_job_that_was_asked_to_stop_before_its_supervisor_was_killed_has_ended(trial: Trial) -> None:
    with _control(trial) as control:
        supervisor = trial.start(command=_RUN)
        trial.processes(1)
        trial.wait_for(lambda: _runs(control, 1), "the job to run")
        trial.wait_for_epochs(1)
        control.stop("killed")
        trial.wait_for(lambda: control.job("killed").state in (JobState.STOPPING, JobState.ENDED), "the stop to begin")
        _kill(supervisor)
        trial.wait_for(lambda: not trial.leftovers(), "the driver to end")

        job = control.job("killed")
        assert (job.state, job.end_reason, job.dead_since) == (JobState.ENDED, "stopped", None)
    _, operator = recovered(trial)
    assert operator.replay is None or operator.replay.barrier is None, "the last epoch was cut off"
    assert trial.violations() == []


def test_a_supervisor_that_is_killed_while_its_driver_starts_leaves_no_job_that_seems_to_run(trial: Trial) -> None:
    with _control(trial) as control:
        supervisor = trial.start(command=_RUN)
        trial.processes(1)
        _kill(supervisor)
        trial.wait_for(lambda: not trial.leftovers(), "the driver to end itself")
        try:
            job = control.job("killed")
        except (DatabaseError, JobNotFound):
            return  # it ended before it had told anybody of itself
        assert (job.state, job.end_reason) == (JobState.FAILED, str(SupervisorLost())), trial.log(1).read_text()


def test_a_supervisor_that_is_killed_together_with_its_driver_leaves_a_dead_job(trial: Trial) -> None:
    with _control(trial) as control:
        supervisor = trial.start(command=_RUN)
        python, _ = trial.processes(1)
        trial.wait_for(lambda: _runs(control, 1), "the job to run")
        supervisor.send_signal(signal.SIGSTOP)  # it must not see its driver's end
        os.kill(python, signal.SIGKILL)
        _kill(supervisor)
        trial.wait_for(lambda: not control.job("killed").is_alive, "the lease to end")

        job = control.job("killed")
        assert (job.state, job.ended_at) == (JobState.RUNNING, None)
        assert job.dead_since is not None
    trial.wait_for(lambda: not trial.leftovers(), "every process of the trial to end")


def _control(trial: Trial) -> ControlClient:
    url = f"sqlite:///{trial.folder / 'control.db'}"
    trial.environment |= {
        "COORD_CONTROL": url,
        "COORD_CONTROL_HEARTBEAT_SECONDS": "0.5",
        "COORD_CONTROL_LEASE_SECONDS": "3",
    }
    return ControlClient(actor="ada", settings=ControlSettings.load(url))


def _runs(control: ControlClient, generation: int) -> bool:
    try:
        job: JobRecord = control.job("killed")
    except (DatabaseError, JobNotFound):  # the driver is about to make it
        return False
    return job.is_alive and job.state is JobState.RUNNING and job.generation == generation


def _kill(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.kill()
    supervisor.wait(SECONDS)
