"""A query that runs, and an operator without a job around it."""

from __future__ import annotations

import pytest

from tests.core_kit import Stage
from tests.unit.protocol.operator_kit import Runner


@pytest.fixture
def operator() -> Runner:
    return Runner()


@pytest.fixture
def stage() -> Stage:
    """A query that runs."""
    stage = Stage()
    stage.start()
    return stage
