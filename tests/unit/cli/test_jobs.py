from __future__ import annotations

import json
from pathlib import Path

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.storage.records import ENDED_TO_RESTART, CheckpointState, JobState
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run, run_json


def test_jobs_are_listed_with_what_they_are_and_not_what_they_last_said(tmp_path: Path, store: ControlStore) -> None:
    kit.put_job(store, "lost", lease_seconds=0.001)
    kit.put_job(store, "over")
    store.jobs.ended("over", 1, JobState.ENDED, "stopped")

    lines = {line.split()[0]: line for line in run(tmp_path, "jobs").splitlines() if line.strip()}

    assert "starting" in lines["flights"]
    assert "lost since" in lines["lost"]
    assert "ended" in lines["over"]
    assert [(job["name"], job["is_alive"]) for job in run_json(tmp_path, "jobs")] == [
        ("flights", True),
        ("lost", False),
        ("over", False),
    ]
    assert not {"queries", "operators"} & run_json(tmp_path, "jobs")[0].keys(), "these are not read"


def test_what_a_driver_said_before_it_died_is_not_shown_as_if_it_were_so(tmp_path: Path, store: ControlStore) -> None:
    """Bug: the queries of a killed driver were running."""
    kit.put_live(store)
    assert "as of the driver's last heartbeat" not in run(tmp_path, "show", "flights")
    kit.put_job(store, lease_seconds=0.001)
    kit.put_live(store)
    shown = run(tmp_path, "show", "flights")
    assert [shown.count(f"{each}, as of the driver's last heartbeat") for each in ("queries", "operators")] == [1, 1]
    assert [query["state"] for query in run_json(tmp_path, "show", "flights")["job"]["queries"]] == ["lost"]


def test_a_database_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "there is no control database at" in run(tmp_path, "jobs", code=78)
    assert run_json(tmp_path, "jobs", code=78)["error"]["type"] == "DatabaseNotFound"


def test_show_has_everything_on_one_page(tmp_path: Path, store: ControlStore) -> None:
    kit.put_live(store)
    kit.put_checkpoint(store, 1, label="nightly")
    kit.put_checkpoint(store, 2, state=CheckpointState.IN_PROGRESS, passed_subtasks=3)

    shown = run(tmp_path, "show", "flights")

    for expected in (
        "job flights: starting, generation 1",
        "supervised by coordctl run",
        "1,234",
        "56,789",
        "2.5 s",
        "nightly",
    ):
        assert expected in shown
    assert "3 of 4 subtasks" in shown
    assert "metrics: http://127.0.0.1:9404/metrics\n" in shown
    [gateway] = [line for line in shown.splitlines() if "closed" in line and "500 ms" in line]
    assert gateway.split()[:4] == ["delay-threshold", "2", "closed", "12"]
    assert run(tmp_path, "show", "flights", "--all-gateways").count(" open ") == 3
    document = run_json(tmp_path, "show", "flights")
    assert document["job"]["operators"][0]["blocked_now"] == 12
    assert [(each["id"], "queries" in each) for each in document["checkpoints"]] == [(2, False), (1, False)]


def test_a_job_that_is_over_says_since_when_and_why(tmp_path: Path, store: ControlStore) -> None:
    store.jobs.ended("flights", 1, JobState.FAILED, "ValueError: boom")

    shown = run(tmp_path, "show", "flights")

    assert "not running since" in shown
    assert "ValueError: boom" in shown


def test_a_job_that_is_being_started_again_is_restarting(tmp_path: Path, store: ControlStore) -> None:
    assert store.jobs.get("flights").is_supervised
    store.jobs.ended("flights", 1, reason=ENDED_TO_RESTART)

    assert "restarting" in run(tmp_path, "jobs")
    assert "job flights: restarting, generation 1" in run(tmp_path, "show", "flights")
    stop = run_json(tmp_path, "stop", "flights", "--no-wait")
    assert stop["state"] == "pending"


def test_a_killed_driver_whose_supervisor_lives_is_not_just_lost(tmp_path: Path, store: ControlStore) -> None:
    kit.put_job(store, "killed", lease_seconds=0.001)
    kit.put_job(store, "alone", lease_seconds=0.001, is_supervised=False)

    assert "UTC; coordctl run restarts it, if it still runs; in /" in run(tmp_path, "show", "killed")
    assert "restarting it" not in run(tmp_path, "show", "alone")


def test_a_job_that_was_to_start_again_and_has_no_supervisor_is_lost(tmp_path: Path, store: ControlStore) -> None:
    kit.put_job(store, generation=2, is_supervised=False)
    store.jobs.ended("flights", 2, reason=ENDED_TO_RESTART)

    assert "lost since" in run(tmp_path, "jobs")
    assert ENDED_TO_RESTART in run(tmp_path, "show", "flights")


@pytest.mark.parametrize("command", ["show", "watch", "logs", "stop", "recoveries", "generations", "forget"])
def test_a_wrong_job_is_answered_with_the_near_ones(tmp_path: Path, store: ControlStore, command: str) -> None:
    assert "did you mean flights?" in run(tmp_path, command, "flihgts", code=78)


def test_watch_once_is_one_look(tmp_path: Path, store: ControlStore) -> None:
    assert "job flights" in run(tmp_path, "watch", "flights", "--once")
    line = run(tmp_path, "watch", "flights", "--once", "--json")
    assert line.count("\n") == 1
    assert json.loads(line)["job"]["name"] == "flights"


def test_watch_for_machines_is_a_line_a_look_until_somebody_ends_it(
    tmp_path: Path, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _three_looks(monkeypatch, store)

    lines = run(tmp_path, "watch", "flights", "--json", "--interval", "1ms", code=130).splitlines()

    assert [json.loads(line)["checkpoints"][:1] != [] for line in lines] == [False, True, True]


def test_watch_for_people_draws_every_look(
    tmp_path: Path, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _three_looks(monkeypatch, store)

    assert "/jobs/flights/checkpoints/2" in run(tmp_path, "watch", "flights", "--interval", "1ms", code=130)


def _three_looks(monkeypatch: pytest.MonkeyPatch, store: ControlStore) -> None:
    """Between two looks a checkpoint is completed; at the third one somebody presses Ctrl-C."""
    looks = iter((1, 2, None))

    def sleep(seconds: float) -> None:
        number = next(looks)
        if number is None:
            raise KeyboardInterrupt
        kit.put_checkpoint(store, number)

    monkeypatch.setattr("coord_control.control.client.reader.time.sleep", sleep)


def test_nothing_that_users_wrote_is_obeyed(tmp_path: Path, store: ControlStore) -> None:
    kit.put_checkpoint(store, 1, label=kit.NASTY, state=CheckpointState.FAILED, reason="TIMEOUT", message=kit.NASTY)
    kit.put_recovery(store, kit.NASTY)
    with ControlClient(actor=kit.NASTY, settings=kit.settings(tmp_path)) as client:
        command = client.trigger_checkpoint("flights", label=kit.NASTY)

    for arguments in (
        ("show", "flights"),
        ("watch", "flights", "--once"),
        ("checkpoint", "list", "flights"),
        ("checkpoint", "show", "flights", "1"),
        ("recoveries", "flights"),
        ("audit",),
        ("command", "list"),
        ("command", "show", command.id),
    ):
        for shown in (run(tmp_path, *arguments), run(tmp_path, *arguments, "--json")):
            assert "[red]x[/red]" in shown, arguments
            assert not set("\x1b\x07\x9b\u202e") & set(shown), arguments
