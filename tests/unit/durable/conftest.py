"""An empty storage, and the driver of a job whose query has committed five epochs there."""

from __future__ import annotations

import pytest

from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import StoreDriver, driver_after_five_epochs


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def driver(files: MemoryFiles) -> StoreDriver:
    return driver_after_five_epochs(files)
