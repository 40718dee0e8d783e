"""How far a control event is, for whoever waits for it."""

from __future__ import annotations

import re

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import EventStage, SendEventResult
from coord_control.errors import CommandFailed, CommandTimeout, ControlEventRefused
from coord_control.storage.records import CommandRecord
from tests.agent_kit import JOB, OPERATOR
from tests.patience import SECONDS, eventually
from tests.unit.control.agent_rig import AgentRig

ACCEPTED, APPLIED, DURABLE = EventStage


@pytest.fixture
def client(rig: AgentRig) -> ControlClient:
    made = ControlClient(settings=rig.settings)
    rig.cleanup.callback(made.close)
    return made


def send(client: ControlClient, minutes: int | str = 45) -> CommandRecord:
    return client.send_event(JOB, OPERATOR, "Threshold", {"minutes": minutes})


def declared(rig: AgentRig) -> None:
    eventually(lambda: rig.store.jobs.get(JOB).operators)


def test_an_event_is_accepted_applied_and_durable(rig: AgentRig, client: ControlClient) -> None:
    driver, _ = rig.driver()
    declared(rig)
    command = send(client)

    assert client.wait_event(command, timeout=SECONDS) == SendEventResult(number=1, stage=ACCEPTED)
    with pytest.raises(CommandTimeout):
        client.wait_event(command, APPLIED, timeout=0.1)
    driver.apply_events(0, 1)
    applied = client.wait_event(command, "applied", timeout=SECONDS)
    assert applied == SendEventResult(number=1, stage=APPLIED, sent_to=(0, 1))
    assert client.wait_event(command, timeout=SECONDS) == applied, "it says how far it is"
    with pytest.raises(CommandTimeout):
        client.wait_event(command, DURABLE, timeout=0.1)
    driver.run_epoch()
    durable = client.wait_event(command, DURABLE, timeout=SECONDS)
    assert durable == client.wait(command) == SendEventResult(number=1, stage=DURABLE, sent_to=(0, 1))
    assert client.wait_event(command) == durable


def test_an_event_that_does_not_fit_is_not_accepted(rig: AgentRig, client: ControlClient) -> None:
    rig.driver()
    declared(rig)
    with pytest.raises(ControlEventRefused):
        client.wait_event(send(client, "many"), timeout=SECONDS)


def test_an_event_that_its_coordinator_refuses_was_accepted(rig: AgentRig, client: ControlClient) -> None:
    driver, _ = rig.driver()
    declared(rig)
    command = send(client)
    assert client.wait_event(command, timeout=SECONDS).stage is ACCEPTED
    driver.refuse_event(1)
    for stage in (APPLIED, DURABLE):
        with pytest.raises(CommandFailed, match="the coordinator refused it"):
            client.wait_event(command, stage, timeout=SECONDS)


def test_the_next_driver_does_not_know_to_whom_an_event_was_sent(rig: AgentRig, client: ControlClient) -> None:
    first, agent = rig.driver()
    declared(rig)
    command = send(client)
    client.wait_event(command, timeout=SECONDS)
    agent.close(is_fenced=True)
    first.run_epoch()  # its begin record is durable, its outcome is not
    rig.driver()
    assert client.wait_event(command, DURABLE, timeout=SECONDS) == SendEventResult(number=1, sent_to=None)


def test_only_events_have_stages(rig: AgentRig, client: ControlClient) -> None:
    rig.driver()
    checkpoint = client.trigger_checkpoint(JOB)
    with pytest.raises(ValueError, match="sends no event"):
        client.wait_event(checkpoint)
    with pytest.raises(ValueError, match="sent"):
        client.wait_event(checkpoint, "sent")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (SendEventResult(number=3, stage=ACCEPTED), "event 3 is accepted: it takes effect with the next epoch"),
        (SendEventResult(number=3, stage=APPLIED, sent_to=()), "is applied, .*; nothing was sent to subtasks"),
        (
            SendEventResult(number=3, sent_to=(0, 1, 2, 5)),
            "has taken effect; subtasks 0-2, 5 get it with their next epoch",
        ),
        (SendEventResult(number=3), "has taken effect$"),
    ],
)
def test_a_result_says_who_gets_it(result: SendEventResult, text: str) -> None:
    assert re.search(text, result.text("j"))
