"""The sensor of alerts: what it tells, once, and what a callable that fails means."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import dagster as dg
import pytest

from coord_control.dagster import CheckAlert, ControlPlaneSpec, build_check_alert_sensor, build_streaming_definitions
from tests.dagster.sensor_kit import Jobs, SensorRig
from tests.docs_kit import blocks
from tests.places import CHECKOUT


@dataclass
class AlertRig:
    """The alert sensor beside the sensor that reports the outcomes of checks."""

    rig: SensorRig
    told: list[CheckAlert] = field(default_factory=list)
    cursor: str | None = None
    skipped: str | None = None

    def tick(self, tell: Callable[[CheckAlert], object] | None = None, **options: Any) -> list[str]:
        """Report the checks, look, and return what was told."""
        self.rig.tick()
        before = len(self.told)
        sensor = build_check_alert_sensor(tell or self.told.append, **options)
        result = sensor.evaluate_tick(self.context(sensor))
        self.cursor, self.skipped = result.cursor, result.skip_message
        return [str(alert) for alert in self.told[before:]]

    def context(self, sensor: dg.SensorDefinition) -> dg.SensorEvaluationContext:
        jobs = build_streaming_definitions(ControlPlaneSpec(jobs=list(self.rig.specs)))
        location = dg.Definitions.merge(jobs, dg.Definitions(sensors=[sensor]))
        return dg.build_sensor_context(
            instance=self.rig.instance, cursor=self.cursor, repository_def=location.get_repository_def()
        )


@pytest.fixture
def alerts(rig: SensorRig) -> AlertRig:
    return AlertRig(rig)


def test_a_failure_is_told_once_and_that_it_passes_again(alerts: AlertRig, jobs: Jobs) -> None:
    jobs.checkpoint()
    assert alerts.tick() == []
    jobs.failed()
    [failed] = alerts.tick()
    assert failed.startswith("flights/checkpoint: failed_checkpoints fails: ")
    assert alerts.tick() == []
    jobs.failed()
    assert alerts.tick() == []
    jobs.checkpoint()
    [passed] = alerts.tick()
    assert passed.startswith("flights/checkpoint: failed_checkpoints passes again: ")
    assert alerts.tick() == []


def test_only_the_checks_that_were_named_are_told(alerts: AlertRig, jobs: Jobs) -> None:
    jobs.failed()
    assert alerts.tick(checks=["running"]) == []
    assert len(alerts.tick(checks=["failed_checkpoints"])) == 1


def test_what_could_not_be_told_is_told_later_and_keeps_nothing_back(alerts: AlertRig, jobs: Jobs) -> None:
    jobs.failed()
    jobs.recovery(cause="query_failed")
    jobs.recovery(cause="query_failed")
    jobs.recovery(cause="query_failed")
    jobs.recovery(cause="query_failed")

    def tell(alert: CheckAlert) -> None:
        if alert.check == "failed_checkpoints":
            raise OSError("the pager is away")
        alerts.told.append(alert)

    first = alerts.tick(tell)
    assert [line.split(": ")[1].split()[0] for line in first] == ["restart_rate"]
    assert alerts.skipped == (
        "tried again later, because they could not be sent: "
        "flights/checkpoint: failed_checkpoints (OSError: the pager is away)"
    )
    second = alerts.tick()
    assert [line.split(": ")[1].split()[0] for line in second] == ["failed_checkpoints"]


def test_the_recipe_of_the_page_posts_to_a_webhook(
    alerts: AlertRig, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[dict[str, str]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    [recipe] = [each for each in blocks(CHECKOUT / "docs" / "dagster.md") if "build_check_alert_sensor" in each.text]
    module: dict[str, Any] = {}
    exec(compile(recipe.text, str(recipe), "exec"), module)
    [sensor] = module["alerts"]().sensors
    jobs.failed()
    alerts.rig.tick()
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("SLACK_WEBHOOK_URL", f"http://127.0.0.1:{server.server_port}")
        sensor.evaluate_tick(alerts.context(sensor))
        server.shutdown()
        thread.join()
    [alert] = posted
    assert alert["text"].startswith("flights/checkpoint: failed_checkpoints fails: ")
