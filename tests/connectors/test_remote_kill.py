"""Jobs with their root on S3 and on HDFS: `kill -9`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord_control.exit_codes import ExitCode
from scripts.connectors import jars
from tests.patience import SECONDS, eventually
from tests.spark.jobs import rows
from tests.spark_session import spark_environment

pytestmark = [pytest.mark.kill, pytest.mark.spark]

_DRIVER = Path(__file__).with_name("remote_driver.py")


class Drivers:
    """The drivers of one job."""

    def __init__(self, folder: Path, root: str, settings: dict[str, str]) -> None:
        self.folder, self.root = folder, root
        self._confs = " ".join(f"--conf spark.hadoop.{name}={value}" for name, value in settings.items())
        self._running: list[subprocess.Popen[bytes]] = []
        self._added = 0
        (folder / "in").mkdir()
        (folder / "out").mkdir()

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        libraries = f"--jars {','.join(map(str, jars('s3a')))}" if self.root.startswith("s3a:") else ""
        arguments = f"{libraries} {self._confs} pyspark-shell"
        environment = {**os.environ, **spark_environment(), "PYSPARK_SUBMIT_ARGS": arguments}
        command = [sys.executable, str(_DRIVER), self.root, str(self.folder), *options]
        with (self.folder / f"driver-{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
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

    def written(self) -> list[int]:
        """The numbers of all rows that the sink has."""
        epochs = (self.folder / "out").glob("[0-9]*.json")
        return sorted(value for path in epochs for value in json.loads(path.read_text()))

    def log(self) -> str:
        """What all drivers have said."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("driver-*.log")))

    def wait_for(self, files: int) -> None:
        """Wait until the rows of so many files are written. After a crash Spark may read two files in one epoch."""

        def are_there() -> bool:
            assert any(process.poll() is None for process in self._running), self.log()
            return len(self.written()) >= 8 * files

        eventually(are_there, self.log, pause=0.3)

    def await_end_of_one(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Wait until one of the drivers has ended."""
        eventually(lambda: any(process.poll() is not None for process in processes), self.log, pause=0.3)

    def finish(self) -> None:
        """Let one more driver process what there is, and check that each row was written once."""
        process = self.start("--finish")
        assert process.wait(SECONDS) == 0, self.log()
        assert self.written() == list(range(8 * self._added))


# On HDFS tests/connectors/test_hdfs.py goes back and forth in every run, and Spark's own logs are safer there.
@pytest.fixture(params=["s3a", pytest.param("hdfs", marks=pytest.mark.slow)])
def drivers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Drivers]:
    if request.param == "s3a":
        s3 = request.getfixturevalue("s3")
        root, settings = f"s3a://{s3.bucket}/{tmp_path.name}", s3.settings
    else:
        root, settings = f"{request.getfixturevalue('hdfs').address}/{tmp_path.name}", {}
    drivers = Drivers(tmp_path, root, settings)
    yield drivers
    drivers.clean_up()


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_written_twice_when_drivers_are_killed(drivers: Drivers, kills: int) -> None:
    for number in range(kills):
        drivers.add(2)
        driver = drivers.start()
        drivers.wait_for(2 * number + 2)
        drivers.kill(driver)
    drivers.add(1)
    drivers.finish()


# With real claims but without Spark: test_s3a.py and test_hdfs.py.
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [100])
def test_of_two_drivers_that_start_at_once_one_owns_the_job(drivers: Drivers, rounds: int) -> None:
    for number in range(rounds):
        drivers.add(1)
        both = [drivers.start(), drivers.start()]
        drivers.wait_for(number + 1)
        drivers.await_end_of_one(both)
        [loser] = [one.returncode for one in both if one.poll() is not None]
        assert loser == ExitCode.FENCED, drivers.log()
        for one in both:
            drivers.kill(one)
    drivers.add(1)
    drivers.finish()
