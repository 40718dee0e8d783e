"""The launcher for Kubernetes, against a server that answers as its API reference says."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.errors import LaunchFailed, PackageMissing
from coord_control.exit_codes import NO_RESTART
from coord_control.launch.kubernetes_launcher import Kubernetes
from coord_control.launch.launcher import Launch, Launcher
from tests.kubernetes_kit import TEMPLATE, ApiServer, Refused, api_server, variables_of
from tests.patience import SECONDS, eventually

SLOT = "flights-0123456789ab"
PROGRAM = Program(script="/app/flights.py", args=("--days", "3"), folder=os.getcwd())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib3.Retry.get_backoff_time", lambda retry: 0.0)


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(TEMPLATE, encoding="utf-8")
    monkeypatch.setenv("COORD_KUBERNETES_TEMPLATE", str(path))
    return path


@pytest.fixture
def server(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with api_server() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


@pytest.fixture
def launcher(server: ApiServer) -> Launcher:
    return Kubernetes({"COORD_CONTROL": "postgresql://control@db/control"})


def launch(launcher: Launcher, slot: str = SLOT, request: str = "r1", before: int = 4) -> Launch:
    made = launcher.launch(slot, PROGRAM, request=request, before=before)
    assert made is not None
    return made


def both_at_once() -> Callable[[str, str], None]:
    """Let two callers create a Job only when both have seen what there is."""
    together = threading.Barrier(2)

    def wait(method: str, path: str) -> None:
        if method == "POST":
            together.wait(SECONDS)

    return wait


def changed(template: Path, change: Any) -> None:
    """Change the template, and read it from then on."""
    content = yaml.safe_load(template.read_text(encoding="utf-8"))
    change(content)
    template.write_text(yaml.safe_dump(content), encoding="utf-8")


class TestALaunch:
    def test_runs_the_program_under_coordctl_run_with_the_environment(
        self, server: ApiServer, launcher: Launcher
    ) -> None:
        made = launch(launcher)

        [job] = server.submitted
        [driver] = job["spec"]["template"]["spec"]["containers"]
        assert driver["args"] == ["coordctl", "run", "--", "/app/flights.py", "--days", "3"]
        assert "workingDir" not in driver, "the folder of this process means nothing in a pod"
        assert variables_of(job) == {
            "COORD_CONTROL": "postgresql://control@db/control",
            "COORD_MASTER": "local[2]",
            "COORD_GRACE": "60s",
        }
        name = job["metadata"]["name"]
        assert made == Launch("r1", 4, f"kubectl --namespace streams logs job/{name}", name)
        assert launcher.newest(SLOT) == made

    def test_is_not_retried_by_kubernetes_where_a_restart_does_not_help(
        self, server: ApiServer, launcher: Launcher
    ) -> None:
        launch(launcher)
        [job] = server.submitted
        for code in NO_RESTART:
            server.runs()
            server.ends(1)  # a node or a pod was lost: the Job makes another pod
            assert launcher.is_alive(SLOT)
            server.ends(code)
            assert not launcher.is_alive(SLOT)
            launch(launcher)
        assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (1, 1)
        assert job["spec"]["podReplacementPolicy"] == "Failed"

    def test_has_a_grace_period_that_is_longer_than_that_of_its_driver(
        self, server: ApiServer, template: Path, tmp_path: Path
    ) -> None:
        def has_period(seconds: int) -> Any:
            return lambda job: job["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=seconds)

        given = []
        for seconds in (600, 20):
            changed(template, has_period(seconds))
            launch(Kubernetes({}), f"of-{seconds}")
            given.append(variables_of(server.submitted[-1])["COORD_GRACE"])
        launch(Kubernetes({"COORD_GRACE": "5s"}), "given")
        assert [*given, variables_of(server.submitted[-1])["COORD_GRACE"]] == ["570s", "10s", "5s"]

    def test_hands_over_text_that_kubernetes_would_replace(self, server: ApiServer) -> None:
        program = Program(script="flights.py", args=("$(COORD_CONTROL)", "$HOME", "$$"), folder="/app")
        assert Kubernetes({"PATTERN": "$(A)|$"}).launch(SLOT, program, request="r") is not None
        [driver] = server.submitted[0]["spec"]["template"]["spec"]["containers"]
        assert driver["args"][-3:] == ["$$(COORD_CONTROL)", "$$HOME", "$$$$"]
        assert {"name": "PATTERN", "value": "$$(A)|$$"} in driver["env"]
        assert driver["workingDir"] == "/app"

    @pytest.mark.parametrize(
        "slot", ["x" * 300, "Flights_of.2013-0123456789ab", "___", "-a-", "flüge", "with a blank/and\na line"]
    )
    def test_of_any_slot_has_a_valid_name_and_is_found_again(
        self, server: ApiServer, launcher: Launcher, slot: str
    ) -> None:
        made = launch(launcher, slot, request="a request: über $(all)\n" * 9, before=2**40)
        assert launcher.newest(slot) == made
        assert made.before == 2**40
        assert launcher.newest(f"{slot}x") is None
        [job] = server.submitted
        assert len(job["metadata"]["name"]) <= 57, "the pod's name is six characters longer"

    def test_to_a_file_is_refused(self, launcher: Launcher) -> None:
        with pytest.raises(LaunchFailed, match=r"Leave out start\.log_file"):
            launcher.launch(SLOT, PROGRAM, request="r1", log_file="/tmp/log")

    def test_keeps_the_container_that_is_called_driver_and_the_marks_of_the_template(
        self, server: ApiServer, template: Path
    ) -> None:
        def change(job: Any) -> None:
            pod = job["spec"]["template"]
            pod["spec"]["containers"].insert(0, {"name": "logs", "image": "logs:1.0"})
            pod["metadata"] = {"labels": {"team": "air"}}
            job["metadata"]["generateName"] = "flights-"

        changed(template, change)
        launch(Kubernetes({}))
        [job] = server.submitted
        logs, driver = job["spec"]["template"]["spec"]["containers"]
        assert ("args" in logs, driver["args"][0]) == (False, "coordctl")
        assert job["spec"]["template"]["metadata"]["labels"]["team"] == "air"
        assert job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"] == "driver"


class TestASlot:
    def test_that_is_empty_has_nothing(self, launcher: Launcher) -> None:
        assert (launcher.newest(SLOT), launcher.has_begun(SLOT), launcher.is_alive(SLOT)) == (None, False, False)
        assert launcher.tail(SLOT, 3) == ""
        assert launcher.stop(SLOT, 0.0)

    def test_has_one_program_at_a_time(self, server: ApiServer, launcher: Launcher) -> None:
        first = launch(launcher)
        assert launcher.launch(SLOT, PROGRAM, request="r2", before=5) is None
        server.runs()
        server.ends(0)
        assert (launcher.newest(SLOT), launcher.is_alive(SLOT)) == (first, False)

        second = launch(launcher, request="r2", before=5)

        assert second.process != first.process
        assert (launcher.newest(SLOT), len(server.submitted)) == (second, 2)
        assert not launcher.is_alive("another")

    def test_counts_launches_as_numbers(self, server: ApiServer, launcher: Launcher) -> None:
        for number in range(11):
            made = launch(launcher, request=f"r{number}")
            server.ends(78)
        assert launcher.newest(SLOT) == made

    def test_gets_one_job_when_two_launch_at_the_same_moment(self, server: ApiServer, launcher: Launcher) -> None:
        for slot in map(str, range(20)):
            server.answered = both_at_once()
            results: list[Launch | None] = []

            def start(before: int, slot: str = slot, results: list[Launch | None] = results) -> None:
                own = Kubernetes({})
                results.append(own.launch(slot, PROGRAM, request=f"r{before}", before=before))

            threads = [threading.Thread(target=start, args=(before,)) for before in (4, 5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            [made] = [each for each in results if each is not None]
            assert len(results) == 2
            assert launcher.newest(slot) == made
        assert len(server.submitted) == 20

    def test_has_begun_when_its_driver_has(self, server: ApiServer, launcher: Launcher) -> None:
        launch(launcher)
        assert not launcher.has_begun(SLOT), "its pod is pending"
        server.runs()
        assert launcher.has_begun(SLOT)
        server.ends(0)
        server.pods.clear()
        assert launcher.has_begun(SLOT), "its pods may have been removed since"

    def test_is_alive_while_a_pod_is_whose_job_was_deleted(self, server: ApiServer, launcher: Launcher) -> None:
        made = launch(launcher)
        server.runs()
        server.loses(str(made.process))
        assert launcher.is_alive(SLOT)
        assert launcher.launch(SLOT, PROGRAM, request="r2") is None
        server.ends(143)
        assert not launcher.is_alive(SLOT)

    def test_shows_the_end_of_the_log_of_its_newest_pod(self, server: ApiServer, launcher: Launcher) -> None:
        launch(launcher)
        server.logs[server.runs()["metadata"]["name"]] = "of the first pod"
        server.ends(1)
        server.logs[server.runs()["metadata"]["name"]] = "one\ntwo\nflüge"
        assert launcher.tail(SLOT, 2) == "two\nflüge"
        server.answered = lambda method, path: Refused(403, "Forbidden", "no")
        assert launcher.tail(SLOT, 2) == ""


class TestAStop:
    def test_waits_until_the_pod_has_ended(self, server: ApiServer, launcher: Launcher) -> None:
        launch(launcher)
        server.runs()
        assert not launcher.stop(SLOT, 0.0), "the driver ends its epochs"
        assert launcher.is_alive(SLOT)
        assert launcher.launch(SLOT, PROGRAM, request="r2") is None
        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(launcher.stop(SLOT, SECONDS)))
        thread.start()
        seen = len(server.requests)
        eventually(lambda: len(server.requests) > seen + 2)
        server.ends(143)
        thread.join()
        assert results == [True]
        assert server.requests.count("DELETE jobs") == 1
        assert launcher.newest(SLOT) is None
        launch(launcher, request="r2")

    def test_never_deletes_a_later_job_of_the_same_name(self, server: ApiServer, launcher: Launcher) -> None:
        made = launch(launcher)

        def replaced(method: str, path: str) -> None:
            if method == "DELETE":
                server.jobs[str(made.process)]["metadata"]["uid"] = "another"

        server.answered = replaced
        assert not launcher.stop(SLOT, 0.0)
        assert "deletionTimestamp" not in server.jobs[str(made.process)]["metadata"]

    def test_leaves_what_has_ended(self, server: ApiServer, launcher: Launcher) -> None:
        made = launch(launcher)
        server.ends(78)
        assert launcher.stop(SLOT, 0.0)
        assert launcher.newest(SLOT) == made


class TestAFailure:
    @pytest.mark.parametrize("call", ["newest", "has_begun", "is_alive"])
    def test_of_the_server_does_not_look_like_an_empty_slot(self, template: Path, server: ApiServer, call: str) -> None:
        launcher = Kubernetes({})
        server.answered = lambda method, path: Refused(503, "ServiceUnavailable", "etcd is away")
        with pytest.raises(LaunchFailed, match="it is unknown what is alive") as caught:
            getattr(launcher, call)(SLOT)
        assert "Try kubectl --namespace streams get jobs" in str(caught.value)

    def test_of_the_connection_does_not_look_like_an_empty_slot(
        self, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with api_server() as server:
            monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        launcher = Kubernetes({})
        for call in (lambda: launcher.launch(SLOT, PROGRAM, request="r"), lambda: launcher.stop(SLOT, 1.0)):
            with pytest.raises(LaunchFailed, match="Kubernetes does not answer"):
                call()
        assert launcher.tail(SLOT, 3) == ""

    @pytest.mark.parametrize(
        ("status", "way_out"),
        [
            (401, "the role of deploy/kubernetes/launch/rbac.yaml"),
            (403, "the role of deploy/kubernetes/launch/rbac.yaml"),
            (404, "Create the namespace, or correct it in"),
            (418, "Repeat this later"),
        ],
    )
    def test_names_the_cause_and_the_next_step(
        self, server: ApiServer, launcher: Launcher, status: int, way_out: str
    ) -> None:
        server.answered = lambda method, path: Refused(status, "Why", "because of this")
        with pytest.raises(LaunchFailed, match="because of this") as caught:
            launcher.is_alive(SLOT)
        assert way_out in str(caught.value)

    def test_of_a_template_that_kubernetes_refuses_names_the_file(self, server: ApiServer, template: Path) -> None:
        changed(template, lambda job: job["spec"].update(backofLimit=3))
        with pytest.raises(LaunchFailed, match="backofLimit") as caught:
            launch(Kubernetes({}))
        assert f"Correct {template}" in str(caught.value)
        assert not server.submitted

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("", "not the manifest of one"),
            ("[", "not the manifest of one"),
            ("text", "not the manifest of one"),
            ("{apiVersion: batch/v1, kind: Job}", "not the manifest of one"),
            (TEMPLATE.replace("Job", "CronJob"), "not the manifest of one"),
            (f"{TEMPLATE}\n---\n{TEMPLATE}", "not the manifest of one"),
            (TEMPLATE.replace("namespace: streams", "name: x"), "has no metadata.namespace"),
            (TEMPLATE.replace("image:", "args: [a]\n          image:"), "Remove args"),
            (TEMPLATE.replace("image:", "command: [coordctl, run, x.py]\n          image:"), "Remove args"),
        ],
    )
    def test_of_a_file_that_is_no_template_says_why(
        self, server: ApiServer, template: Path, content: str, problem: str
    ) -> None:
        template.write_text(content, encoding="utf-8")
        with pytest.raises(LaunchFailed, match=problem):
            Kubernetes({})

    def test_of_a_missing_template(self, server: ApiServer, template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(LaunchFailed, match=r"none\.yaml cannot be read"):
            Kubernetes({"COORD_KUBERNETES_TEMPLATE": "none.yaml"})
        monkeypatch.delenv("COORD_KUBERNETES_TEMPLATE")
        with pytest.raises(LaunchFailed, match="COORD_KUBERNETES_TEMPLATE is not set"):
            Kubernetes({})

    def test_of_a_missing_cluster(self, template: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        with pytest.raises(LaunchFailed, match="Set KUBECONFIG"):
            Kubernetes({})
        monkeypatch.delenv("KUBECONFIG")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # a pod without an account
        with pytest.raises(LaunchFailed, match="no cluster of Kubernetes is configured"):
            Kubernetes({})

    def test_of_a_missing_package_names_the_extra(self, template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "kubernetes", None)
        with pytest.raises(PackageMissing, match=r"pip install 'coord-control\[kubernetes\]'"):
            Kubernetes({})


def test_a_template_for_one_job_is_named_in_its_environment(server: ApiServer, template: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    others = TEMPLATE.replace("0.1.0", "0.2.0") + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
    other.write_text(others, encoding="utf-8")
    launch(Kubernetes({"COORD_KUBERNETES_TEMPLATE": str(other)}))
    [job] = server.submitted
    assert job["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":0.2.0")
    assert "COORD_KUBERNETES_TEMPLATE" not in variables_of(job)
