"""`coordctl promote`: what it asks for and prints, and how it ends. What it does: unit/launch/test_promotion.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coord_control.cli import promote
from coord_control.control.commands import CheckpointResult
from coord_control.errors import NotPromotable
from coord_control.launch.promotion import Promotion, PromotionState
from coord_control.storage.store import ControlStore
from tests.cli_kit import invoke, run, run_json

_SAVED = CheckpointResult(
    checkpoint=12,
    kind="savepoint",
    path="/s/12",
    duration_seconds=1,
    state_bytes=5,
    label="promoted-flights-b",
)
_DONE = Promotion(
    fork="flights-b",
    parent="flights",
    state=PromotionState.PROMOTED,
    command="c1",
    savepoint=_SAVED,
    problems=("query q is restarting",),
    unknown=("the backlog of query r, because its sources report none",),
    way_back=("coordctl stop flights-b --savepoint", "coordctl run --detach --restore-from /s/12 <its script>"),
)


@pytest.fixture(autouse=True)
def _store(store: ControlStore) -> None:
    """There is a control database with a job."""


def _ends(monkeypatch: pytest.MonkeyPatch, result: Promotion | BaseException) -> list[dict[str, Any]]:
    """Let promotions end so; returns what was asked for."""
    asked: list[dict[str, Any]] = []

    def end(client: Any, fork: str, **options: Any) -> Promotion:
        asked.append({"fork": fork, **options})
        options["tell"]("job flights-b is not ready: query q is restarting")
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(promote, "promote_fork", end)
    return asked


def test_it_says_who_took_whose_place_and_how_to_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _ends(monkeypatch, _DONE)
    shown = run(tmp_path, "promote", "flights-b", "--parent", "flights", "--ready-within", "2m", "--max-backlog", "7")
    assert shown.splitlines() == [
        "job flights-b is not ready: query q is restarting",
        "job flights-b has taken the place of job flights, which has stopped after savepoint 12, promoted-flights-b: "
        "/s/12",
        "job flights-b: query q is restarting",
        "not known: the backlog of query r, because its sources report none",
        "to go back:",
        "  coordctl stop flights-b --savepoint",
        "  coordctl run --detach --restore-from /s/12 <its script>",
    ]
    [options] = asked
    assert (options["fork"], options["parent"], options["check_only"]) == ("flights-b", "flights", False)
    assert (options["ready_seconds"], options["max_backlog"]) == (120.0, 7)


def test_the_environment_gives_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _ends(monkeypatch, _DONE)
    environment = {"COORD_PARENT": "a", "COORD_READY_WITHIN": "3s", "COORD_MAX_BACKLOG": "4", "COORD_CHECK": "1"}
    assert invoke(tmp_path, "promote", "flights-b", **environment).exit_code == 0
    [options] = asked
    assert (options["parent"], options["ready_seconds"], options["max_backlog"]) == ("a", 3.0, 4)
    assert options["check_only"]


def test_its_result_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ends(monkeypatch, _DONE)
    found = run_json(tmp_path, "promote", "flights-b")["promotion"]
    assert (found["state"], found["parent"], found["savepoint"]["path"]) == ("promoted", "flights", "/s/12")
    assert (found["command"], found["is_repeated"]) == ("c1", False)
    assert found["unknown"] == list(_DONE.unknown)
    assert found["way_back"] == list(_DONE.way_back)


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        (PromotionState.READY, 0, "job flights-b can take the place of job flights; nothing was changed"),
        (PromotionState.NOT_READY, 75, "job flights-b cannot take the place of job flights yet; nothing was changed"),
        (PromotionState.STOPPING, 0, "job flights is being stopped for job flights-b: coordctl command show c1"),
    ],
)
def test_a_check_ends_with_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: PromotionState, code: int, said: str
) -> None:
    command = "c1" if state is PromotionState.STOPPING else None
    _ends(monkeypatch, Promotion(fork="flights-b", parent="flights", state=state, command=command))
    assert said in run(tmp_path, "promote", "flights-b", "--check", code=code)


@pytest.mark.parametrize(("retry", "code"), [(False, 78), (True, 75)])
def test_a_refusal_says_why_and_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry: bool, code: int
) -> None:
    _ends(monkeypatch, NotPromotable("flights-b", "it is not a fork", "fork one", retry=retry))
    shown = run(tmp_path, "promote", "flights-b", code=code)
    assert "job 'flights-b' cannot be promoted: it is not a fork; fork one" in shown


def test_an_interrupted_one_says_that_the_stop_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ends(monkeypatch, KeyboardInterrupt())
    assert "repeat this command to follow it" in run(tmp_path, "promote", "flights-b", code=130)


def test_an_unknown_fork_is_answered_with_the_nearest(tmp_path: Path) -> None:
    assert "flights" in run(tmp_path, "promote", "fligths", code=78)
