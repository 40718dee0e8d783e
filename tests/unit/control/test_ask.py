"""Requests to operators, from the database through the agent to the coordinator and back."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from coord_control.control import commands
from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import take_over
from coord_control.control.execution.command import Again
from coord_control.coordinators import Request
from coord_control.errors import CommandExpired, CommandRefused, JobNotRunning, RequestInvalid
from coord_control.storage.records import CommandKind, CommandState, Outcome, RequestType
from tests import records_kit as records
from tests.agent_kit import JOB, OPERATOR, ScriptedDriver
from tests.patience import SECONDS, eventually
from tests.unit.control.agent_rig import AgentRig


class Answer(BaseModel):
    asked: dict[str, Any]


class Current(Request[Answer]):
    carrier: str = "UA"


class Unknown(Request[Answer]):
    pass


@pytest.fixture
def client(rig: AgentRig) -> ControlClient:
    made = ControlClient(settings=rig.settings)
    rig.cleanup.callback(made.close)
    return made


def submit(rig: AgentRig, seconds: float = SECONDS) -> str:
    payload = {"operator": OPERATOR, "request": "Current", "payload": {}}
    asked = records.request(CommandKind.ASK, operator=OPERATOR, payload=payload, expires_seconds=seconds)
    return rig.store.commands.submit(asked).id


def code_of(rig: AgentRig, command: str) -> tuple[CommandState, str, bool]:
    done = rig.outcome(command)
    assert done.error is not None
    return done.state, done.error.code, done.error.retry


def test_a_question_is_answered(rig: AgentRig, client: ControlClient) -> None:
    rig.driver()
    assert client.ask(JOB, OPERATOR, Current(), timeout=SECONDS) == Answer(asked={"carrier": "UA"})
    [asked] = rig.store.commands.list(JOB)
    assert (asked.kind, asked.operator, asked.state) == (CommandKind.ASK, OPERATOR, CommandState.COMPLETED)


def test_the_database_knows_what_can_be_asked(rig: AgentRig) -> None:
    rig.driver()
    eventually(lambda: rig.store.jobs.get(JOB).operators)
    [operator] = rig.store.jobs.get(JOB).operators
    assert [each.name for each in operator.event_types] == ["Threshold"]
    [request] = operator.request_types
    assert isinstance(request, RequestType)
    assert (request.name, request.answer["properties"]) == ("Current", {"minutes": {"type": "integer"}})


def test_what_cannot_be_asked_is_refused(rig: AgentRig, client: ControlClient) -> None:
    rig.driver()
    for operator, request, code in (
        (OPERATOR, Unknown(), "UNKNOWN_REQUEST"),
        ("another", Current(), "UNKNOWN_OPERATOR"),
    ):
        with pytest.raises(CommandRefused) as refused:
            client.ask(JOB, operator, request, timeout=SECONDS)
        assert (refused.value.code, refused.value.retry) == (code, False)
    with pytest.raises(RequestInvalid, match="the limit is 65536"):
        client.ask(JOB, OPERATOR, Current(carrier="x" * commands.MAX_REQUEST_BYTES))


def test_an_answer_that_does_not_fit_this_version_of_its_model_is_an_error(
    rig: AgentRig, client: ControlClient
) -> None:
    class Newer(BaseModel):
        answered: int

    class Current(Request[Newer]):
        pass

    rig.driver()
    with pytest.raises(ValidationError, match="answered"):
        client.ask(JOB, OPERATOR, Current(), timeout=SECONDS)


def test_a_question_waits_until_the_operator_can_answer(rig: AgentRig) -> None:
    driver, _ = rig.driver()
    driver.is_away = True
    asked = submit(rig)
    eventually(lambda: rig.store.commands.get(asked).state is CommandState.CLAIMED)
    driver.is_away = False
    assert rig.outcome(asked).result == {"answer": {"asked": {}}}


@pytest.mark.parametrize("is_away", [True, False])
def test_a_question_that_has_waited_too_long_is_refused(rig: AgentRig, *, is_away: bool) -> None:
    driver, _ = rig.driver()
    driver.is_away, driver.is_silent = is_away, True
    asked = submit(rig, seconds=1.0)
    assert code_of(rig, asked) == (CommandState.REFUSED, "NOT_ANSWERED", True)
    if not is_away:
        [(future, _)] = driver.asked
        assert future.cancelled(), "the coordinator would answer nobody"


def test_a_question_that_no_driver_takes_expires(rig: AgentRig, client: ControlClient) -> None:
    driver, _ = rig.driver()
    driver.was_ready = False
    with pytest.raises(CommandExpired):
        client.ask(JOB, OPERATOR, Current(), timeout=0.1)


def test_other_commands_do_not_wait_for_a_question(rig: AgentRig) -> None:
    driver, _ = rig.driver()
    driver.is_silent = True
    asked = submit(rig)
    eventually(lambda: driver.asked)
    assert rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED
    driver.answer()
    assert rig.outcome(asked).state is CommandState.COMPLETED


def test_the_next_driver_answers_what_this_one_did_not(rig: AgentRig) -> None:
    silent, agent = rig.driver()
    silent.is_silent = True
    asked = submit(rig)
    eventually(lambda: silent.asked)
    rig.driver()
    assert rig.outcome(asked).result == {"answer": {"asked": {}}}
    assert rig.store.commands.get(asked).generation == 2
    agent.close(is_fenced=True)


def test_a_question_whose_driver_has_died_is_not_answered_after_its_time(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    payload = {"operator": OPERATOR, "request": "Current", "payload": {}}
    driver = ScriptedDriver(tmp_path)
    for seconds, is_over in ((1.0, False), (0.0, True)):
        expires = now + datetime.timedelta(seconds=seconds)
        command = records.command(CommandKind.ASK, payload=payload, generation=1, expires_at=expires)
        found = take_over(command, driver, now)
        if is_over:
            assert isinstance(found, Outcome)
            assert found.error is not None
            assert (found.error.code, found.error.retry) == ("NOT_ANSWERED", True)
        else:
            assert found == Again()


@pytest.mark.parametrize("is_supervised", [True, False])
def test_at_the_end_of_the_job_a_question_is_refused_unless_a_driver_follows(
    rig: AgentRig, *, is_supervised: bool
) -> None:
    driver, _ = rig.driver(is_supervised=is_supervised)
    driver.is_silent = True
    asked = submit(rig)
    eventually(lambda: driver.asked)
    rig.ask(CommandKind.RESTART if is_supervised else CommandKind.STOP)
    eventually(driver.ended.is_set)
    if is_supervised:
        eventually(lambda: rig.store.jobs.get(JOB).is_restarting)
        rig.driver(is_supervised=True)
        assert rig.outcome(asked).state is CommandState.COMPLETED
    else:
        assert code_of(rig, asked) == (CommandState.REFUSED, "JOB_CLOSED", True)


def test_a_job_that_does_not_run_answers_nothing(rig: AgentRig, client: ControlClient) -> None:
    driver, _ = rig.driver()
    driver.stop()
    with pytest.raises(JobNotRunning):
        client.ask(JOB, OPERATOR, Current())
