from __future__ import annotations

from pathlib import Path

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.storage.records import CommandRecord
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run, run_json


@pytest.fixture
def asked(tmp_path: Path, store: ControlStore) -> CommandRecord:
    with ControlClient(actor="me", settings=kit.settings(tmp_path)) as client:
        return client.trigger_checkpoint("flights", label="nightly", key="k1")


def test_commands_are_listed_by_what_one_looks_for(tmp_path: Path, asked: CommandRecord) -> None:
    assert asked.id in run(tmp_path, "command", "list")
    assert [each["id"] for each in run_json(tmp_path, "command", "list", "flights")] == [asked.id]
    assert run_json(tmp_path, "command", "list", "--state", "completed") == []
    assert run_json(tmp_path, "command", "list", "--kind", "stop") == []
    assert "there is no such command" in run(tmp_path, "command", "list", "--kind", "stop")
    assert "did you mean flights" in run(tmp_path, "command", "list", "flight", code=78)


def test_one_is_shown_with_who_asked_and_what_it_gave(
    tmp_path: Path, store: ControlStore, asked: CommandRecord
) -> None:
    assert 'with {"label": "nightly"}, key k1' in run(tmp_path, "command", "show", asked.id)
    [taken] = store.commands.claim("flights", 1)
    store.commands.progress(asked.id, 1, {"subtasks": 4, "passed_subtasks": 3})
    assert "3 of 4 subtasks" in run(tmp_path, "command", "show", asked.id)
    store.commands.finish(asked.id, 1, kit.checkpoint_outcome(store, taken))

    shown = run(tmp_path, "command", "show", asked.id)

    assert "by generation 1" in shown
    assert '"path": "/jobs/flights/checkpoints/7"' in shown
    assert run_json(tmp_path, "command", "show", asked.id)["state"] == "completed"


def test_one_is_cancelled(tmp_path: Path, asked: CommandRecord) -> None:
    assert "cancelled" in run(tmp_path, "command", "cancel", asked.id)
    assert run_json(tmp_path, "command", "cancel", asked.id)["state"] == "cancelled"


def test_one_that_was_taken_is_being_given_up(tmp_path: Path, store: ControlStore, asked: CommandRecord) -> None:
    store.commands.claim("flights", 1)
    assert "is being cancelled" in run(tmp_path, "command", "cancel", asked.id)


def test_a_wrong_id_is_answered_with_the_near_ones(tmp_path: Path, asked: CommandRecord) -> None:
    assert f"did you mean {asked.id}" in run(tmp_path, "command", "show", asked.id[:20], code=78)
