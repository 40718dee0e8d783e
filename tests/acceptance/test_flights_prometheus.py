"""A real Prometheus and the running flights, under ``coordctl run``: found by the exporter's discovery.

What a job in production may meet within a year befalls this one within a minute: a frozen worker of Spark during a
savepoint, which is given up then; the death of that worker; the death of the driver. No panel is empty afterwards, no
alert is without a number, and what was provoked has fired. (tests/spark/test_prometheus.py is about what the alerts
say.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import yaml

from coord_control.control.client.control_client import ControlClient
from tests.browser_kit import keep
from tests.deploy_kit import DEPLOY
from tests.patience import eventually
from tests.places import CHECKOUT
from tests.prometheus_kit import Prometheus, await_data, draw, impatient_rules, prometheus

pytestmark = pytest.mark.spark

JOB: Final = "flights"
_OF_JOB: Final = f'{{job_name="{JOB}"}}'


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "COORD_CONTROL": f"sqlite:///{tmp_path / 'control.db'}",
        "COORD_CONTROL_HEARTBEAT_SECONDS": "0.5",
        "COORD_CONTROL_LEASE_SECONDS": "3",
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
    command = [sys.executable, "-m", "coord_control.cli", "exporter", "--listen", "127.0.0.1:0", "--cache", "500ms"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1].removesuffix("/metrics")
        process.kill()


def config(folder: Path, exporter: str) -> dict[str, Any]:
    """The settings of the compose file, with the discovery of docs/metrics.md."""
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    drivers, fleet = read["scrape_configs"]
    del drivers["static_configs"]
    drivers["http_sd_configs"] = [{"url": f"{exporter}/targets", "refresh_interval": "2s"}]
    fleet["static_configs"] = [{"targets": [exporter.removeprefix("http://")]}]
    often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    return {**read, "global": often, "rule_files": impatient_rules(folder)}


@pytest.mark.slow
def test_the_flights_are_found_and_no_panel_or_alert_is_without_data(
    service: subprocess.Popen[bytes], exporter: str, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'control.db'}"
    with prometheus(tmp_path / "prometheus", config(tmp_path, exporter)) as server, ControlClient(database) as client:
        server.until(
            f'coord_control_last_checkpoint_id{{job_name="{JOB}", kind="checkpoint"}}',
            'coord_control_query_epoch{query="alerts"} > 0',
        )
        client.wait(client.trigger_savepoint(JOB))
        server.until('increase(coord_control_commands_total{kind="trigger_savepoint", outcome="completed"}[10s]) > 0')
        freeze_and_kill_a_worker(server, client)
        kill_the_driver(server, client, service)
        await_data(
            server, JOB, unknown="query_backlog"
        )  # files do not say what waits; tests/spark has a source that does
        keep(draw(server, "job.json", JOB, 50), "grafana", "job.html")


def freeze_and_kill_a_worker(server: Prometheus, client: ControlClient) -> None:
    """One of Spark's Python workers stands still during a savepoint, which is given up, and then it is dead."""
    frozen = python_workers(client.job(JOB).pid)[0]
    frozen.suspend()
    # With one subtask that it was given an epoch does not end.
    server.until(f"min_over_time(coord_control_closed_gateways{_OF_JOB}[3s]) > 0")
    savepoint = client.trigger_savepoint(JOB)
    server.until('coord_control_checkpoints_in_progress{kind="savepoint"} == 1')
    client.send_event(JOB, "delay-threshold", "Thresholds", {"version": 1, "minutes": {"UA": 45.0}})
    server.until(
        'coord_control_checkpoints_in_progress{kind="savepoint"} == 1',
        'coord_control_blocked_events{cause="checkpoint"} > 0',
        "coord_control_fleet_blocked_events > 0",
        'coord_control_fleet_commands_open{kind="trigger_savepoint"} == 1',
    )
    eventually(lambda: JOB in server.jobs_with("CoordControlEventsBlocked"))
    eventually(lambda: JOB in server.jobs_with("CoordControlEpochStuck"))
    client.wait(client.abort(JOB, command=savepoint.id))
    server.until('increase(coord_control_checkpoints_failed_total{kind="savepoint"}[10s]) > 0')
    frozen.kill()
    server.until('increase(coord_control_recoveries_total{cause="query_failed"}[10s]) > 0')
    eventually(lambda: not server.firing().keys() & {"CoordControlEventsBlocked", "CoordControlEpochStuck"})


def python_workers(driver: int) -> list[psutil.Process]:
    """The processes in which Spark runs Python for a driver's tasks."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # also of one that is dead, and that nobody has waited for
            if "pyspark.daemon" in process.cmdline():
                found += process.children()
                break
    return found


def kill_the_driver(server: Prometheus, client: ControlClient, service: subprocess.Popen[bytes]) -> None:
    """It is missed for a while, because its supervisor stands still, too; then the next one goes on."""
    first = client.job(JOB)
    service.send_signal(signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    waiting = client.trigger_checkpoint(JOB)  # accepted within the lease
    eventually(lambda: JOB in server.jobs_with("CoordControlDriverDead"))
    server.until('coord_control_fleet_commands_open{kind="trigger_checkpoint", state="pending"} == 1')
    service.send_signal(signal.SIGCONT)
    server.until(
        f"coord_control_generation{_OF_JOB} == {first.generation + 1}",
        f'coord_control_recoveries_total{{job_name="{JOB}", cause="driver_died"}} >= 1',
        'coord_control_fleet_recoveries_last_hour{cause="driver_died"} >= 1',
    )
    client.wait(waiting)
    eventually(lambda: not server.firing().get("CoordControlDriverDead"))
