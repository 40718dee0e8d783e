"""A job that pauses for its last savepoint ends, whatever goes wrong behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coord_control.control import ending
from coord_control.control.commands import StopWithSavepoint
from coord_control.control.ending import StopWithSavepointExecution
from coord_control.control.execution import Ending
from coord_control.errors import StoreUnavailable
from coord_control.storage.records import CommandKind, CommandState


def test_a_savepoint_that_cannot_be_described_does_not_leave_the_job_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: nobody ended the pause when the storage could not be read just after the savepoint."""

    def fails(*_: Any) -> Any:
        raise StoreUnavailable("/there", "read", "down")

    stopped: list[bool] = []
    port = SimpleNamespace(
        savepoint_and_pause=lambda *_: SimpleNamespace(id=7, path="/there"), stop=lambda: stopped.append(True)
    )
    place: Any = SimpleNamespace(port=port, ending=Ending(), wake=lambda: None)
    command: Any = SimpleNamespace(kind=CommandKind.STOP_WITH_SAVEPOINT)
    monkeypatch.setattr(ending, "checkpoint_result", fails)
    monkeypatch.setattr(ending, "request_of", lambda *_: None)
    execution = StopWithSavepointExecution(command, StopWithSavepoint(), place)
    assert execution.work() is None
    assert stopped == [True]
    outcome = execution.job_ended()
    assert outcome is not None
    assert outcome.state is CommandState.COMPLETED
    assert outcome.checkpoint == 7
