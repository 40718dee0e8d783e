"""The code location of this repository and ``dg``, as commands in a shell, with nothing configured."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import control_kit as kit

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PROJECT = """\
[project]
name = "my_project"
version = "0.1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "my_project"
"""
DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user's, with nothing configured but that Dagster reports nothing to anybody."""
    home = tmp_path / "dagster_home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COORD_", "DAGSTER_"))}
    return {**kept, "DAGSTER_HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "200"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The parts of this repository that ``dg`` sees; Dagster writes its state into it."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shutil.copy(CHECKOUT / "pyproject.toml", folder)
    ignored = shutil.ignore_patterns(".local_defs_state")
    for package in ("coord_control", "dagster_defs"):
        shutil.copytree(CHECKOUT / package, folder / package, ignore=ignored)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project."""
    folder = tmp_path / "project"
    package = folder / "src" / "my_project"
    (package / "defs").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    return folder


def run(folder: Path, environment: dict[str, str], *command: str) -> str:
    """What a command that ends well says."""
    path = os.pathsep.join(map(str, (folder / "src", folder, CHECKOUT)))
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_it_loads_with_nothing_configured_and_makes_nothing(
    checkout: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    said = run(checkout, environment, "dg", "check", "yaml")
    assert "validated successfully" in said
    said = run(checkout, environment, "dg", "check", "defs")
    assert "All definitions loaded successfully" in said
    assert "Traceback" not in said
    assert not (tmp_path / "state").exists()


def test_it_shows_all_jobs_of_the_embedded_database(
    checkout: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "state" / "coord-control"
    folder.mkdir(parents=True)
    jobs = ["flights", *(f"job-{number}" for number in range(199))]
    with kit.opened(folder) as store:
        for job in jobs:
            kit.put_job(store, job)
    said = run(checkout, environment, "dg", "list", "defs", "--json")
    for job in (job.replace("-", "_") for job in jobs):
        for key in (f"{job}/savepoint", f"{job}/checkpoint", f"{job}/query/alerts"):
            assert f'"{key}"' in said


def test_it_loads_when_the_database_cannot_be_reached(checkout: Path, environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"postgresql://nobody:secret@127.0.0.1:{server.getsockname()[1]}/control"
    said = run(checkout, {**environment, "COORD_CONTROL": address}, "dg", "check", "defs")
    assert "All definitions loaded successfully" in said
    assert said.count("the control database could not be read") == 1
    assert "secret" not in said
    assert "Traceback" not in said


def test_dagster_itself_finds_it(checkout: Path, environment: dict[str, str]) -> None:
    assert "Validation successful" in run(checkout, environment, "dagster", "definitions", "validate")


# In every run: what is scaffolded, below, comes from there.
@pytest.mark.slow
def test_the_component_is_in_the_registry(project: Path, environment: dict[str, str]) -> None:
    said = run(project, environment, "dg", "list", "components", "--json")
    assert "dagster_defs.StreamingJobComponent" in said


def test_yaml_is_scaffolded_and_loads_and_a_mistake_is_refused_with_its_place(
    project: Path, environment: dict[str, str]
) -> None:
    run(project, environment, "dg", "scaffold", "defs", "dagster_defs.StreamingJobComponent", "my_jobs")
    path = project / "src" / "my_project" / "defs" / "my_jobs" / "defs.yaml"
    made = yaml.safe_load(path.read_text())
    assert made == {"type": "dagster_defs.StreamingJobComponent", "attributes": {"discover": True}}
    run(project, environment, "dg", "check", "yaml")
    run(project, environment, "dg", "check", "defs")

    path.write_text(path.read_text() + "  jobs:\n    - name: flights\n      schedule: hourly\n")
    with pytest.raises(AssertionError, match="schedule"):
        run(project, environment, "dg", "check", "yaml")


@pytest.mark.slow
def test_python_is_scaffolded_and_loads(project: Path, environment: dict[str, str]) -> None:
    component = "dagster_defs.StreamingJobComponent"
    run(project, environment, "dg", "scaffold", "defs", component, "--format", "python", "my_jobs", "--job", "flights")
    assert '"flights/savepoint"' in run(project, environment, "dg", "list", "defs", "--json")


def test_importing_it_imports_no_spark(environment: dict[str, str]) -> None:
    code = "import sys, dagster_defs, dagster_defs.definitions; print('spark' if 'pyspark' in sys.modules else 'none')"
    assert run(CHECKOUT, environment, "python", "-c", code).strip().endswith("none")
