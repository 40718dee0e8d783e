"""Starting jobs through Dagster: real processes of ``coordctl run --detach``, with drivers that need no Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dagster as dg
import psutil
import pytest

from coord_control.dagster.runs.driver_start import Started, start_job
from coord_control.dagster.spec import StartSpec, StreamingJobSpec
from coord_control.storage.records import CommandState, JobState
from tests.dagster.action_kit import Actions, meanwhile, silence
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually

START: Final = "start_streaming_job"
CHECKOUT: Final = Path(__file__).resolve().parents[2]
#: A driver without Spark, which behaves like a real one towards its supervisor, the storage and the database.
DRIVER: Final = """
    import os, sys
    from coord_control.control.settings import ControlSettings
    from coord_control.spark.process import shutdown
    from coord_control.storage.records import JobState
    from tests.agent_kit import ScriptedDriver, make_agent, open_store

    root, way = sys.argv[1:]
    driver = ScriptedDriver(root, supervisor=os.environ["COORD_SUPERVISED"])
    driver.was_ready = way == "long"
    print("driver of generation", driver.generation, flush=True)
    settings = ControlSettings.load(heartbeat_seconds=0.2, lease_seconds=5.0)
    agent = make_agent(driver, settings, open_store(settings), is_supervised=True)
    agent.start()
    driver.open_feed()
    if way == "short":
        driver.stop()
    if way == "wrong":
        agent.close(JobState.FAILED, "wrong", is_clean=False)
        raise SystemExit(78)
    shutdown.register(lambda seconds: driver.stop())
    driver.ended.wait()
    sys.exit(76 if driver.is_restarting else 0)
"""


@dataclass
class StartRig:
    """A machine on which one job can be started."""

    folder: Path
    plane: Plane
    actions: Actions

    @property
    def script(self) -> Path:
        return self.folder / "flights.py"

    def spec(self, way: str = "long", **more: Any) -> StartSpec:
        given = {"script": str(self.script), "args": [str(self.plane.root), way], **more}
        return StartSpec(env={"PYTHONPATH": str(CHECKOUT)}, **given)

    def start(self, way: str = "long", **more: Any) -> Any:
        config = {name: more.pop(name) for name in ("again", "timeout_seconds") if name in more}
        self.actions.jobs = (StreamingJobSpec(name="flights", start=self.spec(way, **more)),)
        return self.actions.run(START, **config)

    def launches(self) -> list[str]:
        """What the supervisors of all launches have said."""
        return [path.read_text() for path in (self.folder / "state" / "coord-control" / "logs").glob("*.log")]

    def supervisors(self) -> list[int]:
        places = (self.folder / "state" / "coord-control" / "starts").glob("*")
        found = [json.loads(path.read_text() or "{}").get("process") for path in places]
        return [int(pid) for pid in found if pid is not None and is_running(int(pid))]

    def end(self) -> None:
        """Let nothing that was started go on."""
        for pid in self.supervisors():
            processes = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
            for process in reversed(processes):
                process.kill()
            psutil.wait_procs(processes[:-1], timeout=30.0)
        eventually(lambda: not self.supervisors())


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


@pytest.fixture
def rig(tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartRig]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with plane_in(tmp_path) as plane:
        rig = StartRig(tmp_path, plane, Actions(plane, instance))
        rig.script.write_text(textwrap.dedent(DRIVER))
        yield rig
        rig.end()


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_job_is_started_once_and_outlives_the_run(rig: StartRig) -> None:
    first = rig.start()

    assert first.is_success, first.description
    job = rig.plane.client().job("flights")
    assert (job.state, job.generation, job.is_alive) == (JobState.RUNNING, 1, True)
    assert (first.metadata["generation"], first.metadata["pid"], first.metadata["was_launched"]) == ("1", job.pid, True)
    assert rig.supervisors() == [first.metadata["supervisor_pid"]]
    log = Path(first.metadata["log_file"])
    assert "driver of generation 1" in log.read_text()
    assert job.pid != os.getpid()
    assert first.has_said(f"coordctl run was started: process {first.metadata['supervisor_pid']}, its log: {log}")

    second = rig.start()

    assert second.is_success
    assert (second.metadata["was_launched"], second.metadata["generation"]) == (False, "1")
    assert second.has_said("is already running")

    again = rig.start(again=first)

    assert (again.metadata["was_launched"], again.metadata["generation"]) == (True, "1")
    assert len(rig.launches()) == 1

    stopped = rig.actions.run("stop_streaming_job")
    assert stopped.is_success, stopped.description
    eventually(lambda: not rig.supervisors())

    once_more = rig.start(again=first)

    assert once_more.has_said("an earlier attempt started job flights")  # it is the same request
    assert len(rig.launches()) == 1
    assert rig.start().metadata["generation"] == "2"  # another one


def test_the_launcher_dies_after_the_launch_and_there_is_one_driver(rig: StartRig) -> None:
    request = {"url": rig.plane.settings.url, "spec": rig.spec().model_dump()}
    dying = """
        import json, os, signal, sys
        from coord_control.control.client.control_client import ControlClient
        from coord_control.control.settings import ControlSettings
        from coord_control.dagster.spec import StartSpec
        from coord_control.dagster.runs.driver_start import start_job

        def tell(line):
            if line.startswith("coordctl run was started"):
                os.kill(os.getpid(), signal.SIGKILL)

        request = json.loads(sys.argv[1])
        with ControlClient(settings=ControlSettings.load(request["url"]), actor="dying") as client:
            start_job(client, "flights", StartSpec(**request["spec"]), request="r", timeout_seconds=60.0, tell=tell)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(dying), json.dumps(request)], cwd=CHECKOUT, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGKILL

    ended = rig.start()

    assert ended.is_success, ended.description
    assert ended.metadata["generation"] == "1"
    assert len(rig.launches()) == len(rig.supervisors()) == 1


