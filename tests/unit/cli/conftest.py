"""A control database with a running job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coord_control.storage.store import ControlStore
from tests import control_kit as kit


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    with kit.opened(tmp_path) as store:
        kit.put_job(store)
        yield store
