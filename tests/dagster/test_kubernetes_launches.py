"""A job whose driver Dagster starts on Kubernetes, with the YAML of docs/operations/launchers.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
import yaml

from coord_control.dagster.spec import StartSpec, StreamingJobSpec
from tests.dagster.action_kit import Actions
from tests.dagster_kit import plane_in
from tests.docs_kit import blocks
from tests.kubernetes_kit import ApiServer, Refused, api_server, variables_of
from tests.places import CHECKOUT

_PAGE: Final = CHECKOUT / "docs" / "operations" / "launchers.md"
_TEMPLATE: Final = CHECKOUT / "deploy" / "kubernetes" / "launch" / "job.yaml"


@pytest.fixture
def actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Actions]:
    [block] = [block for block in blocks(_PAGE) if block.language == "yaml"]
    start = StartSpec.model_validate(yaml.safe_load(block.text)["start"])
    with plane_in(tmp_path) as plane, dg.instance_for_test() as instance:
        monkeypatch.setenv("COORD_KUBERNETES_TEMPLATE", str(_TEMPLATE))
        yield Actions(plane, instance, (StreamingJobSpec(name="flights", start=start),))


@pytest.fixture
def server(actions: Actions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A cluster whose pods are drivers in this process."""
    with api_server() as server:

        def runs(pod: dict[str, Any]) -> None:
            server.runs(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"])
            actions.plane.driver(name="flights")

        server.created = runs
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


def test_kubernetes_runs_the_driver_and_a_repeated_step_finds_it(actions: Actions, server: ApiServer) -> None:
    first = actions.run("start_streaming_job")

    assert first.is_success, first.description
    [job] = server.submitted
    name = job["metadata"]["name"]
    log = f"kubectl --namespace streams logs job/{name}"
    assert (first.metadata["supervisor_pid"], first.metadata["log_file"]) == (name, log)
    assert first.has_said(f"was started: process {name}, its log: {log}")
    [driver] = job["spec"]["template"]["spec"]["containers"]
    script = "/opt/coord-control/app/examples/flights/service.py"
    assert driver["args"] == ["coordctl", "run", "--", script, "--work", "/data/flights", "--port", "7070"]
    assert variables_of(job)["COORD_CONTROL"] == actions.plane.settings.url

    again = actions.run("start_streaming_job", again=first)

    assert (again.metadata["was_launched"], again.metadata["generation"]) == (True, "1")
    assert actions.run("stop_streaming_job").is_success
    server.ends(0)
    assert actions.run("start_streaming_job").metadata["generation"] == "2"
    assert len(server.submitted) == 2


def test_a_driver_that_ends_at_once_fails_the_run_with_the_end_of_its_log(actions: Actions, server: ApiServer) -> None:
    def fails(pod: dict[str, Any]) -> None:
        server.logs[pod["metadata"]["name"]] = "coordctl: exit code 78: no such file: service.py"
        server.ends(78)

    server.created = fails

    ended = actions.run("start_streaming_job")

    assert not ended.is_success
    assert "no such file: service.py" in ended.description
    assert "exit code 78" in ended.metadata["log_tail"]
    assert "kill" not in ended.description, "there is no process of this machine"


def test_a_server_that_does_not_answer_fails_the_run_and_starts_nothing(actions: Actions, server: ApiServer) -> None:
    server.answered = lambda method, path: Refused(403, "Forbidden", "jobs.batch is forbidden")
    ended = actions.run("start_streaming_job")
    assert "job flights cannot be started: Kubernetes refuses to list Jobs" in ended.description
    assert "deploy/kubernetes/launch/rbac.yaml" in ended.description
    assert not server.submitted
