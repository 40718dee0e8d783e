from __future__ import annotations

from pathlib import Path

from coord_control.control.commands import Refusal
from coord_control.storage.records import CommandRecord
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run


def test_a_stop_is_asked_for_with_what_was_said(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path, lambda store, command: kit.completed()) as taken:
        assert "job flights has stopped" in run(tmp_path, "stop", "flights", "--grace", "2m")
    assert _asked(taken) == [("stop", {"grace_seconds": 120.0})]


def test_a_stop_with_a_savepoint_says_where_it_is(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path) as taken:
        shown = run(tmp_path, "stop", "flights", "--savepoint", "--target", "/s", "--label", "end")
    assert "has stopped after savepoint 7: /jobs/flights/savepoints/7" in shown
    assert _asked(taken) == [("stop_with_savepoint", {"target": "/s", "label": "end", "drain": False})]


def test_a_stop_drains_on_request(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path) as taken:
        run(tmp_path, "stop", "flights", "--savepoint", "--drain")
    assert _asked(taken) == [("stop_with_savepoint", {"target": None, "label": None, "drain": True})]


def test_options_of_a_savepoint_need_one(tmp_path: Path, store: ControlStore) -> None:
    assert "add --savepoint" in run(tmp_path, "stop", "flights", "--drain", code=2)
    assert "add --savepoint" in run(tmp_path, "stop", "flights", "--label", "x", code=2)
    assert "cannot be combined with" in run(tmp_path, "stop", "flights", "--savepoint", "--grace", "1s", code=2)
    assert store.commands.list("flights") == ()


def test_a_restart_tells_the_next_generation(tmp_path: Path, store: ControlStore) -> None:
    with kit.driver(tmp_path, lambda store, command: kit.completed(generation=2)) as taken:
        assert "job flights is running again, generation 2" in run(tmp_path, "restart", "flights")
    assert _asked(taken) == [("restart", {})]


def test_a_refusal_has_its_reason_and_exit_code(tmp_path: Path, store: ControlStore) -> None:
    outcome = kit.refused(Refusal.NOT_SUPERVISED, "nobody would start it again: run it with coordctl run")
    with kit.driver(tmp_path, lambda store, command: outcome):
        shown = run(tmp_path, "restart", "flights", code=78)
    assert "restart was refused (NOT_SUPERVISED): nobody would start it again" in shown


def _asked(taken: list[CommandRecord]) -> list[tuple[str, dict[str, object]]]:
    return [(command.kind.value, command.payload) for command in taken]
