"""Live values: what the agent does with requests, on a real database and storage, with a scripted driver."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.storage.records import CommandKind, CommandState
from tests.agent_kit import LIVE
from tests.unit.control.agent_rig import AgentRig


def change(rig: AgentRig, minutes: object, name: str = LIVE, expect: int | None = None) -> str:
    return rig.ask(CommandKind.SET_LIVE, name=name, fields={"minutes": minutes}, expect=expect)


def value(rig: AgentRig, name: str = LIVE) -> dict[str, Any]:
    result = rig.outcome(rig.ask(CommandKind.GET_LIVE, name=name)).result
    assert result is not None
    return result


def test_a_change_is_completed_when_it_is_accepted_and_says_who_has_set_it(rig: AgentRig) -> None:
    rig.driver()
    done = rig.outcome(change(rig, 45))
    assert done.state is CommandState.COMPLETED
    assert done.result is not None
    assert (done.result["version"], done.result["value"], done.result["by"]) == (2, {"minutes": 45}, done.requested_by)
    assert done.result["queries"] == {"q": {"version": 2, "since": 3, "next_epoch": None}}
    assert value(rig) == done.result


@pytest.mark.parametrize(
    ("name", "minutes", "expect", "code"),
    [
        ("nothing", 45, None, "UNKNOWN_LIVE_VALUE"),
        (LIVE, "soon", None, "LIVE_VALUE_INVALID"),
        (LIVE, 45, 7, "LIVE_VERSION_CHANGED"),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_the_reason(
    rig: AgentRig, name: str, minutes: object, expect: int | None, code: str
) -> None:
    rig.driver()
    done = rig.outcome(change(rig, minutes, name, expect))
    assert done.state is CommandState.REFUSED
    assert done.error is not None
    assert done.error.code == code
    assert [field["loc"] for field in done.error.fields] == ([["minutes"]] if code == "LIVE_VALUE_INVALID" else [])
    assert value(rig)["version"] == 1


def test_changes_are_made_in_the_order_of_the_requests(rig: AgentRig) -> None:
    rig.driver()
    commands = [change(rig, minutes) for minutes in range(10)]
    results = [rig.outcome(command).result or {} for command in commands]
    assert [result["version"] for result in results] == list(range(2, 12))
    assert [result["value"]["minutes"] for result in results] == list(range(10))


def test_a_change_whose_driver_has_died_before_it_could_say_so_is_not_made_twice(rig: AgentRig) -> None:
    first, agent = rig.driver()
    command = change(rig, 45)
    made = rig.outcome(command)
    agent.close(is_fenced=True)
    assert first.set_live(LIVE, {"minutes": 45}, None, command, "me").result().version == 2, "it is known by its id"
    # As if the first one had not written the outcome: the next driver is asked for the same again.
    second, _ = rig.driver()
    again = second.set_live(LIVE, {"minutes": 45}, None, command, "me").result()
    assert (made.result or {})["version"] == again.version == 2
    assert rig.outcome(change(rig, 46, expect=2)).state is CommandState.COMPLETED


def test_a_request_for_a_value_that_is_not_there_is_refused(rig: AgentRig) -> None:
    rig.driver()
    done = rig.outcome(rig.ask(CommandKind.GET_LIVE, name="nothing"))
    assert done.error is not None
    assert (done.state, done.error.code) == (CommandState.REFUSED, "UNKNOWN_LIVE_VALUE")
