"""The job on a real cluster: a standalone master, two workers, executors, and a driver, each a process of its own.

While it works, and takes checkpoints and savepoints all the time: executors are killed, a worker is lost and another
one comes, the driver is killed and the next one takes over, and the connections between the driver's endpoint and one
executor are cut, in three ways; Spark's own connections stay. Spark starts second attempts beside slow ones. TLS is on,
without being asked for. In the end every row and every event was there exactly once, gateways are open, and every
savepoint that says so is complete.

A machine is cut off from everything too: all of its processes are stopped (SIGSTOP) during an epoch and a savepoint,
when one of its attempts lacks nothing but its acknowledgement. Spark misses the heartbeats, gives the executor up, and
runs its tasks elsewhere. When others have committed the epoch the machine goes on, as if the network were back: the
Python workers first, so that the late acknowledgement comes, with its state and its events, and is refused; then the
executor, which hears that Spark does not know it any more, and ends by itself; the worker last, which only then
is asked to end an executor that has gone.

The long version also stops an executor alone, whose worker goes on. There Spark's order reaches the worker at once: a
SIGTERM, which waits until the executor goes on, and after 10 s a SIGKILL, which does not. So that JVM never runs again,
or only to end; its Python workers do for moments, and whether one of them comes to its acknowledgement is chance.

The short version runs with all tests: one driver, one machine that is cut off, one kind of cut connections, one worker
that is lost with its executor. The long one does all of it several times (`make kill-long`), and kills executors alone;
COORD_KILL_SEED is the seed.
"""

from __future__ import annotations

import enum
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from coord_control.ids import CheckpointId
from tests.kill.audit import audit, check_counts, check_output, recovered
from tests.kill.cut import Cut, Network
from tests.kill.freezing import Freezer, Stop
from tests.kill.life import (
    Trial,
    Victim,
)
from tests.kill.saved import Saved, check_nothing_is_left, check_saved
from tests.kill.standalone import Standalone, Worker
from tests.patience import SECONDS

pytestmark = [pytest.mark.kill, pytest.mark.spark]

_WORKERS: Final = 2
_SILENT_SECONDS: Final = 3.0
_GIVEN_UP: Final = "Executor heartbeat timed out"


class Frozen(enum.Enum):
    """What stands still."""

    MACHINE = "an executor and its worker: it cannot be told to end"
    EXECUTOR = "an executor: its worker kills it"


class ClusterRig:
    """A trial on a cluster: its driver, its workers, its network, and what can befall them."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.trial = trial
        port = _free_port()
        self.network = Network(port)
        self.freezer = Freezer()
        self.stop = Stop(trial.folder)
        self.cluster = Standalone(folder, {**trial.marked(), "PYSPARK_PYTHON": sys.executable}, trial.wait_for)
        trial.environment = {
            "COORD_KILL_CLUSTER": f"{self.cluster.url} {port} {self.network.port}",
            "SPARK_HOME": self.cluster.home,
            "PYSPARK_PYTHON": sys.executable,
        }
        for _ in range(_WORKERS):
            self.cluster.add_worker()
        self.driver: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start a driver that takes checkpoints and savepoints; it has executors and gets on."""
        self.driver = self.trial.start("--saving")
        self.get_on()

    def get_on(self) -> None:
        """The job commits epochs, and a savepoint becomes complete, on as many executors as there are workers."""
        trial, before = self.trial, _newest_savepoint(self.trial)
        trial.wait_for(lambda: len(self.network.executors()) == _WORKERS, f"{_WORKERS} executors at work")
        trial.wait_for_epochs(1)
        trial.wait_for(lambda: _newest_savepoint(trial) > before, f"a savepoint after {before}")

    def kill_executor(self) -> None:
        """``kill -9`` of an executor; its worker starts another one."""
        _, executor = self._executor()
        os.kill(executor, signal.SIGKILL)
        self.trial.wait_for(lambda: executor not in self.network.executors(), "the executor's connections to end")
        self.get_on()

    def lose_worker(self) -> None:
        """``kill -9`` of a worker and its executor; another worker comes in its place."""
        worker, _ = self._executor()
        worker.kill()
        self.cluster.add_worker()
        self.get_on()

    def cut_network(self, how: Cut) -> None:
        """Cut one executor off from the driver for a while."""
        touched = self.network.touched
        _, executor = self._executor()
        self.network.cut(executor, how)
        self.trial.wait_for(lambda: self.network.touched > touched, "a connection that is cut")
        time.sleep(_SILENT_SECONDS)
        self.network.heal()
        self.get_on()

    def freeze(self, what: Frozen) -> None:
        """Let an executor stand still until Spark has given it up, and go on when others have done its work."""
        trial, stop = self.trial, self.stop
        attempt = self._stopped_attempt()
        executor = next(
            above.pid for above in psutil.Process(attempt).parents() if above.pid in self.cluster.executors()
        )
        worker = self._worker_of(executor).process.pid
        given_up = self._given_up()
        self.freezer.freeze(worker if what is Frozen.MACHINE else executor)
        savepoint = stop.savepoint()
        stop.pass_others()
        trial.wait_for(lambda: self._given_up() > given_up, "Spark to give an executor up")
        trial.wait_for_epochs(2)  # the second one begins when the job knows that the first one is over
        trial.wait_for(lambda: stop.savepoint() != savepoint, f"savepoint {savepoint} to be over, well or not")
        stop.let_go()
        self.freezer.wake_python()
        if what is Frozen.MACHINE:
            trial.wait_for(lambda: stop.answer() is not None, "the late acknowledgement")
            assert str(stop.answer()).startswith("AttemptRefused")
        before = _newest_savepoint(trial)
        self.freezer.wake(executor)
        trial.wait_for_epochs(1)
        trial.wait_for(lambda: _newest_savepoint(trial) > before, f"a savepoint after {before}")
        self.freezer.wake_all()
        trial.wait_for(lambda: executor not in self.cluster.executors(), "the executor to be ended")
        trial.wait_for(lambda: executor not in self.network.executors(), "the executor's connections to end")
        stop.forget()

    def _stopped_attempt(self) -> int:
        """The process id of an attempt that stands where only its acknowledgement lacks; a savepoint is under way."""
        trial, stop = self.trial, self.stop
        stop.save()
        trial.wait_for(self._saves, "a savepoint")
        stop.ask()
        trial.wait_for(lambda: stop.stopped() is not None, "an attempt to stop")
        trial.wait_for(self._saves, "a savepoint beside it")
        attempt = stop.stopped()
        assert attempt is not None
        return attempt

    def _saves(self) -> bool:
        """Whether a savepoint is under way."""
        number = self.stop.savepoint()
        return number is not None and not (self.trial.job / "checkpoints" / str(number) / "_completed").exists()

    def _given_up(self) -> int:
        """How many executors Spark has lost because it heard nothing of them."""
        return self.trial.log(self.trial.lives).read_text(errors="replace").count(_GIVEN_UP)

    def kill_driver(self) -> None:
        """``kill -9`` of the driver's Python; its JVM ends by itself."""
        assert self.driver is not None
        python, jvm = self.trial.processes(self.trial.lives)
        self.trial.kill(Victim.PYTHON, self.driver, python, jvm)
        self.trial.await_afterlives()

    def _executor(self) -> tuple[Worker, int]:
        """Choose an executor that is at work, and say whose it is; one that was cut off may have to connect again."""
        at_work: list[tuple[Worker, int]] = []

        def are_at_work() -> bool:
            connected = self.network.executors()
            at_work.extend(
                (worker, process.pid)
                for worker in self.cluster.workers
                for process in worker.executors()
                if process.pid in connected
            )
            return bool(at_work)

        self.trial.wait_for(are_at_work, "an executor at work")
        return self.trial.random.choice(at_work)

    def _worker_of(self, executor: int) -> Worker:
        return next(
            worker for worker in self.cluster.workers if executor in {process.pid for process in worker.executors()}
        )


