"""Live values on a job's page, and the forms that change them and send control events."""

from __future__ import annotations

import datetime
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from coord_control.control.client.control_client import ControlClient
from coord_control.storage.records import CommandKind, CommandState, EventType, LiveValueRecord, OperatorRecord
from coord_control.ui.app import make_app
from tests.agent_kit import LIVE, OPERATOR, ScriptedDriver, control_settings, make_agent, open_store
from tests.control_kit import JOB, NASTY, NOON, opened, put_job, settings
from tests.patience import eventually
from tests.ui.visitor import Visitor, text_of

TOKEN = "correct horse battery staple"
PAGE = f"/jobs/{JOB}"
ACTIONS = f"{PAGE}/actions"
SET = f"set:{LIVE}"
SEND = f"send:{OPERATOR}:Threshold"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[ScriptedDriver]:
    """A real agent carries out what is asked."""
    control = control_settings(tmp_path / "control.db")
    driver = ScriptedDriver(tmp_path / "jobs")
    agent = make_agent(driver, control, open_store(control))
    agent.start()
    driver.open_feed()
    yield driver
    agent.close()


@pytest.fixture
def client(tmp_path: Path, driver: ScriptedDriver) -> Iterator[ControlClient]:
    with ControlClient(settings=control_settings(tmp_path / "control.db")) as client:
        eventually(lambda: client.jobs() and client.job(JOB).live_values)
        yield client


@pytest.fixture
def actor(client: ControlClient) -> Visitor:
    return Visitor(make_app(client, token=TOKEN))


def form(action: str, **fields: str) -> dict[str, str]:
    return {
        "token": TOKEN,
        "key": "k",
        "action": action,
        **{name.replace("__", "."): text for name, text in fields.items()},
    }


# What everybody sees.


def test_a_job_shows_its_live_values_with_the_epochs_that_see_them_and_their_history(visitor: Visitor) -> None:
    text = visitor.text(PAGE)
    assert 'minutes = 45 share = 0.5 carrier = "UA" since = "2013-01-01" alerts = true' in text
    assert re.search(r"limits 3 .* dagster:run:4f0a alerts: version 3 since epoch 1800 ranks: version 2", text)
    assert "ranks: version 2 since epoch 1200, version 3 from epoch 1843 on" in text
    assert re.search(r'limits 3 carrier: null → "UA" dagster:run:4f0a alerts: epoch 1800', text)
    assert re.search(r"limits 2 minutes: 30 → 45 ada alerts: epoch 1200, ranks: epoch 1200", text)
    assert re.search(r"limits 1 minutes = 30 .* the default of the job", text)


def test_a_page_that_can_only_be_read_has_no_forms(visitor: Visitor) -> None:
    page = visitor.get(PAGE).text
    assert "<form" not in page
    assert "<details" not in page
    assert visitor.post(ACTIONS, data=form(SET, field__minutes="45")).status_code == 404


