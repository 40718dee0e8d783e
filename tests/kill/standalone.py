"""A standalone cluster of Spark on the loopback address: a master and workers, each a process of its own.

Threads: the test's own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pyspark

from tests import jvm
from tests.patience import SECONDS

__all__ = ["MEGABYTES", "Standalone", "Worker"]

#: Of an executor.
MEGABYTES: Final = 600
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = "Successfully registered with master"

Wait = Callable[[Callable[[], bool], str], None]


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, with one core for one executor."""

    process: subprocess.Popen[bytes]
    log: Path

    def executors(self) -> list[psutil.Process]:
        """The JVMs in which its tasks run."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process for process in below if _is_executor(process)]

    def kill(self) -> None:
        """``kill -9`` of the worker and of everything below it, as when its machine is lost."""
        doomed = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for process in doomed:
            _kill(process)
        self.process.wait(SECONDS)


class Standalone:
    """The cluster.

    Args:
        folder: for its logs, and what its executors leave.
        environment: of all its processes; whoever gives it finds and ends them by it.
        wait: polls until a condition is true, and fails when it does not come true.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], wait: Wait) -> None:
        folder.mkdir()
        self._folder = folder
        self._wait = wait
        self._environment = {
            **os.environ,
            **environment,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": jvm.options(),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }
        self.workers: list[Worker] = []
        log = folder / "master.log"
        self._master = self._start(log, "master.Master")
        wait(lambda: _MASTER.search(_text(log)) is not None, "Spark's master")
        found = _MASTER.search(_text(log))
        assert found is not None
        self.url: Final = found[1]

    @property
    def home(self) -> str:
        """Spark's home, for a driver of this cluster."""
        return self._environment["SPARK_HOME"]

    def add_worker(self) -> Worker:
        """Start one more worker, at an address of its own: Spark takes it for another machine."""
        number = len(self.workers) + 1
        log = self._folder / f"worker-{number}.log"
        arguments = ["-c", "1", "-m", f"{MEGABYTES}m", "--work-dir", str(self._folder / f"work-{number}"), self.url]
        worker = Worker(self._start(log, "worker.Worker", *arguments, host=f"127.0.0.{number}"), log)
        self.workers.append(worker)
        self._wait(lambda: _REGISTERED in _text(log), f"worker {number} to be registered")
        return worker

    def executors(self) -> set[int]:
        """The process ids of all executors."""
        return {executor.pid for worker in self.workers for executor in worker.executors()}

    def close(self) -> None:
        """Kill all of it, with the executors: their end in good order would take longer, and shows nothing."""
        for process in [*(worker.process for worker in self.workers), self._master]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(SECONDS)

    def _start(self, log: Path, name: str, *arguments: str, host: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        command = [f"{self.home}/bin/spark-class", f"org.apache.spark.deploy.{name}"]
        command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
        with log.open("wb") as file:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**self._environment, "SPARK_LOCAL_IP": host},
                cwd=self._folder,
                start_new_session=True,  # as on machines of their own: nothing reaches them but by their ids
            )


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _text(log: Path) -> str:
    return log.read_text(errors="replace")
