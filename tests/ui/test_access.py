"""Who may look and who may act: foreign names, headers, the token."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord_control.control.agent.agent import Agent
from coord_control.control.client.control_client import ControlClient
from coord_control.errors import PageSettingsInvalid
from coord_control.storage.records import CheckpointState, CommandKind, CommandState
from coord_control.storage.store import ControlStore
from coord_control.ui.access import Token, read_token
from coord_control.ui.app import make_app
from tests.agent_kit import ScriptedDriver, control_settings, make_agent, open_store
from tests.patience import SECONDS, eventually
from tests.ui.visitor import (
    Visitor,
    text_of,
)

TOKEN = "correct horse battery staple"
PAGE = "/jobs/flights"
ACTIONS = f"{PAGE}/actions"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[ScriptedDriver]:
    """A real agent carries out what is asked; checkpoints wait to be completed."""
    settings = control_settings(tmp_path / "control.db")
    driver = ScriptedDriver(tmp_path / "jobs", is_automatic=False)
    store: ControlStore = open_store(settings)
    agent: Agent = make_agent(driver, settings, store)
    agent.start()
    yield driver
    agent.close()


@pytest.fixture
def client(tmp_path: Path, driver: ScriptedDriver) -> Iterator[ControlClient]:
    with ControlClient(settings=control_settings(tmp_path / "control.db")) as client:
        eventually(lambda: client.jobs())
        yield client


@pytest.fixture
def actor(client: ControlClient) -> Visitor:
    return Visitor(make_app(client, token=TOKEN))


def form(action: str, key: str = "k", **more: str) -> dict[str, str]:
    return {"token": TOKEN, "key": key, "action": action, "label": "", **more}


# Names.


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:1", "[::1]:8765", "10.1.2.3", socket.gethostname()])
def test_addresses_and_this_machines_names_are_answered_to(visitor: Visitor, host: str) -> None:
    assert visitor.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "[::1", "", "@"])
def test_foreign_names_are_refused(visitor: Visitor, host: str) -> None:
    answer = visitor.get("/", headers={"host": host})
    assert answer.status_code == 400
    assert "flights" not in answer.text
    assert "--allow-host" in answer.text


def test_a_name_can_be_allowed(client: ControlClient) -> None:
    visitor = Visitor(make_app(client, names=["Jobs.Example.org"]))
    assert visitor.get("/", headers={"host": "jobs.example.org:443"}).status_code == 200
    assert visitor.get("/", headers={"host": "other.example.org"}).status_code == 400


def test_a_probe_asks_nothing_of_the_database(tmp_path: Path) -> None:
    with ControlClient(settings=control_settings(tmp_path / "control.db")) as client:
        answer = Visitor(make_app(client, token=TOKEN)).get("/healthz")
        assert (answer.status_code, answer.text) == (200, "ok\n")
        assert not (tmp_path / "control.db").exists()
        assert Visitor(make_app(client)).get("/healthz", headers={"host": "evil.example"}).status_code == 400


# Headers.


@pytest.mark.parametrize("path", ["/", PAGE, "/nowhere", "/static/live.js", "/static/nothing.js"])
def test_browsers_run_nothing_but_our_own_files(visitor: Visitor, path: str) -> None:
    headers = visitor.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == ("no-cache" if path == "/static/live.js" else "no-store")
    assert "set-cookie" not in headers


@pytest.mark.parametrize("path", ["/", PAGE, "/jobs/flights/checkpoints/30"])
def test_pages_hold_no_script_and_no_style_of_their_own(visitor: Visitor, path: str) -> None:
    page = visitor.get(path).text
    assert page.count("<script") == page.count('<script src="/static/live.js" defer></script>') == 1
    assert "style=" not in page
    assert "<style" not in page
    assert not re.search(r"<[^>]*\son\w+\s*=", page)
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere


# The token.


def test_a_savepoint_is_taken_once_however_often_the_button_is_pressed(
    actor: Visitor, client: ControlClient, driver: ScriptedDriver
) -> None:
    pressed = [actor.post(ACTIONS, data=form("savepoint", label="before-upgrade")) for _ in range(2)]
    assert [answer.status_code for answer in pressed] == [303, 303]
    [command] = client.commands("flights")
    assert pressed[0].headers["location"] == pressed[1].headers["location"] == f"{PAGE}?asked={command.id}#asked"
    assert (command.kind, command.payload["label"]) == (CommandKind.TRIGGER_SAVEPOINT, "before-upgrade")
    eventually(lambda: client.checkpoints("flights"))
    assert "Trigger savepoint: claimed" in actor.text(f"{PAGE}?asked={command.id}")
    driver.complete(1)
    client.wait(command, timeout=SECONDS)
    assert "Trigger savepoint: completed checkpoint 1" in actor.text(f"{PAGE}?asked={command.id}")


def test_a_checkpoint_under_way_can_be_aborted(actor: Visitor, client: ControlClient) -> None:
    actor.post(ACTIONS, data=form("checkpoint"))
    eventually(lambda: client.checkpoints("flights", state=CheckpointState.IN_PROGRESS))
    assert 'value="abort:1"' in actor.get(PAGE).text
    assert 'value="abort:1"' in actor.get(f"{PAGE}/checkpoints/1").text
    actor.post(ACTIONS, data=form("abort:1"))
    [abort] = client.commands("flights", kind=CommandKind.ABORT)
    client.wait(abort, timeout=SECONDS)
    eventually(lambda: client.checkpoint("flights", 1).state is not CheckpointState.IN_PROGRESS)
    assert "It was aborted on request" in actor.text(f"{PAGE}/checkpoints/1")
    assert 'value="abort:1"' not in actor.get(PAGE).text


def test_nothing_is_asked_for_without_the_right_token(actor: Visitor, client: ControlClient) -> None:
    for token in ("", "wrong", TOKEN[:-1], TOKEN + "x", "\u00fc", "\x00"):
        answer = actor.post(ACTIONS, data={**form("checkpoint"), "token": token})
        assert answer.status_code == 403
        assert "No request was sent" in text_of(answer)
    without = form("checkpoint")
    del without["token"]
    assert actor.post(ACTIONS, data=without).status_code == 403
    assert client.commands("flights") == ()


def test_a_form_of_a_foreign_page_is_refused_even_with_the_token(actor: Visitor, client: ControlClient) -> None:
    for site in ("cross-site", "same-site"):
        answer = actor.post(ACTIONS, data=form("checkpoint"), headers={"sec-fetch-site": site})
        assert answer.status_code == 403
    assert client.commands("flights") == ()
    assert actor.post(ACTIONS, data=form("checkpoint"), headers={"sec-fetch-site": "same-origin"}).status_code == 303


def test_looking_never_asks_for_anything(actor: Visitor, client: ControlClient) -> None:
    assert actor.get(ACTIONS, params=form("checkpoint")).status_code == 405
    assert client.commands("flights") == ()


def test_forms_that_make_no_sense_are_refused(actor: Visitor, client: ControlClient) -> None:
    forms = (
        (form("dance"), 400),
        (form("abort:x"), 400),
        (form("abort:\u00b2"), 400),
        (form(""), 400),
        (form("savepoint", label="x" * 200), 400),
        (form("savepoint", more="x" * 200_000), 413),
        ({**form("savepoint"), **{str(index): "x" for index in range(600)}}, 400),
    )
    assert [actor.post(ACTIONS, data=data).status_code for data, _ in forms] == [status for _, status in forms]
    assert client.commands("flights") == ()


def test_the_same_form_with_another_label_is_not_taken_for_the_first(actor: Visitor) -> None:
    assert actor.post(ACTIONS, data=form("savepoint", label="a")).status_code == 303
    answer = actor.post(ACTIONS, data=form("savepoint", label="b"))
    assert answer.status_code == 409
    assert "key" in text_of(answer)


def test_a_job_without_a_driver_says_so(actor: Visitor, client: ControlClient, driver: ScriptedDriver) -> None:
    driver.stop()
    eventually(lambda: not client.job("flights").is_alive)
    answer = actor.post(ACTIONS, data=form("checkpoint"))
    assert answer.status_code == 409
    [command] = client.commands("flights")
    assert command.state is CommandState.REFUSED


def test_a_token_is_compared_as_a_whole() -> None:
    token = Token(TOKEN)
    assert token.is_right(TOKEN)
    assert not any(token.is_right(given) for given in ("", TOKEN[:-1], TOKEN.upper(), "\ud800"))


def test_a_token_comes_from_a_file_or_is_made(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f" {TOKEN}\n")
    assert read_token(path) == TOKEN
    made = {read_token(None) for _ in range(3)}
    assert len(made) == 3
    assert min(map(len, made)) >= 32


@pytest.mark.parametrize("content", [None, b"short", b"\xff" * 40])
def test_a_token_that_cannot_be_used_is_said(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PageSettingsInvalid, match="token"):
        read_token(path)
