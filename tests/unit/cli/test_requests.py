from __future__ import annotations

from pathlib import Path

import pytest

from coord_control.storage.records import CommandState
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run


def test_where_nothing_can_be_drawn_progress_is_a_line_whenever_it_changes(
    tmp_path: Path, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter(({"subtasks": 4, "passed_subtasks": 1}, {"subtasks": 4, "passed_subtasks": 3, "blocked_events": 12}))

    def one_step(_seconds: float) -> None:
        """Whoever waits lets the driver do its next step."""
        taken = [*store.commands.claim("flights", 1), *store.commands.claimed_by("flights", 1)]
        progress = next(steps, None)
        if progress is None:
            store.commands.finish(taken[0].id, 1, kit.checkpoint_outcome(store, taken[0]))
        else:
            store.commands.progress(taken[0].id, 1, progress)

    monkeypatch.setattr("coord_control.control.client.control_client.time.sleep", one_step)
    lines = run(tmp_path, "checkpoint", "trigger", "flights").splitlines()

    assert lines[:3] == ["waiting for the job's driver", "1 of 4 subtasks", "3 of 4 subtasks, 12 events blocked"]
    assert lines[3].startswith("checkpoint 7:")


def test_somebody_who_does_not_want_to_wait_any_longer_is_told_how_to_go_on(
    tmp_path: Path, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coord_control.control.client.control_client.time.sleep", interrupt)

    assert "coordctl command cancel" in run(tmp_path, "checkpoint", "trigger", "flights", code=130)
    assert [each.state for each in store.commands.list("flights")] == [CommandState.PENDING]
