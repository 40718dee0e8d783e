from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coord_control.control.commands import Refusal
from coord_control.coordinators.requests import StatesPage, SubtaskState
from coord_control.storage.records import RequestType
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run, run_json

_ASK = ("ask", "flights", kit.OPERATOR)
_ANSWER = {"answer": {"minutes": 45.0}}


def test_what_can_be_asked_is_listed(tmp_path: Path, store: ControlStore) -> None:
    [line] = [line for line in run(tmp_path, "ask", "flights").splitlines() if "Current" in line]

    assert line.split() == [kit.OPERATOR, "Current", "carrier:", "string?", "minutes:", "number"]
    [listed] = run_json(tmp_path, "ask", "flights")
    assert (listed["operator"], listed["name"], listed["answer"]["title"]) == (kit.OPERATOR, "Current", "Minutes")


def test_an_answer_is_printed_as_json(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path, lambda store, command: kit.completed(**_ANSWER)) as taken:
        assert run_json(tmp_path, *_ASK) == {"minutes": 45.0}
        assert '"minutes": 45.0' in run(tmp_path, *_ASK, "Current", "-", text='{"carrier": "UA"}')

    found = [(each.kind, each.operator, each.payload["request"], each.payload["payload"]) for each in taken]
    assert found == [
        ("ask", kit.OPERATOR, "Current", {}),
        ("ask", kit.OPERATOR, "Current", {"carrier": "UA"}),
    ]


def test_the_time_for_the_answer_is_that_of_the_request(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path, lambda store, command: kit.completed(**_ANSWER)) as taken:
        run(tmp_path, *_ASK)
        run(tmp_path, *_ASK, "--timeout", "2m")

    assert [(each.expires_at - each.requested_at).total_seconds() for each in taken] == [10.0, 120.0]


def test_committed_states_are_shown(tmp_path: Path, store: ControlStore) -> None:
    page = StatesPage(
        epoch=41,
        parallelism=4,
        coordinator={"minutes": 45},
        coordinator_size=14,
        subtasks=(
            SubtaskState(subtask=2, state={"late": 7}, size=10),
            SubtaskState(subtask=3, state=None, size=2_000, waiting=5),
        ),
        next_after=3,
    )
    answer = {"answer": page.model_dump(mode="json")}
    with kit.driver(tmp_path, lambda store, command: kit.completed(**answer)) as taken:
        shown = run(tmp_path, *_ASK, "--state", "--subtask", "2", "--subtask", "3", "-n", "2")
        assert "coordinator" not in run(tmp_path, *_ASK, "--state", "--after", "-1", "-n", "2")
        assert run_json(tmp_path, *_ASK, "--state") == answer["answer"]

    assert "committed up to epoch 41, 4 subtasks" in shown
    assert 'coordinator (14 bytes): {"minutes": 45}' in shown
    assert [line.split() for line in shown.splitlines() if line.split()[0] in ("2", "3")] == [
        ["2", "0", "10", "bytes", '{"late":', "7}"],
        ["3", "5", "2.0", "kB", "too", "large", "to", "show"],
    ]
    assert "more: --after 3" in shown
    wanted = [(each.payload["request"], each.payload["payload"]) for each in taken]
    some = {"subtasks": [2, 3], "after": None, "limit": 2, "coordinator": True}
    next_page = {"subtasks": [], "after": -1, "limit": 2, "coordinator": True}
    every: dict[str, Any] = {"subtasks": [], "after": None, "limit": 20, "coordinator": True}
    assert wanted == [("CommittedStates", some), ("CommittedStates", next_page), ("CommittedStates", every)]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("Current", "{carrier: UA}"), "the request is not valid JSON"),
        (("Current", "--state"), "--state is a request itself"),
    ],
)
def test_what_cannot_be_asked_is_not_sent(
    tmp_path: Path, store: ControlStore, arguments: tuple[str, ...], why: str
) -> None:
    assert why in run(tmp_path, *_ASK, *arguments, code=2)
    assert store.commands.list("flights") == ()


def test_the_request_is_named_unless_there_is_one(tmp_path: Path, store: ControlStore) -> None:
    kit.put_job(store, operators=(kit.operator(()),))
    assert "none is declared; use --state" in run(tmp_path, *_ASK, code=2)
    kit.put_job(store, operators=(kit.operator((kit.CURRENT, RequestType(name="Past"))),))
    assert "one of Current, Past" in run(tmp_path, *_ASK, code=2)
    assert "did you mean delay-threshold" in run(tmp_path, "ask", "flights", "delay-treshold", code=78)


@pytest.mark.parametrize(
    ("code", "retry", "exit_code"),
    [(Refusal.REQUEST_INVALID, False, 78), (Refusal.NOT_ANSWERED, True, 75)],
)
def test_a_refusal_has_its_exit_code_and_its_fields(
    tmp_path: Path, store: ControlStore, code: Refusal, *, retry: bool, exit_code: int
) -> None:
    wrong: dict[str, Any] = {"loc": ["carrier"], "msg": "Input should be a valid string"}
    outcome = kit.refused(code, "it does not fit", wrong, retry=retry)
    with kit.driver(tmp_path, lambda store, command: outcome):
        shown = run(tmp_path, *_ASK, code=exit_code)

    assert "carrier: Input should be a valid string" in shown
    assert f"ask was refused ({code}): it does not fit" in shown