def test_two_at_the_same_time_start_one_driver(rig: StartRig) -> None:
    started: list[Started] = []
    barrier = threading.Barrier(2)

    def start(request: str) -> None:
        client = rig.plane.client()
        barrier.wait()
        said: list[str] = []
        found = start_job(client, "flights", rig.spec(), request=request, timeout_seconds=120.0, tell=said.append)
        started.append(found)

    with meanwhile(lambda: start("one")):
        start("another")

    assert sorted(each.was_launched for each in started) == [False, True]
    assert {each.job.generation for each in started} == {1}
    assert len(rig.launches()) == 1


def test_a_job_that_is_done_at_once_was_started(rig: StartRig) -> None:
    ended = rig.start("short")

    assert ended.is_success, ended.description
    assert ended.metadata["state"] == "ended"
    assert ended.has_said("job flights has run and ended")
    eventually(lambda: not rig.supervisors())
    assert rig.start("short", again=ended).metadata["generation"] == "1"
    assert len(rig.launches()) == 1


def test_a_script_that_cannot_work_fails_the_run_with_the_end_of_its_log(rig: StartRig) -> None:
    ended = rig.start("wrong")

    assert not ended.is_success
    assert (
        "the supervisor of job flights ended before the job was running; the last line of its log: "
        in ended.description
    )
    assert "exit code 78" in ended.description
    assert "driver of generation 1" in ended.metadata["log_tail"]
    assert ended.metadata["log_file"] in ended.description


def test_a_script_that_is_restarted_for_ever_fails_the_run_in_time(rig: StartRig) -> None:
    rig.script.write_text("raise RuntimeError('no such table: flights')")

    ended = rig.start(timeout_seconds=5.0)

    assert not ended.is_success
    (supervisor,) = rig.supervisors()
    assert f"to end it: kill {supervisor}" in ended.description
    assert "no such table: flights" in ended.metadata["log_tail"]

    rig.script.write_text(textwrap.dedent(DRIVER))
    again = rig.start(again=ended)

    assert again.is_success, again.description  # the same supervisor has started it meanwhile
    assert again.metadata["supervisor_pid"] == supervisor
    assert len(rig.launches()) == 1


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"script": "missing.py"}, "coordctl run missing.py in"),
        ({"working_directory": "/not/here"}, "No such file or directory: '/not/here'"),
    ],
)
def test_what_cannot_be_launched_fails_the_run(rig: StartRig, more: dict[str, Any], problem: str) -> None:
    ended = rig.start(**more)

    assert problem in ended.description
    assert "Check start in" in ended.description
    assert not rig.supervisors()


def test_a_folder_that_cannot_be_written_is_said_to(rig: StartRig, monkeypatch: pytest.MonkeyPatch) -> None:
    (rig.folder / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(rig.folder / "file"))

    ended = rig.start()

    assert "cannot be created" in ended.description
    assert "XDG_STATE_HOME" in ended.description


