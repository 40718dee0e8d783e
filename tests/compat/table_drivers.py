"""Drivers of jobs that write to tables, in processes that a test can kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.patience import SECONDS, eventually
from tests.spark.jobs import rows
from tests.spark_session import session_jars, spark_environment, table_settings

__all__ = ["Drivers"]


class Drivers:
    """The drivers of one job, which are killed.

    Args:
        kind: the format of its table.
        folder: of the job, with its input in ``in``.
        script: gets the folder as its first argument, and finds the settings of the session there.
    """

    def __init__(self, kind: str, folder: Path, script: Path) -> None:
        self.folder = folder
        self._script = script
        settings = {"spark.jars": session_jars(), **table_settings(folder)}
        settings["spark.sql.warehouse.dir"] = str(folder / "warehouse")
        settings["spark.driver.extraJavaOptions"] = f"-Dderby.system.home={folder}"
        (folder / "settings.json").write_text(json.dumps({"kind": kind, "settings": settings}))
        self._running: list[subprocess.Popen[bytes]] = []
        self._added = 0
        (folder / "in").mkdir()

    def start(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start one with more options and variables of its environment."""
        environment = {**os.environ, **spark_environment(), **environment}
        with (self.folder / f"driver-{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(self._script), str(self.folder), *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End the driver and its JVM at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS)

    def clean_up(self) -> None:
        for process in self._running:
            self.kill(process)

    def add(self, count: int) -> None:
        """Give the job so many epochs more."""
        for _ in range(count):
            hidden = self.folder / "in" / f".{self._added:05}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows(self._added)))
            # Spark orders files by modification time.
            moment = time.time() - 86_400 + self._added
            os.utime(hidden, (moment, moment))
            hidden.rename(self.folder / "in" / f"{self._added:05}.json")
            self._added += 1

    def are_running(self) -> bool:
        """Whether one of them has not ended."""
        return any(process.poll() is None for process in self._running)

    def wait_for(self, files: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until the function has merged that many files; it may be killed while it commits the last one."""

        def is_there() -> bool:
            assert process.poll() is None, self.log()
            return len(list(self.folder.glob("merged-*"))) >= files

        eventually(is_there, self.log, pause=0.1)

    def log(self) -> str:
        """What all drivers have said."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("driver-*.log")))
