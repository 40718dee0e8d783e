"""A topic into a Delta table by a plain query, under `kill -9` of driver, JVM and broker (PySpark 4.2)."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.compat.kafka_delta_driver import QUERY, TOPIC
from tests.compat.table_drivers import Drivers
from tests.kafka_kit import Broker, KafkaClient
from tests.patience import SECONDS, eventually

pytestmark = [pytest.mark.spark, pytest.mark.kill]

_PAUSE_SECONDS = 0.1


class Sender:
    """Sends numbered rows all the time, each once, also while the broker is away."""

    def __init__(self, client: KafkaClient) -> None:
        self.sent = 0
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self._ended.wait(_PAUSE_SECONDS):
            self._client.send(TOPIC, [{"n": n, "key": n % 7} for n in range(self.sent, self.sent + 5)])
            self.sent += 5

    def end(self) -> int:
        """Return how many rows there are."""
        self._ended.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        return self.sent


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    yield broker
    broker.kill()


@pytest.fixture
def drivers(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    monkeypatch.setenv("COORD_KAFKA", broker.bootstrap)
    drivers = Drivers("delta", tmp_path, Path(__file__).with_name("kafka_delta_driver.py"))
    yield drivers
    drivers.clean_up()


# Without Delta, tests/connectors/test_kafka_kill.py shows the same in every run.
@pytest.mark.slow
def test_each_record_is_in_the_table_once(spark: SparkSession, broker: Broker, drivers: Drivers) -> None:
    client = KafkaClient(spark, broker.bootstrap)
    client.create(TOPIC, 3)
    sender = Sender(client)

    first = drivers.start()
    _await_epochs(drivers, 3)
    broker.kill()
    broker.start()
    _await_epochs(drivers, 2)
    drivers.kill(first)

    second = drivers.start()
    _await_epochs(drivers, 2)
    [jvm] = _jvms(second.pid)
    jvm.kill()
    assert second.wait(SECONDS) != 0

    third = drivers.start()
    _await_epochs(drivers, 2)
    jvms = _jvms(third.pid)
    os.kill(third.pid, signal.SIGKILL)  # its JVM lives on for a moment
    third.wait(SECONDS)

    fourth = drivers.start()
    _await_epochs(drivers, 2)
    broker.kill()
    drivers.kill(fourth)
    broker.start()

    count = sender.end()
    assert drivers.start("--finish").wait(SECONDS) == 0, drivers.log()
    eventually(lambda: not any(each.is_running() for each in jvms), drivers.log)
    assert json.loads((drivers.folder / "result.json").read_text()) == list(range(count))
    client.close()


def _await_epochs(drivers: Drivers, more: int) -> None:
    """Wait until so many epochs more are committed."""
    commits = drivers.folder / "jobs" / "kafka" / "queries" / QUERY / "lineage-000001" / "spark" / "commits"

    def newest() -> int:
        return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)

    begin = newest()

    def are_there() -> bool:
        assert drivers.are_running(), drivers.log()
        return newest() >= begin + more

    eventually(are_there, drivers.log, pause=0.05)


def _jvms(driver: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(driver).children(recursive=True) if each.name() == "java"]
