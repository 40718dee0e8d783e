"""Tests of the Airflow library in a real Airflow, which all tests of a module share.

Without its environment (`make airflow`) the tests are left out, and the head of the run says why; with
`COORD_AIRFLOW=required` (`.ci/run`) the run fails instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.agent_kit import ScriptedDriver
from tests.airflow_kit import Airflow
from tests.dagster_kit import Plane, plane_in
from tests.docs_kit import blocks
from tests.places import CHECKOUT

#: Its blocks of Python are DAGs that are run as they are.
PAGE: Final = CHECKOUT / "docs" / "airflow.md"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_in(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture(scope="module")
def driver(plane: Plane) -> ScriptedDriver:
    """A job that runs, and completes checkpoints when a test says it."""
    return plane.driver(is_automatic=False)


@pytest.fixture(scope="module")
def airflow(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home: Path = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    shutil.copy(CHECKOUT / "tests" / "airflow" / "dags.py", home / "dags")
    for block in blocks(PAGE):
        if block.language == "python":
            (home / "dags" / f"page_{block.line}.py").write_text(block.text)
    with Airflow(home, plane.settings.url) as airflow:
        yield airflow
