"""A job that another service runs: the launcher of docs/operations/launchers.md, and a service as it is documented."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import dagster as dg
import pytest

from coord_control.dagster.spec import StartSpec, StreamingJobSpec
from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.launch.launcher import Launcher
from tests.agent_kit import ScriptedDriver
from tests.dagster.action_kit import Actions
from tests.dagster_kit import Plane, plane_in
from tests.docs_kit import blocks
from tests.places import CHECKOUT

_PAGE: Final = CHECKOUT / "docs" / "operations" / "launchers.md"


class Service(HTTPServer):
    """Runs that were submitted; each is a driver in this process."""

    def __init__(self, plane: Plane) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plane = plane
        self.runs: list[dict[str, Any]] = []
        self.drivers: list[ScriptedDriver] = []
        self.submitted: list[dict[str, Any]] = []
        self._ids = itertools.count(11)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.startswith("runs/list"):
            return {"runs": self._shown()} if self.runs else {}
        if path.startswith("runs/get"):
            return next(run for run in self._shown() if path.endswith(f"run_id={run['run_id']}"))
        if path == "runs/cancel":
            self.drivers[-1].stop()
            return {}
        assert path == "runs/submit"
        token = body["idempotency_token"]
        if not any(each["idempotency_token"] == token for each in self.submitted):
            self.submitted.append(body)
            number = next(self._ids)
            page = f"https://example/runs/{number}"
            self.runs.insert(0, {"run_id": number, "run_name": body["run_name"], "run_page_url": page})
            self.drivers.append(self.plane.driver(name="flights"))
        return {"run_id": self.runs[0]["run_id"]}

    def _shown(self) -> list[dict[str, Any]]:
        states = ["TERMINATED" if each.ended.is_set() else "RUNNING" for each in reversed(self.drivers)]
        return [run | {"state": {"life_cycle_state": state}} for run, state in zip(self.runs, states, strict=True)]


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        path = self.path.removeprefix("/api/2.1/jobs/")
        is_known = self.headers["Authorization"] == "Bearer secret"
        content = json.dumps(self.server.answer(path, body) if is_known else {}).encode()
        self.send_response(200 if is_known else 403)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def actions(tmp_path: Path) -> Iterator[Actions]:
    with plane_in(tmp_path) as plane, dg.instance_for_test() as instance:
        yield Actions(plane, instance)


@pytest.fixture
def service(actions: Actions, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service(actions.plane)
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    [source] = [block for block in blocks(_PAGE) if block.language == "python"]
    module = ModuleType("launchers")
    exec(source.text, module.__dict__)
    monkeypatch.setitem(sys.modules, "launchers", module)
    monkeypatch.setenv("DATABRICKS_HOST", f"http://127.0.0.1:{service.server_port}")
    monkeypatch.setenv("DATABRICKS_TOKEN", "secret")
    monkeypatch.setenv("DATABRICKS_CLUSTER", json.dumps({"num_workers": 2}))
    start = StartSpec(script="dbfs:/jobs/flights.py", args=["--days", "3"], launcher="launchers:Databricks")
    actions.jobs = (StreamingJobSpec(name="flights", start=start),)
    yield service
    service.shutdown()
    thread.join()
    service.server_close()


def test_a_service_runs_the_driver_and_a_repeated_step_finds_it(actions: Actions, service: Service) -> None:
    first = actions.run("start_streaming_job")

    assert first.is_success, first.description
    assert (first.metadata["supervisor_pid"], first.metadata["log_file"]) == (11, "https://example/runs/11")
    assert first.has_said("dbfs:/jobs/flights.py was started: process 11, its log: https://example/runs/11")
    [submitted] = service.submitted
    [task] = submitted["tasks"]
    assert task["spark_python_task"] == {"python_file": "dbfs:/jobs/flights.py", "parameters": ["--days", "3"]}
    assert task["new_cluster"]["spark_env_vars"] == {"COORD_CONTROL": actions.plane.settings.url}
    assert task["new_cluster"]["num_workers"] == 2

    again = actions.run("start_streaming_job", again=first)

    assert (again.metadata["was_launched"], again.metadata["generation"]) == (True, "1")
    assert actions.run("stop_streaming_job").is_success
    assert actions.run("start_streaming_job").metadata["generation"] == "2"
    assert [run["run_id"] for run in service.runs] == [12, 11]


def test_a_slot_has_one_program_at_a_time(actions: Actions, service: Service) -> None:
    launcher: Launcher = sys.modules["launchers"].Databricks({"COORD_CONTROL": actions.plane.settings.url})
    program = Program(script="dbfs:/jobs/flights.py", folder="/")
    assert (launcher.newest("flights"), launcher.has_begun("flights"), launcher.is_alive("flights")) == (
        None,
        False,
        False,
    )
    assert launcher.stop("flights", 1.0)

    launch = launcher.launch("flights", program, request="r1", before=4)

    assert launch is not None
    assert (launch.request, launch.before, launch.process) == ("r1", 4, "11")
    assert launcher.launch("flights", program, request="r2", before=4) is None
    assert (launcher.newest("flights"), launcher.has_begun("flights")) == (launch, True)
    assert not launcher.is_alive("flights-of-another-database")
    assert launcher.stop("flights", 1.0)


def test_a_service_that_refuses_fails_the_run(
    actions: Actions, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_TOKEN", "expired")
    ended = actions.run("start_streaming_job")
    assert "job flights cannot be started: runs/list" in ended.description
    assert "403" in ended.description


def test_a_launcher_that_does_not_exist_is_named(actions: Actions) -> None:
    start = StartSpec(script="flights.py", launcher="dagster:Missing")
    actions.jobs = (StreamingJobSpec(name="flights", start=start),)
    assert "there is no launcher dagster:Missing" in actions.run("start_streaming_job").description
