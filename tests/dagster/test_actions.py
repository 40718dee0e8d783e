"""Every action: done, refused with reason and next step, of a job that is down, and not done twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from coord_control.dagster.definitions.action_jobs import build_jobs
from coord_control.dagster.spec import StartSpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.storage.records import CommandKind, CommandState
from tests.agent_kit import OPERATOR, ScriptedDriver
from tests.dagster.action_kit import Actions, Ended, meanwhile, saved_job
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import SECONDS, eventually

EVENT: dict[str, Any] = {"operator": OPERATOR, "event_type": "Threshold", "payload": {"minutes": 45}}


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path) as plane:
        yield plane


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


@pytest.fixture
def actions(plane: Plane, instance: dg.DagsterInstance) -> Actions:
    return Actions(plane, instance)


def names(*jobs: StreamingJobSpec) -> set[str]:
    return {job.name for job in build_jobs(jobs, StreamingJobTranslator())}


def checkpoints(plane: Plane, count: int) -> None:
    client = plane.client()
    for _ in range(count):
        client.wait(client.trigger_checkpoint("flights"), 30.0)


# Which actions there are, and of which jobs.


def test_a_job_can_be_started_only_if_it_is_known_how() -> None:
    plain, startable = StreamingJobSpec(name="a"), StreamingJobSpec(name="b", start=StartSpec(script="b.py"))
    assert names() == set()
    assert "start_streaming_job" not in names(plain)
    assert names(plain, startable) == names(plain) | {"start_streaming_job", "upgrade_streaming_job"}
    assert len(names(plain)) == 10


@pytest.mark.parametrize("name", ["flights-v2", "flights.eu", "2flights", "name", "value", "mro", "__init__"])
def test_any_name_of_a_job_can_be_chosen(plane: Plane, actions: Actions, name: str) -> None:
    actions.jobs = (StreamingJobSpec(name=name), StreamingJobSpec(name="other"))
    driver, other = plane.driver(name=name), plane.driver(name="other")

    ended = actions.run("stop_streaming_job", job=name)

    assert ended.is_success, ended.description
    assert (driver.ended.is_set(), other.ended.is_set()) == (True, False)


@pytest.mark.parametrize("name", ["flights", "flights-v2", "mro"])
def test_the_only_job_need_not_be_named(plane: Plane, actions: Actions, name: str) -> None:
    actions.jobs = (StreamingJobSpec(name=name),)
    driver = plane.driver(name=name)

    assert actions.run("stop_streaming_job").is_success
    assert driver.ended.is_set()


def test_one_of_several_jobs_must_be_named(actions: Actions) -> None:
    actions.jobs = (StreamingJobSpec(name="flights"), StreamingJobSpec(name="other"))

    with pytest.raises(dg.DagsterInvalidConfigError, match='Missing required config entry "job"'):
        actions.run("stop_streaming_job")
    with pytest.raises(dg.DagsterInvalidConfigError, match="flihgts"):
        actions.run("stop_streaming_job", job="flihgts")


def test_a_job_that_is_not_known_here_is_named_with_those_that_are(actions: Actions) -> None:
    actions.jobs = (StreamingJobSpec(name="mro"), StreamingJobSpec(name="other"))

    ended = actions.run("stop_streaming_job", job="flights")

    assert ended.description == "there is no job 'flights' here, only ['mro', 'other']. Nothing was done"


# All of them.

QUESTION: dict[str, Any] = {"operator": OPERATOR, "request": "Current"}

_ALL: dict[str, dict[str, Any]] = {
    "stop_streaming_job": {},
    "restart_streaming_job": {},
    "send_control_event": EVENT,
    "set_live_value": {"name": "limits", "fields": {"minutes": 45}},
    "ask_operator": QUESTION,
    "dispose_savepoint": {"ref": "1"},
    "verify_savepoint": {"ref": "1"},
}


@pytest.mark.parametrize("action", _ALL)
def test_a_job_that_is_down_fails_the_run_with_the_next_step(plane: Plane, actions: Actions, action: str) -> None:
    plane.driver().stop()

    ended = actions.run(action, **_ALL[action])

    assert "job 'flights' has not been running since" in ended.description
    assert "start_streaming_job" in ended.description
    assert ended.metadata["error"] == "JobNotRunning"


def test_a_job_that_has_never_run_fails_the_run(plane: Plane, actions: Actions) -> None:
    plane.driver(name="fights")

    ended = actions.run("stop_streaming_job")

    assert (ended.metadata["error"], "fights" in ended.description) == ("JobNotFound", True)


def test_a_database_that_is_not_there_fails_the_run(actions: Actions) -> None:
    ended = actions.run("stop_streaming_job")

    assert ended.metadata["error"] == "DatabaseNotFound"
    assert str(actions.plane.database) in ended.description


# Stop.


def test_a_job_is_stopped(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()

    ended = actions.run("stop_streaming_job", grace_seconds=5.0)

    assert ended.is_success, ended.description
    assert driver.ended.is_set()
    assert ended.has_said("job flights has stopped")
    (command,) = plane.client().commands("flights")
    assert (command.requested_by, command.payload["grace_seconds"]) == (f"dagster:run:{ended.run}", 5.0)


def test_a_job_is_stopped_with_a_savepoint(plane: Plane, actions: Actions, tmp_path: Path) -> None:
    driver = plane.driver()
    target = str(tmp_path / "last")

    ended = actions.run("stop_streaming_job", savepoint=True, label="last", target=target, drain=True)

    (command,) = plane.client().commands("flights")
    assert command.payload["drain"] is True
    assert driver.ended.is_set()
    assert (ended.metadata["checkpoint_id"], ended.metadata["path"], ended.metadata["label"]) == ("1", target, "last")
    assert ended.has_said(f"job flights has stopped after savepoint 1: {target}")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"savepoint": True, "grace_seconds": 1.0}, "grace_seconds cannot be combined with savepoint"),
        ({"label": "x"}, "label, target and drain apply to the savepoint"),
        ({"target": "/x"}, "label, target and drain apply to the savepoint"),
        ({"drain": True}, "label, target and drain apply to the savepoint"),
    ],
)
def test_a_stop_that_contradicts_itself_is_not_asked_for(
    plane: Plane, actions: Actions, config: dict[str, Any], problem: str
) -> None:
    driver = plane.driver()

    ended = actions.run("stop_streaming_job", **config)

    assert problem in ended.description
    assert ended.description.endswith("Nothing was done")
    assert not plane.client().commands("flights")
    assert not driver.ended.is_set()


def test_a_stop_that_took_too_long_is_found_again(plane: Plane, actions: Actions) -> None:
    driver = plane.driver(is_automatic=False)
    late = actions.run("stop_streaming_job", savepoint=True, timeout_seconds=0.5)
    assert "Re-execute the run from failure" in late.description
    eventually(lambda: plane.client().commands("flights")[0].checkpoint)
    driver.complete(1)
    eventually(driver.ended.is_set)

    again = actions.run("stop_streaming_job", again=late, savepoint=True, timeout_seconds=0.5)

    assert (again.is_success, again.metadata["checkpoint_id"]) == (True, "1")
    assert len(plane.client().commands("flights")) == 1


# Restart.


def start_next(plane: Plane, driver: ScriptedDriver) -> None:
    eventually(driver.ended.is_set)
    plane.driver(is_supervised=True)


def test_a_job_is_restarted(plane: Plane, actions: Actions) -> None:
    driver = plane.driver(is_supervised=True)

    with meanwhile(lambda: start_next(plane, driver)):
        ended = actions.run("restart_streaming_job")

    assert ended.is_success, ended.description
    assert driver.is_restarting
    assert ended.metadata == {"generation": "2"}


def test_a_job_that_nobody_would_start_again_is_not_restarted(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()

    ended = actions.run("restart_streaming_job")

    assert ended.metadata["reason"] == "NOT_SUPERVISED"
    assert "stop the job and start it again by hand" in ended.description
    assert not driver.ended.is_set()


def test_a_restart_is_not_repeated(plane: Plane, actions: Actions) -> None:
    driver = plane.driver(is_supervised=True)
    late = actions.run("restart_streaming_job", timeout_seconds=0.5)
    start_next(plane, driver)

    again = actions.run("restart_streaming_job", again=late)

    assert again.metadata == {"generation": "2"}
    assert len(plane.client().commands("flights")) == 1
    assert plane.client().job("flights").generation == 2


# Control events.


def apply(plane: Plane, driver: ScriptedDriver) -> None:
    """Run an epoch when the driver has an event."""
    eventually(lambda: plane.client().commands("flights", state=CommandState.CLAIMED))
    while plane.client().commands("flights", state=CommandState.CLAIMED):
        driver.run_epoch()


@pytest.mark.parametrize("payload", [{"minutes": 45}, json.dumps({"minutes": 45})])
def test_a_control_event_takes_effect(plane: Plane, actions: Actions, payload: object) -> None:
    driver = plane.driver()

    with meanwhile(lambda: apply(plane, driver)):
        ended = actions.run("send_control_event", **{**EVENT, "payload": payload})

    assert ended.is_success, ended.description
    assert driver.recorded_events() == [45]
    assert ended.metadata == {"number": 1, "operator": OPERATOR, "event_type": "Threshold"}


def test_a_payload_that_does_not_fit_is_shown_by_field(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()

    ended = actions.run("send_control_event", **{**EVENT, "payload": {"minutes": "many"}})

    said = (
        "the payload is not a valid Threshold of operator threshold: minutes: Input should be a valid integer. "
        "Nothing was sent"
    )
    assert ended.description == said
    assert "| minutes | Input should be a valid integer |" in ended.metadata["problems"]
    assert ended.metadata["reason"] == "EVENT_INVALID"
    driver.run_epoch()
    assert driver.recorded_events() == []


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"payload": "{minutes"}, "a payload given as text must be JSON"),
        ({"operator": "treshold"}, "did you mean threshold?"),
        ({"event_type": "Thresholds"}, "did you mean Threshold?"),
    ],
)
def test_what_is_no_control_event_is_not_sent(
    plane: Plane, actions: Actions, config: dict[str, Any], problem: str
) -> None:
    plane.driver()

    ended = actions.run("send_control_event", **{**EVENT, **config})

    assert problem in ended.description
    assert not plane.client().commands("flights")


def test_an_event_is_sent_once_however_often_the_run_is_repeated(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()
    late = actions.run("send_control_event", timeout_seconds=0.5, **EVENT)
    assert not late.is_success

    with meanwhile(lambda: apply(plane, driver)):
        ended = [actions.run("send_control_event", again=late, **EVENT) for _ in range(2)]

    assert [each.metadata["number"] for each in ended] == [1, 1]
    assert driver.recorded_events() == [45]


def test_a_repeated_run_cannot_ask_for_something_else(plane: Plane, actions: Actions) -> None:
    plane.driver()
    late = actions.run("send_control_event", timeout_seconds=0.5, **EVENT)

    again = actions.run("send_control_event", again=late, **{**EVENT, "payload": {"minutes": 46}})

    assert again.metadata["error"] == "KeyReused"
    assert "launch a new run for a different one" in again.description


def test_executing_all_of_it_anew_sends_another_event(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()
    ended: list[Ended] = []

    for _ in range(2):
        with meanwhile(lambda: apply(plane, driver)):
            before = ended[-1] if ended else None
            ended.append(actions.run("send_control_event", again=before, from_failure=False, **EVENT))

    assert [each.metadata["number"] for each in ended] == [1, 2]
    assert driver.recorded_events() == [45, 45]


# Dispose and verify.


def test_a_checkpoint_is_removed(plane: Plane, actions: Actions) -> None:
    plane.driver()
    checkpoints(plane, 2)
    path = plane.client().checkpoint("flights", 1).path
    assert path is not None

    ended = actions.run("dispose_savepoint", ref="1")

    assert ended.metadata == {"checkpoint_id": "1", "path": path}
    assert not Path(path).exists()


@pytest.mark.parametrize("action", ["dispose_savepoint", "verify_savepoint"])
def test_one_that_does_not_exist_is_said_to(plane: Plane, actions: Actions, action: str) -> None:
    plane.driver()
    checkpoints(plane, 1)

    ended = actions.run(action, ref="2")

    assert ended.metadata["reason"] == "CHECKPOINT_NOT_FOUND"
    assert "without a change will not help" in ended.description


@pytest.mark.parametrize(
    "action", ["dispose_savepoint", "verify_savepoint", "restore_streaming_job", "fork_streaming_job"]
)
def test_a_path_must_be_absolute(plane: Plane, actions: Actions, action: str) -> None:
    plane.driver()
    name: dict[str, Any] = {"as_name": "fork"} if action == "fork_streaming_job" else {}

    ended = actions.run(action, ref="savepoints/1", **name)

    assert "the path 'savepoints/1' must be absolute" in ended.description
    assert not plane.client().commands("flights")


def test_all_files_of_a_savepoint_are_read(plane: Plane, actions: Actions) -> None:
    plane.driver()
    savepoint = saved_job(plane.root, "counted")

    ended = actions.run("verify_savepoint", ref=savepoint)

    assert ended.is_success, ended.description
    assert (ended.metadata["path"], ended.metadata["intact"]) == (savepoint, True)
    assert ended.metadata["files"] > 5
    assert ended.metadata["file_bytes"] > 0
    assert "size_bytes" not in ended.metadata  # of a checkpoint that is everything, not its files alone


def test_a_damaged_savepoint_fails_the_run_and_names_the_file(plane: Plane, actions: Actions) -> None:
    plane.driver()
    savepoint = saved_job(plane.root, "counted")
    (state,) = (path for path in Path(savepoint).rglob("4.snapshot"))
    state.write_bytes(b"x" * state.stat().st_size)

    ended = actions.run("verify_savepoint", ref=savepoint)

    assert not ended.is_success
    assert f"{savepoint} is damaged: 1 of its" in ended.description
    assert "Restore another" in ended.description
    assert "4.snapshot" in ended.metadata["problems"]


# Questions.


@pytest.mark.parametrize("payload", [{"carrier": "UA"}, json.dumps({"carrier": "UA"})])
def test_an_answer_is_metadata(plane: Plane, actions: Actions, payload: object) -> None:
    plane.driver()

    ended = actions.run("ask_operator", **QUESTION, payload=payload)

    assert ended.is_success, ended.description
    assert ended.metadata == {"answer": {"asked": {"carrier": "UA"}}, "operator": OPERATOR, "request": "Current"}


def test_a_question_that_no_operator_answers_fails_the_run(plane: Plane, actions: Actions) -> None:
    plane.driver()

    ended = actions.run("ask_operator", **{**QUESTION, "request": "Currant"})

    assert "answers no request 'Currant', only ['Current']" in ended.description
    assert ended.metadata["reason"] == "UNKNOWN_REQUEST"


def test_a_question_is_not_waited_for_longer_than_it_may_take(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()
    driver.is_away = True

    ended = actions.run("ask_operator", **QUESTION, timeout_seconds=1.0)

    assert not ended.is_success
    driver.is_away = False
    again = actions.run("ask_operator", **QUESTION, again=ended)
    assert again.is_success, again.description


# Promotions.


def test_a_fork_is_promoted_once_and_says_how_to_go_back(plane: Plane, actions: Actions) -> None:
    actions.jobs = (StreamingJobSpec(name="flights"), StreamingJobSpec(name="copy"))
    parent = plane.driver()
    client = plane.client()
    client.wait(client.trigger_savepoint("flights", label="before"), SECONDS)
    assert actions.run("fork_streaming_job", job="flights", as_name="copy", ref="before").is_success
    fork = plane.driver(name="copy")

    early = actions.run("promote_streaming_job", job="copy", check_only=True)
    client.wait(client.trigger_checkpoint("copy"), SECONDS)
    checked = actions.run("promote_streaming_job", job="copy", check_only=True)
    ended = actions.run("promote_streaming_job", job="copy")
    again = actions.run("promote_streaming_job", again=ended, from_failure=False, job="copy")

    assert not early.is_success
    assert "it has completed no checkpoint since it was restored" in early.description
    assert (checked.is_success, checked.metadata["step"]) == (True, "ready")
    assert ended.is_success, ended.description
    assert (parent.ended.is_set(), fork.ended.is_set()) == (True, False)
    assert (ended.metadata["parent"], ended.metadata["label"]) == ("flights", "promoted-copy")
    assert "coordctl stop copy --savepoint" in ended.metadata["way_back"]
    assert again.has_said("had already taken the place of job flights")
    [stop] = client.commands("flights", kind=CommandKind.STOP_WITH_SAVEPOINT)
    assert stop.requested_by == f"dagster:run:{ended.run}"


def test_what_is_no_fork_is_not_promoted(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()

    ended = actions.run("promote_streaming_job")

    assert "job 'flights' cannot be promoted: it is not a fork" in ended.description
    assert ended.metadata["error"] == "NotPromotable"
    assert not driver.ended.is_set()
