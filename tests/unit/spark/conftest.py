"""A coordinator on its real thread, and a driver's runtime with a coordinator that counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.spark.coordinator_kit import CoordinatorRig, Recorder
from tests.unit.spark.runtime_kit import Counting, RuntimeDriver


@pytest.fixture
def rig() -> Iterator[CoordinatorRig]:
    rig = CoordinatorRig(Recorder())
    yield rig
    rig.close()


@pytest.fixture
def coordinator() -> Counting:
    return Counting()


@pytest.fixture
def driver(coordinator: Counting) -> Iterator[RuntimeDriver]:
    driver = RuntimeDriver(coordinator)
    yield driver
    driver.close()
