"""The rig of the agent's tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_kit import control_settings, open_store
from tests.unit.control.agent_rig import AgentRig, database_file


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AgentRig]:
    database = database_file(tmp_path)
    database.parent.mkdir()
    settings = control_settings(database)
    with contextlib.ExitStack() as cleanup:
        store = open_store(settings)
        cleanup.callback(store.close)
        yield AgentRig(tmp_path, settings, store, cleanup)
