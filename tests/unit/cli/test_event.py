from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coord_control.control.commands import Refusal
from coord_control.storage.records import CommandRecord, Outcome
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run, run_json

_SEND = ("event", "send", "flights", kit.OPERATOR, "Threshold")


def test_what_an_operator_takes_is_listed_with_its_fields(tmp_path: Path, store: ControlStore) -> None:
    [line] = [line for line in run(tmp_path, "event", "types", "flights").splitlines() if "Threshold" in line]

    assert line.split() == [kit.OPERATOR, "Threshold", "minutes:", "number,", "note:", "string?"]
    assert run_json(tmp_path, "event", "types", "flights", kit.OPERATOR)[0]["event_types"][0]["name"] == "Threshold"
    assert "did you mean delay-threshold" in run(tmp_path, "event", "types", "flights", "delay-treshold", code=78)


def test_an_event_is_sent_to_all_or_to_one(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path, lambda store, command: kit.completed(number=3)) as taken:
        assert "event 3 has taken effect" in run(tmp_path, *_SEND, '{"minutes": 45}')
        run(tmp_path, *_SEND, "-", "--subtask", "2", text='{"minutes": 46}\n')

    found = [(each.payload["payload"], each.payload["subtask"], each.operator) for each in taken]
    assert found == [({"minutes": 45}, None, kit.OPERATOR), ({"minutes": 46}, 2, kit.OPERATOR)]


def test_what_is_wrong_is_said_field_by_field(tmp_path: Path, store: ControlStore) -> None:
    wrong = {"loc": ["limits", 0, "minutes"], "msg": "Input should be a valid number"}
    outcome = kit.refused(Refusal.EVENT_INVALID, "the payload is no Threshold", wrong)
    with kit.driver(tmp_path, lambda store, command: outcome):
        shown = run(tmp_path, *_SEND, '{"minutes": "many"}', code=78)
        error = run_json(tmp_path, *_SEND, '{"minutes": "many"}', code=78)["error"]

    assert "limits.0.minutes: Input should be a valid number" in shown
    assert "send event was refused (EVENT_INVALID): the payload is no Threshold" in shown
    assert (error["type"], error["fields"]) == ("ControlEventRefused", [wrong])


def test_what_is_no_json_is_not_sent(tmp_path: Path, store: ControlStore) -> None:
    assert "is not valid JSON" in run(tmp_path, *_SEND, "{minutes: 45}", code=2)
    assert "did you mean Threshold" in run(tmp_path, *_SEND[:-1], "Treshold", "{}", code=78)
    assert store.commands.list("flights") == ()


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ((), "event 3 is accepted: it takes effect with the next epoch"),
        (("--wait", "applied"), "event 3 is applied, and durable with the next epoch; subtasks 0-1 get it"),
        (("--wait", "durable"), "event 3 has taken effect"),
        (("--no-wait",), "is pending; check it with: coordctl command show"),
    ],
)
def test_it_is_waited_for_as_far_as_wanted(
    tmp_path: Path, store: ControlStore, arguments: tuple[str, ...], shown: str
) -> None:
    with accepting(tmp_path, is_applied="applied" in arguments, is_durable="durable" in arguments):
        assert shown in run(tmp_path, *_SEND, '{"minutes": 45}', *arguments)


@contextmanager
def accepting(folder: Path, *, is_applied: bool, is_durable: bool) -> Iterator[None]:
    """A driver that accepts what it takes as number 3, and may do more."""

    def accept(store: ControlStore, command: CommandRecord) -> Outcome | None:
        store.commands.accept_event(command.id, 1, 2)
        if is_applied:
            store.commands.progress(command.id, 1, {"stage": "applied", "sent_to": [0, 1]})
        return kit.completed(number=3) if is_durable else None

    with kit.driver(folder, accept):
        yield
