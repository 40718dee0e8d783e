"""The wheel and the sdist, and what is left of the product when only its base is installed."""

from __future__ import annotations

import email
import importlib.metadata
import subprocess
import tarfile
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

from tests.places import CHECKOUT

#: What only drivers, developers and other extras need.
NOT_IN_BASE: Final = ("pyspark", "pyarrow", "pandas", "cryptography", "dagster", "starlette", "pytest")
MIB: Final = 1 << 20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(CHECKOUT)).build(directory=str(folder), versions=["standard"])
    return Path(built)


def without_extras(requirements: Iterable[str]) -> set[str]:
    """The names that count where no extra is chosen."""
    parsed = map(Requirement, requirements)
    return {each.name for each in parsed if each.marker is None or each.marker.evaluate({"extra": ""})}


def of_base(wheel: Path) -> Iterator[Path]:
    """Yield the places of all packages that the wheel needs without an extra."""
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        declared = email.message_from_bytes(files.read(metadata)).get_all("Requires-Dist", [])
    pending, seen = without_extras(declared), set[str]()
    while pending:
        name = pending.pop()
        seen.add(name)
        package = importlib.metadata.distribution(name)
        pending |= without_extras(package.requires or ()) - seen
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            yield Path(str(package.locate_file(top)))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an empty environment with the wheel and what its base needs, without a package index."""
    place = tmp_path_factory.mktemp("base")
    venv.create(place, symlinks=True, with_pip=False)
    (packages,) = place.glob("lib/python*/site-packages")
    for path in of_base(wheel):
        if not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    with zipfile.ZipFile(wheel) as files:
        files.extractall(packages)
    return place / "bin" / "python"


def run(python: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # -I: neither the folder of the test nor PYTHONPATH is on the path of modules.
    return subprocess.run([python, "-I", *args], capture_output=True, text=True, check=False)


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"coord_control", "dagster_defs"}
    assert not [name for name in names if "test" in name.rpartition("/")[2]]
    suffixes = {Path(name).suffix for name in names if "dist-info" not in name}
    assert suffixes <= {".py", ".typed", ".html", ".css", ".java", ".js", ".svg", ".yaml"}
    assert "coord_control/py.typed" in names
    assert wheel.stat().st_size < 2 * MIB


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    for package in ("coord_control", "dagster_defs"):
        modules = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / package).rglob("*.py")}
        assert modules <= names


def test_the_sdist_holds_what_the_tests_need(tmp_path: Path) -> None:
    (built,) = SdistBuilder(str(CHECKOUT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(built) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "Makefile", "scripts/setup"} <= names
    assert {"tests/conftest.py", "coord_control/__init__.py", "examples/flights/__main__.py"} <= names


@pytest.mark.parametrize("package", NOT_IN_BASE)
def test_the_base_has_no(base: Path, package: str) -> None:
    done = run(base, "-c", f"import {package}")
    assert f"No module named '{package}'" in done.stderr


def test_the_command_line_and_the_client_need_the_base_alone(base: Path, tmp_path: Path) -> None:
    done = run(base, "-m", "coord_control.cli", "jobs", "--control", f"sqlite:///{tmp_path}/control.db", "--json")
    assert "Traceback" not in done.stderr
    assert run(base, "-m", "coord_control.cli", "--version").stdout.startswith("coordctl ")
    done = run(base, "-c", "from coord_control import CheckpointOptions, ControlClient, OperatorCoordinator")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["Job", "Subtask", "StateReader"])
def test_what_needs_spark_names_the_extra(base: Path, name: str) -> None:
    done = run(base, "-c", f"import coord_control as cc; cc.{name}")
    assert f"coord_control.{name} needs the package" in done.stderr
    assert "pip install 'coord-control[spark]'" in done.stderr


def test_a_driver_without_spark_is_refused_before_it_starts(base: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("")
    done = run(base, "-m", "coord_control.cli", "run", str(script))
    assert done.returncode == 78
    assert "coordctl run needs the package pyspark: pip install 'coord-control[spark]'" in done.stderr


def test_the_doctor_of_a_machine_without_spark_has_one_warning(base: Path) -> None:
    done = run(base, "-m", "coord_control.cli", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "drivers of jobs need it: pip install 'coord-control[spark]'" in done.stdout
