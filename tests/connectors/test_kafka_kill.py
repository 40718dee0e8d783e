"""`kill -9` of a driver between two topics, of its JVM, and of the broker: nothing is lost or seen twice.

The rules are those of `tests/kill`. Spark promises of its Kafka sink that each record is written at least once: records
that were written twice must be equal, and without the copies all is there once.
"""

from __future__ import annotations

import bisect
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from coord_control.durable.spark_layout.query_logs import parse_offsets
from scripts.connectors import jars
from tests.connectors.kafka_tables import rows_of
from tests.kafka_kit import Broker, KafkaClient
from tests.kill.audit import audit, check_output, recovered
from tests.kill.life import Feeder, Moment, Trial, Victim
from tests.patience import SECONDS

pytestmark = [pytest.mark.kill, pytest.mark.spark]

_QUERIES: Final = ("ledger", "table")
_OUTAGE_SECONDS: Final = 2.0


class KafkaFeeder(Feeder):
    """Sends its rows to a topic."""

    def __init__(self, trial: Trial, client: KafkaClient) -> None:
        super().__init__(trial.folder / "in", trial.seed, self._read)
        self._trial = trial
        self._client = client
        self._ends: list[int] = []  # rows up to the end of each "file"

    def write(self, rows: Sequence[Mapping[str, int]]) -> None:
        self._client.send("in", rows)
        self._ends.append(len(self.keys))

    def _read(self) -> int:
        rows = min(_rows_read(self._trial.query(name) / "spark") for name in _QUERIES)
        return bisect.bisect_right(self._ends, rows)


def _rows_read(checkpoint: Path) -> int:
    """How many records a query has committed."""
    committed = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit()]
    if not committed:
        return 0
    path = checkpoint / "offsets" / str(max(committed))
    offsets = parse_offsets(str(path), path.read_bytes()).by_source["0"]
    return sum(offset for partitions in json.loads(offsets or "{}").values() for offset in partitions.values())


@pytest.fixture
def trial(tmp_path: Path, broker: Broker, kafka: KafkaClient) -> Iterator[Trial]:
    kafka.create("in", 3)
    kafka.create("out", 2)
    trial = Trial(tmp_path, seed=1)
    trial.script = Path(__file__).with_name("kafka_driver.py")
    trial.environment = {
        "COORD_KAFKA": broker.bootstrap,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--jars {','.join(map(str, jars('kafka')))} pyspark-shell",
    }
    trial.feeder = KafkaFeeder(trial, kafka)
    trial.feeder.start()
    yield trial
    trial.feeder.stop()
    trial.clean_up()


def test_nothing_is_lost_or_seen_twice_when_driver_and_broker_are_killed(trial: Trial, broker: Broker) -> None:
    _run(trial, broker, more=())


@pytest.mark.slow
def test_nothing_is_lost_or_seen_twice_when_more_drivers_are_killed(trial: Trial, broker: Broker) -> None:
    more = ((Moment.ACKED, Victim.GROUP), (Moment.BEGUN, Victim.PYTHON), (Moment.ACKED, Victim.PYTHON))
    _run(trial, broker, more)


def _run(trial: Trial, broker: Broker, more: Sequence[tuple[Moment, Victim]]) -> None:
    first = trial.start()
    trial.wait_for_epochs(1)
    _outage(broker)
    trial.wait_for_epochs(1)
    trial.wait_for_moment(Moment.ACKED, trial.lives)
    broker.kill()
    _kill(trial, first, Victim.JVM)
    broker.start()

    for moment, victim in more:
        next_one = trial.start()
        trial.wait_for_epochs(1)
        trial.wait_for_moment(moment, trial.lives)
        _kill(trial, next_one, victim)

    trial.feeder.stop()
    assert trial.start("--finish").wait(SECONDS) == 0, trial.log(trial.lives).read_text()[-4000:]
    trial.await_afterlives()
    _check_end(trial)


def _outage(broker: Broker) -> None:
    broker.kill()
    time.sleep(_OUTAGE_SECONDS)
    broker.start()


def _kill(trial: Trial, driver: subprocess.Popen[bytes], victim: Victim) -> None:
    python, jvm = trial.processes(trial.lives)
    trial.kill(victim, driver, python, jvm)
    audit(trial)
    assert trial.violations() == []


def _check_end(trial: Trial) -> None:
    assert trial.violations() == []
    balance, keys = audit(trial), trial.feeder.keys
    copies = [json.dumps(row, sort_keys=True) for row in trial.rows(trial.folder)]
    check_output([json.loads(row) for row in sorted(set(copies))], keys, balance)
    assert sorted(row["n"] for row in rows_of(trial.folder / "table")) == list(range(len(keys)))
    assert recovered(trial)[1].replay is None, "everything that was planned is committed"
    assert balance.orders > 0
    assert balance.reports > 0
    print(
        f"{trial.lives} drivers, {balance.committed + 1} epochs, {len(keys)} rows, {len(copies)} records written, "
        f"{balance.orders} events down, {balance.reports} up"
    )
