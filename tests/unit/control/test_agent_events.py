"""Control events: what the agent does with them, on a real database and storage, with a scripted driver."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from coord_control.control.agent import stored_numbers
from coord_control.errors import CheckpointNotFound, EventInvalid, StoreUnavailable
from coord_control.storage.records import CommandKind, CommandState
from coord_control.storage.retention import RetentionPolicy, prune
from tests.agent_kit import JOB, OPERATOR
from tests.patience import eventually
from tests.unit.control.agent_rig import (
    AgentRig,
)


@pytest.mark.parametrize(
    ("operator", "event_type", "minutes", "code"),
    [
        ("nobody", "Threshold", 1, "UNKNOWN_OPERATOR"),
        (OPERATOR, "Nothing", 1, "UNKNOWN_EVENT_TYPE"),
        (OPERATOR, "Threshold", "soon", "EVENT_INVALID"),
    ],
)
def test_an_event_that_cannot_be_is_refused_with_the_reason(
    rig: AgentRig, operator: str, event_type: str, minutes: object, code: str
) -> None:
    rig.driver()
    done = rig.outcome(rig.send(minutes, operator, event_type))
    assert done.state is CommandState.REFUSED
    assert done.error is not None
    assert done.error.code == code
    assert [field["loc"] for field in done.error.fields] == ([["minutes"]] if code == "EVENT_INVALID" else [])


def number(rig: AgentRig, command: str) -> int:
    """The number of an event that is completed."""
    result = rig.outcome(command).result
    assert result is not None
    return int(result["number"])


def test_events_take_effect_once_in_order_and_are_completed_when_a_record_contains_them(rig: AgentRig) -> None:
    driver, _ = rig.driver()
    commands = [rig.send(minutes) for minutes in (5, 6, 7)]
    eventually(lambda: driver.feed_status(OPERATOR).waiting == 3)  # type: ignore[arg-type]
    eventually(lambda: "durable" in (rig.store.commands.get(commands[2]).progress or {}).get("message", ""))
    assert rig.store.commands.get(commands[0]).state is CommandState.CLAIMED
    driver.run_epoch()
    assert [number(rig, command) for command in commands] == [1, 2, 3]
    assert driver.recorded_events() == [5, 6, 7]


def test_an_event_that_the_coordinator_raises_at_has_failed(rig: AgentRig) -> None:
    driver, _ = rig.driver()
    command = rig.send(5)
    eventually(lambda: driver.feed_status(OPERATOR).waiting)  # type: ignore[arg-type]
    driver.refuse_event(1)
    assert rig.outcome(command).state is CommandState.FAILED
    driver.open_feed()  # the query is restarted in place
    driver.run_epoch()
    assert driver.recorded_events() == []


@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_event_that_was_refused_is_not_reported_as_completed_by_the_next_driver(
    rig: AgentRig, is_recorded: bool
) -> None:
    first, agent = rig.driver()
    commands = [rig.send(minutes) for minutes in (5, 6)]
    eventually(lambda: first.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
    agent.close(is_fenced=True)  # the driver dies, and before it the way to the database
    first.refuse_event(2)
    if is_recorded:
        first.run_epoch()
    second, _ = rig.driver()
    if not is_recorded:  # for the new driver it has not happened: the event comes again, and is refused again
        eventually(lambda: second.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
        second.refuse_event(2)
        second.run_epoch()
    done = [rig.outcome(command) for command in commands]
    assert [each.state for each in done] == [CommandState.COMPLETED, CommandState.FAILED]
    assert done[1].error is not None
    assert done[1].error.code == "COORDINATOR_FAILED"
    assert second.recorded_events() == [5]
    third = rig.send(7)
    eventually(lambda: second.feed_status(OPERATOR).waiting == 1)  # type: ignore[arg-type]
    second.run_epoch()
    assert number(rig, third) == 3
    eventually(lambda: not second.feed_status(OPERATOR).refused)  # type: ignore[arg-type]


def test_retention_keeps_the_events_that_a_restore_to_a_savepoint_needs_again(rig: AgentRig) -> None:
    driver, _ = rig.driver()

    def done(*minutes: int) -> None:
        commands = [rig.send(each) for each in minutes]
        eventually(lambda: driver.feed_status(OPERATOR).waiting == len(minutes))  # type: ignore[arg-type]
        driver.run_epoch()
        assert [rig.outcome(command).state for command in commands] == [CommandState.COMPLETED] * len(minutes)

    done(5, 6)
    before = Path(driver.folder, "coordinator.json").read_text()
    assert rig.outcome(rig.ask(CommandKind.TRIGGER_SAVEPOINT)).state is CommandState.COMPLETED
    done(7, 8)
    assert rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED
    eventually(lambda: rig.store.jobs.get(JOB).operators[0].applied_number == 4)
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1000)
    prune(rig.store.database, RetentionPolicy(history=datetime.timedelta(0)), now=later)
    assert [each.number for each in rig.store.commands.events_after(JOB, OPERATOR, 0, include_completed=True)] == [
        3,
        4,
    ]

    driver.stop()
    Path(driver.folder, "coordinator.json").write_text(before)  # as a restore does
    second, _ = rig.driver()
    eventually(lambda: second.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
    second.run_epoch()
    assert second.recorded_events() == [5, 6, 7, 8]


def test_an_event_of_before_that_does_not_fit_the_program_after_a_restore_is_logged(
    rig: AgentRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the restored job missed it, and nothing said so."""
    driver, _ = rig.driver()
    command = rig.send(5)
    eventually(lambda: driver.feed_status(OPERATOR).waiting == 1)  # type: ignore[arg-type]
    driver.run_epoch()
    assert rig.outcome(command).state is CommandState.COMPLETED
    driver.stop()
    Path(driver.folder, "coordinator.json").unlink()  # as a restore to before its first epoch

    second, agent = rig.driver(is_ready_to_start=False)
    error = EventInvalid(OPERATOR, "Threshold", "minutes: Field required")
    monkeypatch.setattr(second, "check_event", Mock(side_effect=error))
    rig.start(second, agent)
    said = f"x control event 1 of command {command} cannot be delivered to operator {OPERATOR}"
    eventually(lambda: any(message.startswith(said) for message in caplog.messages))


