"""A sensor, Dagster around it, and the jobs that it looks at: for every module about the sensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext

from tests.dagster.sensor_kit import Jobs, SensorRig, jobs_in


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster remembers, for the whole process, that a run was reconstructed; definitions are then never refreshed."""
    monkeypatch.setattr(DefinitionsLoadContext, "_instance", None)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SensorRig]:
    """A sensor that has not looked yet."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield SensorRig(tmp_path, instance)


@pytest.fixture
def jobs(rig: SensorRig) -> Iterator[Jobs]:
    """A control database with one job, which lives."""
    with jobs_in(rig.file) as jobs:
        jobs.put()
        yield jobs
