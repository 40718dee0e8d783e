"""A real Prometheus for tests, and its tool: both are the system's own, nothing is downloaded.

Threads: the test's own; Prometheus is a process, ended with the context that it was started in.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.dashboards.drawing import drawing, queries
from tests.deploy_kit import DEPLOY
from tests.patience import SECONDS

__all__ = [
    "RULES",
    "Prometheus",
    "alert_rules",
    "await_data",
    "draw",
    "impatient_rules",
    "program",
    "prometheus",
    "promtool",
]

RULES: Final = sorted((DEPLOY / "prometheus").glob("*.yml"))
#: Nobody wants to wait for the thresholds of production.
_IMPATIENT: Final = {
    "CoordControlEventsBlocked": ("> 60", "> 0.2"),
    "CoordControlCheckpointOld": ("> 900", "> 1"),
    "CoordControlEpochStuck": ("offset 15m", "offset 2s"),
}
#: What somebody who looks at a dashboard chooses above it; empty: the job.
_CHOICES: Final = {
    "job.json": {"$job": "", "$query": ".*", "$operator": ".*", "$__rate_interval": "10s"},
    "fleet.json": {"$job": ".*", "$__rate_interval": "10s"},
}


class Prometheus:
    """The HTTP API of a running one."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.started_at = time.time()

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=SECONDS):
                return True
        except OSError:  # refused, or not yet ready
            return False

    def now(self, query: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        found: list[dict[str, Any]] = self._get("query", query=query)["result"]
        return found

    def until(self, *queries: str) -> None:
        """Wait until each of them, one after the other, has data."""
        for query in queries:
            deadline = time.monotonic() + SECONDS
            while not self.now(query):
                assert time.monotonic() < deadline, f"still without data: {query}"
                time.sleep(0.05)

    def ever(self, query: str) -> list[dict[str, Any]]:
        """The series that a query has had at any second since the start, with a number and not only NaN."""
        start, end = f"{self.started_at:.3f}", f"{time.time():.3f}"
        found: list[dict[str, Any]] = self._get("query_range", query=query, start=start, end=end, step="1")["result"]
        return [series for series in found if any(value != "NaN" for _, value in series["values"])]

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """The alerts that fire, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in self._get("alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found

    def jobs_with(self, alert: str) -> set[str]:
        """The jobs for which an alert fires."""
        return {each["labels"]["job_name"] for each in self.firing().get(alert, ())}

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


def program(name: str) -> str:
    """Where ``prometheus`` or ``promtool`` is."""
    found = shutil.which(name)
    assert found, f"there is no {name}; `make test` names the command that installs it"
    return found


def promtool(*arguments: str | Path) -> None:
    """Let the tool check something, which it must find right."""
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def alert_rules() -> dict[str, dict[str, Any]]:
    """All alert rules of deploy/prometheus by their names."""
    read = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES]
    rules = [rule for file in read for group in file["groups"] for rule in group["rules"] if "alert" in rule]
    found = {rule["alert"]: rule for rule in rules}
    assert len(found) == len(rules), "two rules have one name"
    return found


def _panel_queries(job: str) -> Iterator[tuple[str, str]]:
    """Where a query of a dashboard is, and what it asks when somebody looks at a job."""
    for name, choices in _CHOICES.items():
        for panel in json.loads((DEPLOY / "grafana" / name).read_text(encoding="utf-8"))["panels"]:
            for expr in queries(panel, {each: value or job for each, value in choices.items()}):
                assert "$" not in expr
                yield f"{name}: {panel['title']}", expr


def draw(server: Prometheus, name: str, job: str, rows: int) -> str:
    """Draw the first rows of a dashboard of deploy/grafana for one job."""
    dashboard = json.loads((DEPLOY / "grafana" / name).read_text(encoding="utf-8"))
    choices = {each: value or job for each, value in _CHOICES[name].items()}
    return drawing(dashboard, server.ever, choices, rows)


def _without_comparison(expr: str) -> str:
    """What an alert compares with its threshold."""
    return re.sub(r" (==|>=|>) [\d.]+", "", expr)


def impatient_rules(folder: Path) -> list[str]:
    """The rules, with some thresholds that are reached soon, and no alert that has to last."""
    for path in RULES:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for rule in (rule for group in content["groups"] for rule in group["rules"]):
            before, after = _IMPATIENT.get(rule["alert"], ("", ""))
            assert before in rule["expr"]
            rule["expr"] = rule["expr"].replace(before, after) if before else rule["expr"]
            rule.pop("for", None)
        (folder / path.name).write_text(yaml.safe_dump(content), encoding="utf-8")
    return [str(folder / path.name) for path in RULES]


def await_data(server: Prometheus, job: str, *, unknown: str | None = None) -> None:
    """Wait until all panels and all alerts have had a number; a scrape may still be on its way.

    Args:
        unknown: a part of the names of metrics that no source of the job reports.
    """
    deadline = time.monotonic() + SECONDS
    while empty := [each for each in _without_data(server, job) if unknown is None or unknown not in each]:
        assert time.monotonic() < deadline, empty
        time.sleep(1.0)


def _without_data(server: Prometheus, job: str) -> list[str]:
    """The panels and alerts whose query has not had a number yet."""
    empty = [f"{place}: {expr}" for place, expr in _panel_queries(job) if not server.ever(expr)]
    for name, rule in alert_rules().items():
        expr = _without_comparison(rule["expr"].replace(*_IMPATIENT.get(name, ("", ""))))
        assert expr != rule["expr"], name
        empty += [f"{name}: {expr}"] if not server.ever(expr) else []
    return empty


@contextmanager
def prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """Start one on a free port of loopback, with its data below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", "--log.level=warn"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    log = folder / "log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            started = Prometheus(port)
            deadline = time.monotonic() + SECONDS
            while not started.is_ready():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "it did not start in time"
                time.sleep(0.05)
            yield started
        finally:
            process.kill()