def test_a_refusal_whose_record_is_lost_may_be_followed_by_success(rig: AgentRig) -> None:
    first, agent = rig.driver()
    command = rig.send(5)
    eventually(lambda: first.feed_status(OPERATOR).waiting)  # type: ignore[arg-type]
    agent.close(is_fenced=True)
    first.refuse_event(1)
    second, _ = rig.driver()
    eventually(lambda: second.feed_status(OPERATOR).waiting)  # type: ignore[arg-type]
    second.run_epoch()
    assert rig.outcome(command).state is CommandState.COMPLETED
    assert second.recorded_events() == [5]


def test_a_new_driver_gives_accepted_events_that_were_not_recorded(rig: AgentRig) -> None:
    first, agent = rig.driver()
    commands = [rig.send(minutes) for minutes in (5, 6)]
    eventually(lambda: first.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
    agent.close(is_fenced=True)  # as one that dies: nothing is said
    second, _ = rig.driver()
    eventually(lambda: second.feed_status(OPERATOR).waiting == 2)  # type: ignore[arg-type]
    third = rig.send(7)
    eventually(lambda: second.feed_status(OPERATOR).waiting == 3)  # type: ignore[arg-type]
    second.run_epoch()
    assert [number(rig, command) for command in (*commands, third)] == [1, 2, 3]
    assert second.recorded_events() == [5, 6, 7]


class StoredCheckpoints:
    """Checkpoints on the storage, by the number of the last event that each contains."""

    def __init__(self, *contained: Mapping[str, int] | Exception) -> None:
        self._contained = contained
        self.failures: list[Exception] = []

    def entries(self) -> list[Any]:
        if self.failures:
            raise self.failures.pop()
        return [SimpleNamespace(place=place, is_completed=True) for place in range(len(self._contained))]

    def read(self, entry: Any) -> Any:
        found = self._contained[entry.place]
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(operators={OPERATOR: SimpleNamespace(applied_events=found)})


@pytest.mark.parametrize("is_storage_away", [False, True])
def test_a_number_that_a_savepoint_contains_is_not_given_again(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch, is_storage_away: bool
) -> None:
    """Bug: after the loss of the database and a restore of an older savepoint, an event got the number of an event that
    a newer savepoint contains; a restore of that one lost it."""
    stored = StoredCheckpoints({JOB: 8}, CheckpointNotFound("2", "it is gone"), {JOB: 3, "fork": 20}, {})
    stored.failures = [StoreUnavailable("list", "/jobs", "it hangs")] if is_storage_away else []
    monkeypatch.setattr(stored_numbers, "catalog_of", lambda port: stored)
    driver, _ = rig.driver()
    events = [rig.send(minutes) for minutes in (5, 6, 7)]
    eventually(lambda: driver.feed_status(OPERATOR).waiting == 3)  # type: ignore[arg-type]
    driver.run_epoch()
    assert [number(rig, event) for event in events] == [9, 10, 11]
    assert driver.recorded_events() == [5, 6, 7]
