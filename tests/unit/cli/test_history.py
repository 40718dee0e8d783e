from __future__ import annotations

from pathlib import Path

from coord_control.control.client.control_client import ControlClient
from coord_control.storage.records import JobState
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run, run_json


def test_recoveries_say_why_and_from_where(tmp_path: Path, store: ControlStore) -> None:
    assert "never had to recover" in run(tmp_path, "recoveries", "flights")
    kit.put_recovery(store, "the JVM died")

    [line] = [line for line in run(tmp_path, "recoveries", "flights").splitlines() if "JVM" in line]

    assert "driver died" in line
    assert "3.0 s" in line
    assert [each["from_epoch"] for each in run_json(tmp_path, "recoveries", "flights")] == [40]


def test_the_audit_trail_says_who_and_with_which_outcome(tmp_path: Path, store: ControlStore) -> None:
    with ControlClient(actor="ann", settings=kit.settings(tmp_path)) as client:
        client.cancel(client.stop("flights"))

    assert f"ann@{client.host}" in run(tmp_path, "audit")
    entries = run_json(tmp_path, "audit", "flights")
    assert {each["actor"] for each in entries} == {"ann"}
    assert len(entries) == 2
    assert len(run_json(tmp_path, "audit", "--limit", "1")) == 1
    assert "did you mean flights" in run(tmp_path, "audit", "flight", code=78)


def test_generations_say_how_drivers_ended(tmp_path: Path, store: ControlStore) -> None:
    kit.put_job(store, generation=2)
    store.jobs.ended("flights", 2, JobState.ENDED, "stopped")

    assert [(each["generation"], each["is_clean"]) for each in run_json(tmp_path, "generations", "flights")] == [
        (2, True),
        (1, False),
    ]
    assert "generation 2 took over" in run(tmp_path, "generations", "flights")


def test_a_job_is_forgotten_only_when_it_does_not_run_and_somebody_says_yes(
    tmp_path: Path, store: ControlStore
) -> None:
    assert "has a driver" in run(tmp_path, "forget", "flights", "--yes", code=75)
    store.jobs.ended("flights", 1, JobState.ENDED)
    assert "remove the history of job flights?" in run(tmp_path, "forget", "flights", text="n\n", code=1)
    assert len(store.jobs.list()) == 1

    assert "removed the history of job flights; its storage is unchanged: /jobs/flights" in run(
        tmp_path, "forget", "flights", text="y\n"
    )
    assert store.jobs.list() == ()