def test_a_relative_script_and_log_are_of_the_working_directory(rig: StartRig) -> None:
    ended = rig.start(script="flights.py", working_directory=str(rig.folder), log_file="own.log")

    assert ended.is_success, ended.description
    assert ended.metadata["log_file"] == str(rig.folder / "own.log")
    assert "driver of generation 1" in (rig.folder / "own.log").read_text()


def test_what_belongs_to_another_driver_is_not_passed_on(rig: StartRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a code server that had a driver's environment gave it to the jobs that it started."""
    monkeypatch.setenv("COORD_RESTORE_FROM", "before-the-upgrade")
    monkeypatch.setenv("COORD_TEST_OF_MINE", "kept")
    assert rig.start().is_success
    environment = psutil.Process(rig.plane.client().job("flights").pid).environ()
    assert environment["COORD_TEST_OF_MINE"] == "kept"
    assert "COORD_RESTORE_FROM" not in environment


def test_a_dead_driver_whose_lease_is_not_over_does_not_count(rig: StartRig) -> None:
    plane = rig.plane
    silence(plane.driver())
    assert plane.client().job("flights").is_alive

    ended = rig.start()

    assert ended.is_success, ended.description
    assert ended.metadata["generation"] == "2"


def test_a_driver_that_is_on_its_way_is_waited_for(rig: StartRig) -> None:
    plane = rig.plane
    driver = plane.driver()
    driver.was_ready = False
    eventually(lambda: plane.client().job("flights").state is JobState.STARTING)

    def begin() -> None:
        eventually(lambda: any("flights is starting" in line for line in lines(rig)))
        driver.was_ready = True

    with meanwhile(begin):
        ended = rig.start()

    assert ended.is_success, ended.description
    assert (ended.metadata["generation"], ended.metadata["was_launched"]) == ("1", False)
    assert not rig.launches()


def test_an_upgrade_brings_the_job_to_the_program_of_its_definition_or_says_why_not(rig: StartRig) -> None:
    """A job that Dagster has started can be upgraded; this driver does not compare itself with a checkpoint."""
    assert rig.start().is_success
    client = rig.plane.client()
    client.wait(client.trigger_checkpoint("flights"), 60.0)

    same = rig.actions.run("upgrade_streaming_job", verify_seconds=1.0)

    assert f"it runs {rig.script} already" in same.description
    (rig.folder / "next.py").write_text("raise SystemExit('next.py has begun')")
    rig.actions.jobs = (StreamingJobSpec(name="flights", start=rig.spec(script=str(rig.folder / "next.py"))),)

    refused = rig.actions.run("upgrade_streaming_job", verify_seconds=1.0)

    assert not refused.is_success
    assert f"job flights runs on with {rig.script}; nothing was changed: " in refused.description
    assert "it ended with" in refused.description
    assert (refused.metadata["step"], client.job("flights").generation) == ("refused", 1)
    assert refused.has_said("checking ")
    again = rig.actions.run("upgrade_streaming_job", again=refused, verify_seconds=1.0)
    assert not again.has_said("checking ")  # it is the same request
    assert again.metadata["upgrade"] == refused.metadata["upgrade"]


def test_a_restore_and_a_start_are_one_run(rig: StartRig) -> None:
    client = rig.plane.client()
    assert rig.start().is_success
    client.wait(client.trigger_savepoint("flights", label="mine"), 60.0)
    assert rig.actions.run("stop_streaming_job").is_success

    ended = rig.actions.run("restore_streaming_job", ref="mine", start=True)

    assert ended.is_success, ended.description
    assert (ended.metadata["way"], ended.metadata["was_launched"]) == ("storage", True)
    assert client.job("flights").is_alive

    running = rig.actions.run("restore_streaming_job", ref="mine", start=True)

    assert running.is_success, running.description
    assert (running.metadata["way"], running.metadata["was_launched"]) == ("driver", False)
    assert int(running.metadata["generation"]) > int(ended.metadata["generation"])
    assert {command.state for command in client.commands("flights")} == {CommandState.COMPLETED}


def lines(rig: StartRig) -> list[str]:
    runs = rig.actions.instance.get_runs(limit=1)
    return [entry.user_message for run in runs for entry in rig.actions.instance.all_logs(run.run_id)]
