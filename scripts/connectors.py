"""Fetches the jars that the tests of connectors need: ``python -m scripts.connectors [--optional]``.

``scripts/connectors.toml`` pins them: sets of Maven coordinates, each with the SHA-256 of its jar. Maven fetches them,
with the settings of this machine, into a cache outside the checkout, once; ``COORD_CONNECTORS_CACHE`` names another
folder. Several processes may do so at the same time. A jar gets its name in the cache when its checksum has been found
right.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

__all__ = ["ConnectorsMissing", "cache", "fetch", "jars", "missing", "sets"]

_PINNED: Final = Path(__file__).with_suffix(".toml")
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_ATTEMPTS: Final = 3
_INSTALL: Final = "install it with: apt-get install maven (dnf install maven, brew install maven)"


class ConnectorsMissing(Exception):
    """Jars are not there, or cannot be had; the message names the reason and the next step."""


class Jar(NamedTuple):
    """A pinned jar."""

    coordinates: str  # group:artifact:version[:classifier]
    sha256: str

    @property
    def file_name(self) -> str:
        """The name under which Maven's plugin copies it when groups are prepended, and that it has in the cache."""
        group, artifact, *rest = self.coordinates.split(":")
        return "-".join([f"{group}.{artifact}", *rest]) + ".jar"


def sets() -> dict[str, list[Jar]]:
    """Return the pinned jars of all sets."""
    read = tomllib.loads(_PINNED.read_text(encoding="utf-8"))
    return {name: [Jar(*item) for item in pinned.items()] for name, pinned in read.items()}


def cache() -> Path:
    """Return the folder of the fetched jars, which may not exist yet."""
    named = os.environ.get("COORD_CONNECTORS_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "coord-control" / "connectors"


def jars(name: str) -> list[Path]:
    """Return the jars of a set.

    Raises:
        ConnectorsMissing: some are not in the cache.
    """
    pinned = sets()[name]
    if absent := missing(pinned):
        raise ConnectorsMissing(
            f"{len(absent)} of {len(pinned)} jars of '{name}' are not in {cache()}; fetch them with: make connectors"
        )
    return [cache() / jar.file_name for jar in pinned]


def missing(pinned: Iterable[Jar]) -> list[Jar]:
    """Return those jars that are not in the cache."""
    return [jar for jar in pinned if not (cache() / jar.file_name).is_file()]


def fetch() -> int:
    """Fetch what is not in the cache, and return the number of jars that were fetched.

    Raises:
        ConnectorsMissing: there is no Maven, it cannot fetch a jar, or a jar has another checksum than the pinned one.
    """
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        every = {jar for pinned in sets().values() for jar in pinned}
        for jar in every:
            if (path := folder / jar.file_name).is_file() and _sha256(path) != jar.sha256:
                path.unlink()
        wanted = sorted(missing(every))
        if wanted:
            _fetch(wanted, folder)
        return len(wanted)


def _fetch(wanted: list[Jar], folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ConnectorsMissing(f"there is no mvn on the PATH, which fetches {len(wanted)} jars; {_INSTALL}")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        draft = Path(name)
        (draft / "pom.xml").write_text(_pom(wanted, draft / "jars"), encoding="utf-8")
        command = [maven, "--batch-mode", "--quiet", "--file", str(draft / "pom.xml"), _PLUGIN]
        command.append("-Dmdep.prependGroupId=true")
        for _ in range(_ATTEMPTS):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
        else:
            output = (done.stdout + done.stderr).strip().splitlines()
            cause = next((line for line in output if "ERROR" in line), f"exit code {done.returncode}")
            raise ConnectorsMissing(f"mvn could not fetch the jars: {cause}")
        for jar in wanted:
            path = draft / "jars" / jar.file_name
            if not path.is_file():
                raise ConnectorsMissing(f"mvn did not bring {jar.coordinates}")
            if (found := _sha256(path)) != jar.sha256:
                raise ConnectorsMissing(
                    f"{jar.coordinates} has the SHA-256 {found}, and {_PINNED.name} pins {jar.sha256}: do not use it"
                )
        for jar in wanted:
            (draft / "jars" / jar.file_name).replace(folder / jar.file_name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pom(wanted: list[Jar], target: Path) -> str:
    """Return a project that does nothing but copy these jars; the plugin takes one artifact in several versions."""
    items = "".join(f"<artifactItem>{_item(jar.coordinates)}</artifactItem>\n" for jar in wanted)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>coord-control</groupId><artifactId>connectors</artifactId><version>1</version>\n"
        "<packaging>pom</packaging><build><plugins><plugin>\n"
        "<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>\n"
        f"<configuration><outputDirectory>{escape(str(target))}</outputDirectory><artifactItems>\n"
        f"{items}</artifactItems></configuration></plugin></plugins></build></project>\n"
    )


def _item(coordinates: str) -> str:
    parts = zip(("groupId", "artifactId", "version", "classifier"), coordinates.split(":"), strict=False)
    return "".join(f"<{tag}>{escape(value)}</{tag}>" for tag, value in parts)


def main(*, optional: bool) -> int:
    """Fetch, and return the exit code: with ``optional`` a failure is only reported."""
    try:
        fetched = fetch()
    except ConnectorsMissing as error:
        print(f"The connectors are not tested: {error}" if optional else f"error: {error}", file=sys.stderr)
        return 0 if optional else 1
    if fetched or not optional:
        print(f"{fetched} jars fetched, all are in {cache()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optional", action="store_true", help="say in one line why jars are missing, and succeed")
    sys.exit(main(**vars(parser.parse_args())))
