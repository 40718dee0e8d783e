"""The Dockerfile: by its linter, and by what it says against what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.deploy_kit import COORD_UID, DEPLOY, check_variables, is_pinned
from tests.places import CHECKOUT

IMAGES: Final = DEPLOY / "images"
DOCKERFILE: Final = IMAGES / "Dockerfile"
PROJECT: Final[dict[str, Any]] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: Extras that the images have; requirements.txt has their packages.
EXTRAS: Final = ("spark", "postgresql", "dagster", "demo", "ui")

#: What Spark on Kubernetes gives an executor.
EXECUTOR: Final = {
    "SPARK_JAVA_OPT_0": "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "SPARK_JAVA_OPT_1": "-Dspark.note=two words",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "flights-exec-7",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@flights-driver:7078",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_HOME": "/opt/spark",
}


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments, in order."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in lines if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction, rest in instructions():
        if instruction == "FROM":
            current = found[rest.split(" AS ")[1]] = []
        current.append((instruction, rest))
    return found


def pinned(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {canonicalize_name(name): version for name, version in pairs}


def needed() -> list[Requirement]:
    """What the project itself needs, and the extras of the images."""
    optional = PROJECT["optional-dependencies"]
    names = [*PROJECT["dependencies"], *(line for extra in EXTRAS for line in optional.get(extra, ()))]
    return [requirement for requirement in map(Requirement, names) if requirement.name != PROJECT["name"]]


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([hadolint, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_base_images_are_pinned_and_have_a_python_that_the_project_supports() -> None:
    bases = [rest.split()[0] for instruction, rest in instructions() if instruction == "FROM"]
    foreign = [base for base in bases if base not in stages()]
    assert foreign
    for base in foreign:
        assert is_pinned(base)
        version = base.partition(":")[2].partition("-")[0]
        assert version in SpecifierSet(PROJECT["requires-python"])
        # Packages are looked for in a folder with the version in its name.
        home = next(rest for instruction, rest in stages()["spark"] if instruction == "ENV")
        assert f"python{version.rpartition('.')[0]}/site-packages/pyspark" in home


@pytest.mark.parametrize("stage", ["control", "spark"])
def test_what_is_started_is_not_root(stage: str) -> None:
    users = [rest for instruction, rest in stages()[stage] if instruction == "USER"]
    assert users[-1] == f"{COORD_UID}:{COORD_UID}"


def test_what_is_copied_exists_and_reaches_the_build() -> None:
    ignore = (IMAGES / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    assert "*" in ignore
    sources = [
        source
        for instruction, rest in instructions()
        if instruction == "COPY" and "--from" not in rest
        for source in [word for word in rest.split() if not word.startswith("--")][:-1]
    ]
    assert sources
    for source in sources:
        assert (CHECKOUT / source).exists(), source
        assert any(source == name or source.startswith(f"{name}/") for name in allowed), source
    assert all((CHECKOUT / name).exists() for name in allowed)


def test_variables_are_known() -> None:
    names = [
        name
        for instruction, rest in instructions()
        if instruction == "ENV"
        for name in re.findall(r"([A-Z_]+)=", rest)
        if not name.startswith("PIP_")
    ]
    check_variables(names)


def test_every_package_of_the_project_is_pinned_in_a_version_that_it_accepts() -> None:
    versions = pinned(IMAGES / "requirements.txt")
    unfit = [
        f"{requirement} and {versions.get(canonicalize_name(requirement.name))}"
        for requirement in needed()
        if versions.get(canonicalize_name(requirement.name), "") not in requirement.specifier
    ]
    assert not unfit


def test_what_builds_the_wheel_is_what_the_project_says() -> None:
    versions = pinned(IMAGES / "build-requirements.txt")
    wanted = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert all(versions[Requirement(line).name] in Requirement(line).specifier for line in wanted)


def test_the_images_are_labelled_with_the_projects_version() -> None:
    labels = " ".join(rest for instruction, rest in instructions() if instruction == "LABEL")
    assert f'org.opencontainers.image.version="{PROJECT["version"]}"' in labels


def test_an_executor_is_started_with_what_spark_gives_it(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    environment = {**EXECUTOR, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = IMAGES / "spark-executor"
    done = subprocess.run([script, "executor"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        EXECUTOR["SPARK_JAVA_OPT_0"],
        EXECUTOR["SPARK_JAVA_OPT_1"],
        "-Xms1024m",
        "-Xmx1024m",
        "-cp",
        "/opt/spark/conf:/opt/spark/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", EXECUTOR["SPARK_DRIVER_URL"]),
        *("--executor-id", "7"),
        *("--cores", "2"),
        *("--app-id", "spark-1"),
        *("--hostname", "10.0.0.7"),
        *("--resourceProfileId", "0"),
        *("--podName", "flights-exec-7"),
    ]


@pytest.mark.parametrize("name", [name for name in EXECUTOR if not name.startswith("SPARK_JAVA_OPT")])
def test_an_executor_that_is_not_told_everything_does_not_start(name: str) -> None:
    environment = {key: value for key, value in EXECUTOR.items() if key != name} | {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [IMAGES / "spark-executor", "executor"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"{name}: unbound variable" in done.stderr
