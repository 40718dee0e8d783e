"""Live values: what the agent does with requests, on a real database and storage, with a scripted driver."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.storage.records import CommandKind, CommandState
from tests.agent_kit import JOB, LIVE
from tests.patience import eventually
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


def test_who_has_seen_a_change_completed_finds_it_in_the_database_with_its_history(rig: AgentRig) -> None:
    rig.driver()
    for minutes in (45, 46, 47):
        done = rig.outcome(change(rig, minutes))
        [live] = rig.store.jobs.get(JOB).live_values
        assert (live.value, live.version, live.by) == ({"minutes": minutes}, (done.result or {})["version"], "ada")
    assert live.schema["properties"] == {"minutes": {"type": "integer"}}
    assert live.uses["q"].since == 3
    assert [(each.version, each.value["minutes"]) for each in rig.store.live.list(JOB)] == [
        (4, 47),
        (3, 46),
        (2, 45),
        (1, 30),
    ]


def test_a_change_of_the_drivers_program_is_written_with_a_heartbeat(rig: AgentRig) -> None:
    driver, _ = rig.driver()
    driver.set_live(LIVE, {"minutes": 50}, None, "k", "the driver's program").result()
    eventually(lambda: [each.version for each in rig.store.jobs.get(JOB).live_values] == [2])
    assert rig.store.live.list(JOB)[0].by == "the driver's program"


def test_the_next_driver_writes_the_changes_that_one_before_it_could_not_write(rig: AgentRig) -> None:
    first, agent = rig.driver()
    agent.close(is_fenced=True)  # it writes nothing more
    for minutes in (40, 41):
        first.set_live(LIVE, {"minutes": minutes}, None, f"k{minutes}", "ada").result()
    assert [each.version for each in rig.store.live.list(JOB)] in ([], [1])
    rig.driver()
    eventually(lambda: [each.version for each in rig.store.live.list(JOB)] == [3, 2, 1])
    assert rig.store.jobs.get(JOB).live_values[0].value == {"minutes": 41}


def test_changes_during_an_outage_of_the_database_are_in_the_history_after_it(rig: AgentRig) -> None:
    driver, agent = rig.driver()
    eventually(lambda: len(rig.store.live.list(JOB)) == 1)
    rig.away()
    eventually(lambda: not agent.is_connected)
    for minutes in (40, 41):
        driver.set_live(LIVE, {"minutes": minutes}, None, f"k{minutes}", "ada").result()
    rig.back()
    eventually(lambda: [each.version for each in rig.store.live.list(JOB)] == [3, 2, 1])


def test_the_last_change_before_the_end_of_a_job_is_written(rig: AgentRig) -> None:
    driver, agent = rig.driver()
    driver.set_live(LIVE, {"minutes": 40}, None, "k", "ada").result()
    driver.stop()
    eventually(lambda: not agent.is_connected)
    assert [each.version for each in rig.store.jobs.get(JOB).live_values] == [2]
