"""How a driver ends when a signal or a command meets it in its last moments, or while it still starts queries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import coord_control as cc
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.driver_process import SUPERVISED_VARIABLE
from coord_control.errors import JobClosed, JobEndRequested
from coord_control.spark.job.control_plane import ControlPlane
from coord_control.spark.process import shutdown
from coord_control.storage.records import CommandRecord, CommandState, JobState
from tests.spark.jobs import MakeJob

pytestmark = pytest.mark.spark

_CHECKOUT = Path(__file__).resolve().parents[2]

_SCRIPT = """
    import sys, time
    from pathlib import Path
    from pyspark.sql import SparkSession
    import coord_control as cc
    from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
    from coord_control.spark.job.control_plane import ControlPlane

    folder, way = Path(sys.argv[1]), sys.argv[2]
    close = ControlPlane.close

    def close_late(plane, *arguments):
        print("closing", flush=True)
        while not (folder / "go").exists():
            time.sleep(0.01)
        close(plane, *arguments)

    if way in ("ending", "waiting"):
        ControlPlane.close = close_late

    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    )
    if way == "saving":
        begun = CheckpointStore.verify

        def verify_late(store):
            print("saving", flush=True)
            job._driver.checkpoints._closing.wait()
            begun(store)

        CheckpointStore.verify = verify_late

    with cc.Job("job", spark, root=str(folder / "jobs"), metrics="none") as job:
        rows = spark.readStream.format("rate").load()
        job.start("first", rows.writeStream.format("noop"))
        print("ready", flush=True)
        if way == "starting":
            job._life.wait_closed(60)
            job.start("second", rows.writeStream.format("noop"))
        elif way == "saving":
            job.trigger_savepoint().wait()
        elif way == "waiting":
            job.await_termination()
    print("over", flush=True)
"""


class EndingDriver:
    """A driver process of the script above, as a supervisor starts it, and a client of its control plane."""

    def __init__(self, folder: Path, way: str, *, is_plain: bool = False) -> None:
        script = folder / "script.py"
        script.write_text(textwrap.dedent(_SCRIPT))
        url = f"sqlite:///{folder / 'control.db'}"
        self._folder = folder
        self.client = ControlClient(settings=ControlSettings.load(url))
        environment = {**os.environ, "PYTHONPATH": str(_CHECKOUT), "COORD_CONTROL": url, SUPERVISED_VARIABLE: "one"}
        program = [str(script)] if is_plain else ["-m", "coord_control.spark.process.bootstrap", str(script)]
        with (folder / "stderr").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *program, str(folder), way],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        found = self.process.stdout.readline().strip()
        assert found == line, (found, (self._folder / "stderr").read_text()[-4000:])

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def let_it_end(self) -> tuple[int, str]:
        """Let the job's end go on; returns the exit code, and what the script has printed meanwhile."""
        assert self.process.stdout is not None
        with pytest.raises(subprocess.TimeoutExpired):
            self.process.wait(1.0)  # the signal has not ended it
        (self._folder / "go").touch()
        out = self.process.stdout.read()
        return self.process.wait(), out


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., EndingDriver]]:
    drivers: list[EndingDriver] = []

    def start(way: str, **options: bool) -> EndingDriver:
        drivers.append(EndingDriver(tmp_path, way, **options))
        return drivers[-1]

    yield start
    for driver in drivers:
        if driver.process.poll() is None:
            os.killpg(driver.process.pid, signal.SIGKILL)
        driver.process.communicate()
        driver.client.close()


# In every run: acceptance/test_coordctl_run_restarts.py, without Spark, and the end of a job by itself, below.
@pytest.mark.slow
def test_a_signal_in_the_last_moments_of_a_stop_by_command_changes_nothing(
    start: Callable[[str], EndingDriver],
) -> None:
    driver = start("waiting")
    driver.wait_for("ready")
    command = driver.client.stop("job")
    driver.wait_for("closing")
    driver.terminate()

    # Not 143: the supervisor would start again what was stopped for good.
    assert driver.let_it_end() == (0, "over\n")
    assert driver.client.command(command.id).state is CommandState.COMPLETED
    job = driver.client.job("job")
    assert (job.state, [query.state for query in job.queries]) == (JobState.ENDED, ["stopped"])