@pytest.fixture
def rig(trial: Trial, tmp_path: Path) -> Iterator[ClusterRig]:
    rig = ClusterRig(trial, tmp_path / "cluster")
    yield rig
    rig.freezer.wake_all()
    rig.network.close()
    rig.cluster.close()


# tests/spark/test_job_cluster.py kills executors in every run; here whole workers and connections are lost.
@pytest.mark.slow
def test_a_cluster_that_loses_executors_workers_and_connections_loses_no_row_and_no_event(rig: ClusterRig) -> None:
    _run(rig, rounds=1, is_long=False)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_cluster_that_loses_much_again_and_again_loses_no_row_and_no_event(rig: ClusterRig) -> None:
    _run(rig, rounds=4, is_long=True)


def _run(rig: ClusterRig, rounds: int, *, is_long: bool) -> None:
    trial = rig.trial
    known: dict[CheckpointId, Saved] = {}
    began = time.monotonic()

    def passed(what: str) -> None:
        print(f"{time.monotonic() - began:.0f} s: {what}", flush=True)

    for number in range(rounds):
        rig.begin()
        passed(f"driver {number + 1} gets on")
        what = list(Frozen)[number % len(Frozen)]
        rig.freeze(what)
        passed(f"given up, and came back: {what.name}")
        if is_long:
            rig.kill_executor()
            passed("an executor was killed")
        for how in Cut if is_long else [Cut.LOST]:
            rig.cut_network(how)
            passed(f"an executor was cut off: {how.name}")
        rig.lose_worker()
        passed("a worker was lost, and replaced")
        trial.wait_for(lambda: bool(_second_attempts(trial)), "a second attempt next to a slow one")
        rig.kill_driver()
        audit(trial)
        check_saved(trial, known)
        passed("the driver was killed")
    trial.feeder.stop()
    _end(trial)
    passed("the last driver has taken over, and the job has ended")
    _check_end(rig, known, drivers=rounds + 1)


def _end(trial: Trial) -> None:
    """The last driver processes what there is, and saves nothing."""
    assert trial.start("--finish").wait(SECONDS) == 0, trial.log(trial.lives).read_text()[-4000:]
    trial.await_afterlives()


def _check_end(rig: ClusterRig, known: dict[CheckpointId, Saved], drivers: int) -> None:
    trial = rig.trial
    assert trial.violations() == []
    assert trial.generations()[-1] == drivers
    check_nothing_is_left(trial)
    check_saved(trial, known)
    balance = audit(trial)
    assert recovered(trial)[1].replay is None, "everything that was planned is committed"
    check_output(trial.rows(trial.story), trial.feeder.keys, balance)
    check_counts(trial, trial.feeder.keys)
    assert balance.orders > 0
    assert balance.reports > 0
    print(
        f"{len(trial.feeder.keys)} rows in {balance.committed + 1} epochs, {balance.orders} events down, "
        f"{balance.reports} up, {len(known)} checkpoints, {len(_second_attempts(trial))} second attempts, "
        f"{trial.lives} drivers"
    )


def _second_attempts(trial: Trial) -> list[Path]:
    return list((trial.folder / "slow").glob("*.second"))


def _newest_savepoint(trial: Trial) -> int:
    noted = trial.job.glob("checkpoints/*/_completed")
    return max((int(path.parent.name) for path in noted), default=0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
