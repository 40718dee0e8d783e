from __future__ import annotations

from pathlib import Path

import pytest

from coord_control.storage.records import (
    CheckpointKind,
    CheckpointState,
    JobState,
)
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run, run_json
from tests.records_kit import operator_part, query_part


def test_trigger_waits_and_shows_how_many_subtasks_are_through(tmp_path: Path, store: ControlStore) -> None:
    # The driver goes on when its progress was seen: whoever looks twice in between sees one of the two.
    with kit.driver(tmp_path):
        shown = run(tmp_path, "checkpoint", "trigger", "flights", "--label", "nightly")

    assert "checkpoint 7: /jobs/flights/checkpoints/7" in shown
    assert "2.0 MB in 1.5 s; alerts after epoch 42" in shown


def test_trigger_for_machines_is_the_finished_command(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path):
        command = run_json(tmp_path, "checkpoint", "trigger", "flights")

    assert (command["state"], command["result"]["checkpoint"]) == ("completed", 7)


def test_without_waiting_the_command_is_only_recorded(tmp_path: Path, store: ControlStore) -> None:
    shown = run(tmp_path, "checkpoint", "trigger", "flights", "--no-wait", "--key", "k")
    again = run_json(tmp_path, "checkpoint", "trigger", "flights", "--no-wait", "--key", "k")

    assert f"command {again['id']} is pending; check it with: coordctl command show {again['id']}" in shown


def test_a_wait_that_is_over_leaves_the_command_alone(tmp_path: Path, store: ControlStore) -> None:
    shown = run(tmp_path, "checkpoint", "trigger", "flights", "--timeout", "1ms", code=75)

    assert "still pending" in shown
    assert [each["state"] for each in run_json(tmp_path, "command", "list")] == ["pending"]


def test_a_job_that_does_not_run_is_said_with_what_to_do(tmp_path: Path, store: ControlStore) -> None:
    store.jobs.ended("flights", 1, JobState.ENDED, "stopped by a user")

    shown = run(tmp_path, "checkpoint", "trigger", "flights", code=75)

    assert "has not been running since" in shown
    assert "start it with: coordctl run" in shown


def test_a_key_of_another_request_is_a_usage_of_the_wrong_key(tmp_path: Path, store: ControlStore) -> None:
    run(tmp_path, "checkpoint", "trigger", "flights", "--no-wait", "--key", "k")
    assert "use a new key" in run(tmp_path, "checkpoint", "abort", "flights", "7", "--key", "k", code=78)


def test_the_history_is_listed_in_pages(tmp_path: Path, store: ControlStore) -> None:
    for number in range(1, 6):
        kit.put_checkpoint(store, number, kind=CheckpointKind.SAVEPOINT if number == 3 else CheckpointKind.CHECKPOINT)
    kit.put_checkpoint(store, 6, state=CheckpointState.FAILED, reason="TIMEOUT", message="too slow")

    def ids(*options: str) -> list[int]:
        return [each["id"] for each in run_json(tmp_path, "checkpoint", "list", "flights", *options)]

    assert ids() == [6, 5, 4, 3, 2, 1]
    assert ids("--limit", "2") == [6, 5]
    assert ids("--before", "3") == [2, 1]
    assert ids("--kind", "savepoint") == [3]
    assert ids("--state", "failed") == [6]
    assert ids("--by", "eve") == []
    assert "TIMEOUT: too slow" in run(tmp_path, "checkpoint", "list", "flights")
    assert "no such checkpoint" in run(tmp_path, "checkpoint", "list", "flights", "--state", "discarded")


def test_one_is_shown_with_its_parts(tmp_path: Path, store: ControlStore) -> None:
    kit.put_checkpoint(store, 7)

    shown = run(tmp_path, "checkpoint", "show", "flights", "7", "--subtasks")

    for expected in ("checkpoint 7 of job flights: completed", "1.2 MB", "12 events were blocked", "4 of 4", "offsets"):
        assert expected in shown
    assert '{"logOffset": 47}' in shown
    assert "acknowledged after" in shown
    assert len([line for line in shown.splitlines() if " 40 ms" in line and "100 ms" in line]) == 4
    assert len(run_json(tmp_path, "checkpoint", "show", "flights", "7", "--subtasks")["subtask_parts"]) == 4
    assert "did you mean" in run(tmp_path, "checkpoint", "show", "flights", "8", code=78)


@pytest.mark.parametrize(
    ("asked", "took", "expected"), [(None, None, "not asked"), (0.0, None, "no answer"), (0.0, 0.25, "250 ms")]
)
def test_one_that_failed_shows_what_it_waited_for(
    tmp_path: Path, store: ControlStore, asked: float | None, took: float | None, expected: str
) -> None:
    operator = operator_part(operator="op", asked_seconds=asked, snapshot_seconds=took, subtasks=2, passed_subtasks=1)
    reached = query_part(query="ranks", boundary=3, boundary_seconds=0.5)
    queries = (query_part(query="alerts", boundary=47, operators=(operator,)), reached)
    kit.put_checkpoint(store, 7, state=CheckpointState.FAILED, reason="expired", message="too slow", queries=queries)

    shown = run(tmp_path, "checkpoint", "show", "flights", "7").splitlines()

    assert any("alerts" in line and "not reached" in line for line in shown)
    assert any("ranks" in line and "500 ms" in line for line in shown)
    assert any("1 of 2" in line and expected in line for line in shown)


def test_the_summary_has_counts_and_percentiles(tmp_path: Path, store: ControlStore) -> None:
    for number in range(1, 101):
        kit.put_checkpoint(store, number, duration_seconds=number / 10)

    shown = run(tmp_path, "checkpoint", "summary", "flights")

    assert "100 completed" in shown
    [took] = [line for line in shown.splitlines() if "took" in line and "coordinators" not in line]
    assert took.split()[1:4] == ["100", "100", "ms"]
    assert "10.0 s" in took
    assert run_json(tmp_path, "checkpoint", "summary", "flights", "--window", "10")["duration"]["minimum"] == 9.1


def test_an_abort_names_what_was_given_up(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path, lambda store, command: kit.completed(checkpoint=command.payload["checkpoint"])):
        assert "checkpoint 7 was aborted" in run(tmp_path, "checkpoint", "abort", "flights", "7")