def test_the_first_interrupt_of_a_plain_program_waits_for_the_end_of_its_job(
    start: Callable[..., EndingDriver],
) -> None:
    """Bug: it cut the end off, so the job was shown as running, and the next driver waited for its lease."""
    driver = start("ending", is_plain=True)
    driver.wait_for("ready")
    driver.wait_for("closing")
    driver.process.send_signal(signal.SIGINT)

    assert driver.let_it_end() == (-signal.SIGINT, "")
    job = driver.client.job("job")
    assert (job.state, [query.state for query in job.queries]) == (JobState.ENDED, ["stopped"])


def test_the_second_interrupt_does_not_wait(start: Callable[..., EndingDriver]) -> None:
    driver = start("ending", is_plain=True)
    driver.wait_for("ready")
    driver.wait_for("closing")
    driver.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        driver.process.wait(1.0)
    driver.process.send_signal(signal.SIGINT)

    assert driver.process.wait() == -signal.SIGINT


@pytest.mark.parametrize("is_restart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_that_waits_for_a_savepoint_when_a_command_ends_its_job_has_not_failed(
    start: Callable[..., EndingDriver], *, is_restart: bool
) -> None:
    """Bug: it ended with 75, so that its supervisor started again what was stopped."""
    driver = start("saving")
    driver.wait_for("ready")
    driver.wait_for("saving")
    command = driver.client.restart("job") if is_restart else driver.client.stop("job")

    assert driver.process.wait() == (76 if is_restart else 0)
    job = driver.client.job("job")
    assert (job.state, job.is_restarting) == (JobState.ENDED, is_restart)
    if not is_restart:
        assert driver.client.command(command.id).state is CommandState.COMPLETED


def test_a_signal_in_the_last_moments_of_a_job_that_ends_by_itself_lets_it_write_its_last_records(
    start: Callable[[str], EndingDriver],
) -> None:
    """Bug: it raised SystemExit in the midst of the job's end."""
    driver = start("ending")
    driver.wait_for("ready")
    driver.wait_for("closing")
    driver.terminate()

    assert driver.let_it_end() == (143, "over\n")
    job = driver.client.job("job")
    assert (job.state, job.end_reason) == (JobState.ENDED, "stopped")


def test_a_job_is_registered_for_signals_until_its_end_is_written(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[bool] = []
    close = ControlPlane.close

    def watched(plane: ControlPlane, *arguments: Any) -> None:
        close(plane, *arguments)
        seen.append(shutdown.has_registered())

    monkeypatch.setattr(ControlPlane, "close", watched)
    with make_job(control=f"sqlite:///{tmp_path / 'control.db'}"):
        assert shutdown.has_registered()

    assert seen == [True]
    assert not shutdown.has_registered()


def test_a_program_that_uses_a_job_after_a_command_has_ended_it_has_not_failed(make_job: MakeJob) -> None:
    """The same of another program, which ends its job itself, is an error."""

    def use(job: cc.Job, stop: Callable[[], None]) -> None:
        with job:
            stop()
            job.status()

    stopped, ended = make_job(), make_job("another")
    with pytest.raises(JobEndRequested) as requested:
        use(stopped, stopped._port.stop)
    assert requested.value.code == 0
    assert stopped._life.program_error is None

    with pytest.raises(JobClosed) as failed:
        use(ended, ended.stop)
    assert not isinstance(failed.value, SystemExit)
    assert ended._life.program_error is failed.value


def _terminate(driver: EndingDriver) -> None:
    driver.terminate()


def _stop(driver: EndingDriver) -> CommandRecord:
    return driver.client.stop("job")


def _restart(driver: EndingDriver) -> CommandRecord:
    return driver.client.restart("job")


# The other ends are seen above: a stop that meets a savepoint, a signal in the last moments.
@pytest.mark.parametrize(
    ("request_end", "code"),
    [
        pytest.param(_terminate, 143, marks=pytest.mark.slow),
        pytest.param(_stop, 0, marks=pytest.mark.slow),
        (_restart, 76),
    ],
    ids=["signal", "stop", "restart"],
)
def test_a_program_that_still_starts_queries_when_its_end_was_requested_ends_in_order(
    start: Callable[[str], EndingDriver], request_end: Callable[[EndingDriver], CommandRecord | None], code: int
) -> None:
    """Bug: it met JobClosed, and ended with 78: a supervisor gives up then, also when a restart was requested."""
    driver = start("starting")
    driver.wait_for("ready")
    command = request_end(driver)

    assert driver.process.wait() == code
    job = driver.client.job("job")
    assert job.state is JobState.ENDED, job.end_reason
    assert job.is_restarting is (code == 76)
    if command is not None and code == 0:
        assert driver.client.command(command.id).state is CommandState.COMPLETED
