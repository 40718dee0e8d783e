"""The outcome of a checkpoint is known at once: the agent asks for it in its own thread, which nothing may block."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coord_control.control.commands import TriggerCheckpoint, TriggerSavepoint
from coord_control.storage.records import CommandKind, CommandState
from tests.agent_kit import ScriptedDriver


@pytest.mark.parametrize("is_repeated", [False, True])
def test_the_result_of_a_checkpoint_comes_with_its_handle(tmp_path: Path, *, is_repeated: bool) -> None:
    """Bug: it was looked for in another thread, for up to 10 s, and on the storage."""
    driver = ScriptedDriver(tmp_path)
    command: Any = SimpleNamespace(id="1", kind=CommandKind.TRIGGER_SAVEPOINT, requested_by="ada")
    place: Any = SimpleNamespace(port=SimpleNamespace(submit=driver.submit))  # and nothing else
    payload = TriggerSavepoint(label="mine")
    if is_repeated:
        payload.execution(command, place).begin()
        driver.stop()
        place.port.submit = ScriptedDriver(tmp_path).submit
    execution = payload.execution(command, place)

    execution.begin()
    outcome = execution.poll()

    assert outcome is not None
    assert outcome.state is CommandState.COMPLETED
    assert outcome.result is not None
    assert (outcome.result["kind"], outcome.result["label"], outcome.result["epochs"]) == (
        "savepoint",
        "mine",
        {"q": 1},
    )
    # The scripted driver does not measure its metadata; what is read from the storage has their size.
    metadata = Path(outcome.result["path"], "_metadata").stat().st_size if is_repeated else 0
    assert outcome.result["state_bytes"] == 25 + metadata


def test_a_checkpoint_without_statistics_is_complete_all_the_same(tmp_path: Path) -> None:
    done = SimpleNamespace(id=7, path="/there", statistics=None)
    handle = SimpleNamespace(id=7, done=True, wait=lambda timeout: done)
    command: Any = SimpleNamespace(id="1", kind=CommandKind.TRIGGER_CHECKPOINT, requested_by="ada")
    place: Any = SimpleNamespace(port=SimpleNamespace(submit=lambda request: handle))
    execution = TriggerCheckpoint().execution(command, place)

    execution.begin()
    outcome = execution.poll()

    assert outcome is not None
    assert outcome.result is not None
    assert (outcome.state, outcome.result["kind"]) == (CommandState.COMPLETED, "checkpoint")