def test_a_job_without_live_values_says_nothing_of_them(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_job(store)
    with ControlClient(settings=settings(tmp_path)) as client:
        assert "Live values" not in Visitor(make_app(client)).text(PAGE)


# Changing a value.


def test_a_value_is_changed_with_a_form_and_the_page_shows_that(actor: Visitor, client: ControlClient) -> None:
    page = actor.get(PAGE).text
    assert '<input type="number" step="1" name="field.minutes" value="30"' in page
    answer = actor.post(ACTIONS, data=form(SET, field__minutes="45", version="1"))
    assert answer.status_code == 303
    text = actor.text(answer.headers["location"].partition("#")[0])
    assert "Set live: completed" in text
    assert re.search(rf"{LIVE} 2 minutes = 45", text)
    [command] = client.commands(JOB, kind=CommandKind.SET_LIVE)
    assert command.payload == {"name": LIVE, "fields": {"minutes": 45}, "expect": 1}
    assert client.live_changes(JOB)[0].by == command.requested_by


def test_a_form_that_is_sent_twice_is_one_change_and_another_content_is_another(
    actor: Visitor, client: ControlClient
) -> None:
    for minutes, version in (("45", "1"), ("45", "1"), ("46", "2")):
        assert actor.post(ACTIONS, data=form(SET, field__minutes=minutes, version=version)).status_code == 303
    assert [each.value for each in client.live_changes(JOB)] == [{"minutes": 46}, {"minutes": 45}, {"minutes": 30}]


def test_what_is_wrong_stands_beside_its_field_with_what_was_entered(actor: Visitor, client: ControlClient) -> None:
    answer = actor.post(ACTIONS, data=form(SET, field__minutes="4<5"))
    assert answer.status_code == 422
    assert re.search(r'value="4&lt;5"[^>]*aria-invalid="true"', answer.text)
    assert "Enter a whole number." in text_of(answer)
    assert 'data-refresh="0"' in answer.text, "a page that was posted cannot be fetched again"
    assert re.search(r'<details class="request" id="form-0" open>', answer.text)
    assert client.commands(JOB) == ()


def test_a_field_of_a_value_cannot_be_left_out(actor: Visitor, client: ControlClient) -> None:
    answer = actor.post(ACTIONS, data=form(SET, field__minutes=" ", version="1"))
    assert (answer.status_code, "Enter a value." in text_of(answer)) == (422, True)
    assert client.commands(JOB) == ()


def test_what_the_driver_finds_wrong_stands_beside_its_field_too(tmp_path: Path, driver: ScriptedDriver) -> None:
    # The schema in the database says less than the model.
    with ControlClient(settings=control_settings(tmp_path / "control.db")) as client:
        eventually(lambda: client.jobs() and client.job(JOB).live_values)
        actor = Visitor(make_app(client, token=TOKEN))
        command = client.set(JOB, LIVE, {"minutes": "soon"})
        eventually(lambda: client.command(command.id).is_finished)
        page = actor.get(f"{PAGE}?asked={command.id}")
    assert "Input should be a valid integer" in page.text.partition('id="form-0"')[2].partition("</details>")[0]
    assert re.search(r'value="soon"[^>]*aria-invalid="true"', page.text)


def test_a_value_that_somebody_else_has_changed_meanwhile_is_not_changed(actor: Visitor, client: ControlClient) -> None:
    actor.post(ACTIONS, data=form(SET, field__minutes="45", version="1"))
    answer = actor.post(ACTIONS, data=form(SET, field__minutes="50", version="1"))
    page = actor.get(answer.headers["location"].partition("#")[0])
    assert "has version 2, not 1" in page.text.partition('id="form-0"')[2].partition("</details>")[0]
    assert [each.version for each in client.live_changes(JOB)] == [2, 1]


def test_a_form_in_which_nothing_was_changed_sends_nothing(actor: Visitor, client: ControlClient) -> None:
    answer = actor.post(ACTIONS, data=form(SET, field__minutes="30", version="1"))
    assert (answer.status_code, "Nothing was changed." in text_of(answer)) == (422, True)
    assert client.commands(JOB) == ()


def test_forms_need_the_token_and_a_form_that_is_there(actor: Visitor, client: ControlClient) -> None:
    assert actor.post(ACTIONS, data={**form(SET, field__minutes="45"), "token": "wrong"}).status_code == 403
    for action in ("set:", "set:nothing", "send:nothing:Threshold", f"send:{OPERATOR}:", "set", SEND + ":"):
        assert actor.post(ACTIONS, data=form(action, field__minutes="45")).status_code == 400, action
    assert client.commands(JOB) == ()


# Sending an event.


def test_an_event_is_sent_with_a_form(actor: Visitor, client: ControlClient, driver: ScriptedDriver) -> None:
    answer = actor.post(ACTIONS, data=form(SEND, field__minutes="5", subtask="1"))
    assert answer.status_code == 303
    [command] = client.commands(JOB, kind=CommandKind.SEND_EVENT)
    assert command.payload == {"operator": OPERATOR, "event_type": "Threshold", "payload": {"minutes": 5}, "subtask": 1}
    assert command.number == 1, "it is accepted when the page comes back"
    driver.run_epoch()
    eventually(lambda: client.command(command.id).state is CommandState.COMPLETED)
    assert driver.recorded_events() == [5]


def test_a_subtask_that_is_no_number_is_a_problem_of_its_input(actor: Visitor, client: ControlClient) -> None:
    answer = actor.post(ACTIONS, data=form(SEND, field__minutes="5", subtask="-1"))
    assert (answer.status_code, "Enter the number of a subtask" in text_of(answer)) == (422, True)
    assert client.commands(JOB) == ()


# Every kind of field.


class Rules(BaseModel):
    """How to <judge> a flight."""

    minutes: int = Field(default=30, ge=1)
    mode: Literal["fast", "safe"] = "safe"
    since: datetime.date | None = None
    note: str | None = "two\nlines & <b>"
    alerts: bool = True
    names: list[str] = []


def put_rules(folder: Path, values: dict[str, Any]) -> None:
    evil = f"<script>alert(1)</script>{NASTY}"
    rules = LiveValueRecord(name="rules", version=7, value=values, by=evil, at=NOON, schema=Rules.model_json_schema())
    events = (
        EventType(name="Anything", schema={"type": "object"}),
        EventType(name="Rules", schema=Rules.model_json_schema()),
        EventType(name='"><i>', schema={"properties": {'"><i>': {"type": "string", "description": evil}}}),
    )
    with opened(folder) as store:
        put_job(store, operators=(OperatorRecord(uid="op", query="alerts", parallelism=2, event_types=events),))
        store.live.save(JOB, 1, [rules])


def test_each_kind_of_field_has_its_input_and_nothing_of_it_is_markup(tmp_path: Path) -> None:
    put_rules(tmp_path, Rules().model_dump(mode="json"))
    with ControlClient(settings=settings(tmp_path)) as client:
        page = Visitor(make_app(client, token=TOKEN)).get(PAGE).text
    assert '<input type="number" step="1" name="field.minutes" value="30"' in page
    assert ' min="1"' in page
    assert re.search(r'<option value="0">fast</option>\s*<option value="1" selected>safe</option>', page)
    assert '<input type="date" name="field.since" value=""' in page
    assert re.search(r'<textarea name="field.note"[^>]*>\ntwo\nlines &amp; &lt;b&gt;</textarea>', page)
    assert '<input type="checkbox" name="null.note">' in page
    assert re.search(r'<input type="checkbox" name="field.alerts" value="true"[^>]* checked>', page)
    assert re.search(r'<textarea name="field.names"[^>]*>\n\[\]</textarea>', page)
    assert "Its schema has no form. In a terminal: <code>coordctl event send flights op Anything JSON" in page
    assert "How to &lt;judge&gt; a flight." in page
    assert 'name="field.&#34;&gt;&lt;i&gt;"' in page
    for markup in ("<script>alert", "<i>", "<b>\n", "\x1b", "\u202e"):
        assert markup not in page


def test_each_kind_of_field_can_be_changed_and_taken_away(tmp_path: Path) -> None:
    put_rules(tmp_path, Rules(since=datetime.date(2026, 1, 31)).model_dump(mode="json"))
    fields = {
        "field__minutes": "45",
        "field__mode": "0",
        "field__since": "",
        "field__note": "a\r\nb",
        "field__names": '["x"]',
    }
    with ControlClient(settings=settings(tmp_path)) as client:
        actor = Visitor(make_app(client, token=TOKEN))
        assert actor.post(ACTIONS, data=form("set:rules", version="7", **fields)).status_code == 303
        [command] = client.commands(JOB)
    assert command.payload["fields"] == {
        "minutes": 45,
        "mode": "fast",
        "since": None,
        "note": "a\nb",
        "alerts": False,
        "names": ["x"],
    }
    assert command.payload["expect"] == 7


def test_a_text_that_was_written_next_to_the_box_for_no_value_is_not_dropped(tmp_path: Path) -> None:
    put_rules(tmp_path, Rules().model_dump(mode="json"))
    fields = {"field__minutes": "45", "field__mode": "0", "field__since": "", "field__names": "[]", "null__note": "on"}
    with ControlClient(settings=settings(tmp_path)) as client:
        visitor = Visitor(make_app(client, token=TOKEN))
        answer = visitor.post(ACTIONS, data=form("set:rules", field__note="us", **fields))
        assert (answer.status_code, "Clear the box" in html.unescape(answer.text)) == (422, True)
        assert client.commands(JOB) == ()
        # The text that was there before says nothing.
        answer = visitor.post(ACTIONS, data=form("set:rules", field__note=Rules().note or "", **fields))
        assert answer.status_code == 303
        [command] = client.commands(JOB)
    assert command.payload["fields"]["note"] is None


def test_a_form_shown_again_has_everything_that_was_entered(tmp_path: Path) -> None:
    put_rules(tmp_path, Rules().model_dump(mode="json"))
    fields = {"field__minutes": "0", "field__mode": "0", "field__since": "2026-02-30", "null__note": "on"}
    with ControlClient(settings=settings(tmp_path)) as client:
        answer = Visitor(make_app(client, token=TOKEN)).post(ACTIONS, data=form("set:rules", **fields))
        assert client.commands(JOB) == ()
    shown = html.unescape(answer.text.partition('id="form-0"')[2].partition("</details>")[0])
    assert "It must be at least 1." in shown
    assert "Enter a date, such as 2026-01-31." in shown
    assert re.search(r'<option value="0" selected>fast</option>', shown)
    assert re.search(r'name="null.note" checked', shown)
    assert not re.search(r'name="field.alerts"[^>]* checked', shown)
