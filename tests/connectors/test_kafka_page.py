"""The program and the commands of docs/kafka.md, against a real broker."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from scripts.connectors import jars
from tests.connectors.test_kafka import values_in
from tests.docs_kit import blocks
from tests.kafka_kit import Broker, KafkaClient
from tests.patience import SECONDS, eventually
from tests.places import CHECKOUT

# In every run: test_kafka.py restores with Kafka, acceptance/test_live_pages.py types the commands, and
# unit/test_docs_commands.py parses those of this page.
pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE: Final = CHECKOUT / "docs" / "kafka.md"


class Shell:
    """Runs commands of the page in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYSPARK_PYTHON": sys.executable}
        self._environment["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, jars('kafka')))} pyspark-shell"
        self._environment["COORD_ROOT"] = str(folder / "jobs")
        self._environment["COORD_CONTROL"] = f"sqlite:///{folder / 'control.db'}"
        self.driver: subprocess.Popen[bytes] | None = None

    def __call__(self, line: str) -> None:
        words = shlex.split(line)
        if words[0] == "export":
            return  # the fixture has set it, for here
        assert words[0] == ".venv/bin/coordctl", line
        command = [sys.executable, "-m", "coord_control.cli", *words[1:]]
        if words[1] == "run":
            with (self._folder / "log").open("ab") as log:
                self.driver = subprocess.Popen(
                    command, cwd=self._folder, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            return
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}\n{self.log()}"
        if words[1] == "stop":
            assert self.driver is not None
            self.driver.wait(SECONDS)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    if shell.driver is not None:
        shell.driver.terminate()
        shell.driver.wait(SECONDS)


def test_the_program_and_the_commands_of_the_page_work(
    spark: SparkSession, broker: Broker, kafka: KafkaClient, shell: Shell, tmp_path: Path
) -> None:
    program, start, restore = blocks(PAGE)
    text = program.text.replace("localhost:9092", broker.bootstrap).replace("/tmp/orders/jobs", str(tmp_path / "jobs"))
    (tmp_path / "orders.py").write_text(text)
    kafka.create("orders", 2)
    kafka.create("checked", 1)

    def checked() -> list[float]:
        return [row["amount"] for row in values_in(spark, broker.bootstrap, "checked")]

    def order(*amounts: float) -> None:
        kafka.send("orders", [{"key": f"c{amount}", "customer": f"c{amount}", "amount": amount} for amount in amounts])

    order(50, 150)
    for line in start.text.splitlines():
        shell(line)
    eventually(lambda: checked() == [150], shell.log)
    *until, check, back, again = restore.text.splitlines()
    for line in until:
        shell(line)
    order(250)
    for line in (check, back, again):
        shell(line)
    eventually(lambda: sorted(checked()) == [150, 250], shell.log)
