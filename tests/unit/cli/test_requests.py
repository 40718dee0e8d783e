from __future__ import annotations

from pathlib import Path

import pytest

from coord_control.cli.requests import result_text
from coord_control.control import commands
from coord_control.storage.records import CommandState
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run

_MADE = commands.CheckpointResult(checkpoint=7, kind="savepoint", path="/s/7", duration_seconds=1.5, state_bytes=2_000)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (_MADE, "savepoint 7: /s/7\n2.0 kB in 1.5 s"),
        (commands.StopResult(), "job j has stopped"),
        (commands.StopResult(savepoint=_MADE), "job j has stopped after savepoint 7"),
        (commands.RestartResult(generation=3), "job j is running again, generation 3"),
        (commands.RestoreResult(path="/c/7", checkpoint=7, job="k"), "job k resumes from checkpoint 7: /c/7"),
        (commands.DisposeResult(path="/c/7", checkpoint=7), "removed /c/7"),
        (commands.SendEventResult(number=3), "event 3 has taken effect"),
        (commands.VerifyResult(path="/c/7", checkpoint=7, files=2, size=3), "2 files, 3 bytes, all intact"),
    ],
)
def test_what_became_of_it(result: commands.CommandResult, text: str) -> None:
    assert text in result_text("j", result)


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
