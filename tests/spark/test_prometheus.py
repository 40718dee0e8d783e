"""A real Prometheus scrapes a real job, its exporter and a driver that is killed: panels have data, and alerts fire.

One history is enough for all queries: each is asked for every second of it, because no moment has a blocked event, a
failed checkpoint, a recovery and a dead driver at once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import coord_control as cc
from tests.deploy_kit import DEPLOY
from tests.kill import agent_process
from tests.kill.forked import Forked
from tests.patience import eventually
from tests.prometheus_kit import Prometheus, await_data, draw, impatient_rules, prometheus
from tests.spark.conftest import MakeStream
from tests.spark.counting import Counting
from tests.spark.jobs import (
    SCHEMA,
    MakeJob,
    Number,
    Once,
    apply,
    followed,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream
from tests.spark.test_checkpoint_failures import Slow, reason
from tests.spark.test_metrics import held
from tests.spark_session import CHECKOUT

JOB: Final = "job"
KILLED: Final = "flights"  #: of tests.kill.agent_process
HELD: Final = 2  #: the epoch that is kept open


def config(folder: Path, *targets: str) -> dict[str, Any]:
    """The settings of the compose file, for here."""
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    read["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    read["rule_files"] = impatient_rules(folder)
    for scraped, target in zip(read["scrape_configs"], targets, strict=True):
        scraped["static_configs"] = [{"targets": [target]}]
    return read


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A control database whose drivers write often."""
    monkeypatch.setenv("COORD_CONTROL_HEARTBEAT_SECONDS", "0.5")
    return f"sqlite:///{tmp_path / 'control.db'}"


@pytest.fixture
def processes() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def exporter(processes: contextlib.ExitStack, database: str) -> str:
    """Start it; where it listens."""
    command = ("coord_control.cli", "exporter", "--listen", "127.0.0.1:0", "--cache", "500ms")
    process = processes.enter_context(
        subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            env={**os.environ, "COORD_CONTROL": database},
        )
    )
    processes.callback(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().split()[-1].removeprefix("http://").removesuffix("/metrics")


def test_every_panel_and_every_alert_has_data_and_what_is_provoked_fires(
    make_job: MakeJob,
    spark: SparkSession,
    file_stream: MakeStream,
    database: str,
    tmp_path: Path,
    processes: contextlib.ExitStack,
) -> None:
    job = make_job(JOB, metrics="127.0.0.1:0", control=database, snapshot_timeout_seconds=3.0)
    assert job.metrics_address is not None
    settings = config(tmp_path, job.metrics_address, exporter(processes, database))
    with prometheus(tmp_path / "prometheus", settings) as server, cc.ControlClient(database) as client:
        kill_a_driver(server, tmp_path)
        counting = Counting(spark, tmp_path / "count")  # a source that reports what waits in it
        counting.have(1000)
        live(job, client, server, file_stream(SCHEMA), counting, tmp_path)
        eventually(lambda: KILLED in server.jobs_with("CoordControlDriverDead"))

        await_data(server, JOB)
        assert not server.ever("coord_control_blocked_events > 1000"), "a query without data is seen as one"

        assert "no data" not in draw(server, "job.json", JOB, 50)  # its first two rows

        # What fires at the end is what was provoked.
        firing = server.firing()
        assert firing.keys() >= {"CoordControlDriverDead", "CoordControlCheckpointFailed", "CoordControlCheckpointOld"}
        words = " ".join(
            text for alerts in firing.values() for alert in alerts for text in alert["annotations"].values()
        )
        assert f"A checkpoint of {JOB} has failed: coordinator_timeout" in words
        assert "error expanding template" not in words


def descriptions(server: Prometheus, alert: str) -> str:
    return " ".join(each["annotations"]["description"] for each in server.firing().get(alert, ()))


def kill_a_driver(server: Prometheus, tmp_path: Path) -> None:
    driver = Forked(agent_process.main, str(tmp_path / "jobs"), str(tmp_path / "control.db"), None, 0.0, False)
    alive = f'coord_control_fleet_job_alive{{job_name="{KILLED}"}} == 1'
    server.until(alive)
    driver.kill()


def live(
    job: cc.Job, client: cc.ControlClient, server: Prometheus, source: FileStream, counting: Counting, tmp_path: Path
) -> None:
    """A short life with a recovery, blocked events, a savepoint, and a checkpoint that fails."""
    coordinator, release = Slow(), tmp_path / "release"
    trouble = [Once(tmp_path / f"trouble-{attempt}") for attempt in range(3)]  # as many as Spark makes
    operator = talk(job, coordinator)
    frame = apply(operator, source.read(), followed(held(HELD, str(release), trouble)))
    timed = source.read().withColumn("time", F.timestamp_seconds("value")).withWatermark("time", "1 second")
    job.start("counted", write(counting.read()).trigger(processingTime="1 second"))
    source.add(rows(0))
    job.start("q", write(frame).trigger(processingTime="50 milliseconds"))
    job.start("state", write(timed.dropDuplicatesWithinWatermark(["key"])).trigger(processingTime="50 milliseconds"))
    server.until('coord_control_recoveries_total{cause="query_failed", query="q"} == 0')
    source.add(rows(1))
    server.until('coord_control_recoveries_total{cause="query_failed", query="q"} == 1')
    eventually(lambda: all(query.state == "running" for query in job.status().queries))

    coordinator.is_slow = True
    assert reason(job.trigger_checkpoint()) == "coordinator_timeout"
    coordinator.is_slow = False
    client.wait(client.trigger_checkpoint(JOB))
    eventually(lambda: JOB in server.jobs_with("CoordControlCheckpointFailed"))

    source.add(rows(HELD))
    server.until("coord_control_closed_gateways == 2")
    coordinator.context.send(0, Number(number=99))
    savepoint = client.trigger_savepoint(JOB)
    server.until('coord_control_checkpoints_in_progress{kind="savepoint"} == 1')
    coordinator.context.send(1, Number(number=99))
    server.until('coord_control_blocked_events{cause="checkpoint"} >= 1')
    server.until("coord_control_fleet_blocked_events >= 2")
    (checkpoint,) = server.now("coord_control_blocked_checkpoint_id")
    because = f"that closed one: {checkpoint['value'][1]}."
    eventually(lambda: because in descriptions(server, "CoordControlEventsBlocked"))
    release.touch()
    client.wait(savepoint)
    server.until('coord_control_fleet_commands_last_hour{kind=~".*savepoint.*"} >= 1')
    eventually(lambda: not server.firing().get("CoordControlEventsBlocked"))
    source.add(rows(HELD + 1))  # one more epoch, between two scrapes for sure
    server.until(f'coord_control_query_epoch{{query="q"}} == {HELD + 1}')
