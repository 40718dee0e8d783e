"""A real Prometheus and the running flights: found by the exporter's discovery, also after the driver was killed.

In tests/spark/test_prometheus.py everything is provoked, and nothing may be empty. Here it is the job that people try,
under ``coordctl run``, for as long as it takes.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from coord_control.control.client import ControlClient
from tests.deploy_kit import CHECKOUT, DEPLOY
from tests.prometheus_kit import RULES, Prometheus, alert_rules, panel_queries, prometheus, without_comparison
from tests.spark.jobs import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

JOB: Final = "flights"

#: What this life may have none of: no checkpoint fails, no query is restarted, nothing takes long enough for an alert,
#: and what lasts for milliseconds is seen by some scrapes only.
SELDOM: Final = {
    "CoordControlCheckpointSlow",
    "CoordControlCommandWaits",
    "CoordControlEpochStuck",
    "fleet.json: Alerts",
    "fleet.json: Alerts firing",
    "fleet.json: Dead drivers",
    "fleet.json: Failures of the last hour, by reason",
    "fleet.json: Jobs with blocked events",
    "fleet.json: Open",
    "fleet.json: Open for",
    "fleet.json: Watermark lag",
    "fleet.json: Where, for how long, because of which checkpoint",
    "job.json: Because of checkpoint",
    "job.json: Failures, by reason",
    "job.json: Parts, 95th percentile",
    "job.json: Recoveries, by cause",
    "job.json: Subtasks that passed",
    "job.json: Time to recover, 95th percentile",
    "job.json: Under way for",
    "job.json: Watermark lag",
    "job.json: Where, for how long, because of which checkpoint",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "COORD_CONTROL": f"sqlite:///{tmp_path / 'control.db'}",
        "COORD_METRICS": "127.0.0.1:0",
    }


@pytest.fixture
def service(tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "coord_control.cli", "run", "--master", "local[2]"]
    command += [str(CHECKOUT / "examples/flights/service.py"), "--work", str(tmp_path / "flights")]
    command += ["--speed", "2", "--port", "0", "--checkpoint-seconds", "5"]
    process = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True
    )
    yield process
    process.kill()  # the driver sees its supervisor's end, and ends itself
    process.wait()


@pytest.fixture
def exporter(environment: dict[str, str]) -> Iterator[str]:
    command = [sys.executable, "-m", "coord_control.cli", "exporter", "--listen", "127.0.0.1:0", "--cache", "1s"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1].removesuffix("/metrics")
        process.kill()


def config(exporter: str) -> dict[str, Any]:
    """The settings of the compose file, with the discovery of docs/metrics.md."""
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    drivers, fleet = read["scrape_configs"]
    del drivers["static_configs"]
    drivers["http_sd_configs"] = [{"url": f"{exporter}/targets", "refresh_interval": "2s"}]
    fleet["static_configs"] = [{"targets": [exporter.removeprefix("http://")]}]
    return {**read, "global": {"scrape_interval": "1s"}, "rule_files": [str(path) for path in RULES]}


def until(server: Prometheus, *queries: str) -> None:
    """Wait until each of them has had data."""
    for query in queries:
        eventually(functools.partial(server.now, query))


def test_the_flights_are_found_and_fill_the_dashboards(
    service: subprocess.Popen[bytes], exporter: str, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'control.db'}"
    with prometheus(tmp_path / "prometheus", config(exporter)) as server, ControlClient(database) as client:
        completed = f'coord_control_last_checkpoint_id{{job_name="{JOB}", kind="checkpoint"}}'
        until(server, completed)
        client.wait(client.trigger_savepoint(JOB))
        until(
            server,
            "rate(coord_control_epoch_begin_duration_seconds_count[10s]) > 0",
            "rate(coord_control_epoch_settle_duration_seconds_count[10s]) > 0",
            "increase(coord_control_commands_total[10s]) >= 0",
        )
        first = client.job(JOB)
        os.kill(first.pid, signal.SIGKILL)
        until(
            server,
            f'coord_control_generation{{job_name="{JOB}"}} == {first.generation + 1}',
            f'coord_control_recoveries_total{{job_name="{JOB}", cause="driver_died"}} >= 1',
            "coord_control_fleet_last_recovery_duration_seconds",
            'coord_control_fleet_recoveries_last_hour{cause="driver_died"} >= 1',
            completed,
            'coord_control_fleet_checkpoints_stored{kind="savepoint"} >= 1',
        )

        queries = [
            *panel_queries(JOB),
            *((name, without_comparison(rule["expr"])) for name, rule in alert_rules().items()),
        ]
        empty = {place for place, expr in queries if not server.ever(expr)}
        assert sorted(empty - SELDOM) == []
        assert len(queries) > 3 * len(SELDOM)
