"""A reader of the documentation: saves its programs, and types its commands into a real terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.docs_kit import Block
from tests.patience import eventually
from tests.places import CHECKOUT

__all__ = ["Reader", "exported", "reading"]


class Reader:
    """A user who saves programs in a folder and types commands there.

    Args:
        place: the folder that the page uses; here it is one of the test.
        environment: what the page exports.
    """

    def __init__(self, folder: Path, place: str, environment: Mapping[str, str]) -> None:
        self.folder, self._place = folder, place
        state = {"XDG_STATE_HOME": str(folder / "state"), "COORD_CONTROL": f"sqlite:///{folder / 'control.db'}"}
        self._environment = {
            **os.environ,
            **state,
            "PYTHONPATH": ":".join([str(folder), str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYSPARK_PYTHON": sys.executable,
            **{name: self._here(value) for name, value in environment.items()},
        }

    def save(self, name: str, program: Block) -> None:
        (self.folder / name).write_text(self._here(program.text))

    def type(self, line: str) -> str:
        command = self._here(line).replace(".venv/bin/", f"{Path(sys.executable).parent}/")
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}{self._logs()}"
        return done.stdout

    def follow(self, lines: Sequence[str], job: str, query: str) -> list[str]:
        """Type the lines; wait behind each that writes a file until its epoch is over. Returns what they print."""
        printed = []
        for line in lines:
            printed.append(self.type(line))
            if line.startswith("echo "):
                self.wait_for(job, query, len(list((self.folder / "in").glob("*.json"))) - 1)
        return printed

    def wait_for(self, job: str, query: str, epoch: int) -> None:
        """Wait until the newest lineage of a query has committed an epoch."""
        lineages = self.folder / "jobs" / job / "queries" / query

        def is_over() -> bool:
            newest = max(lineages.glob("lineage-*")) / "spark"
            checkpoint = newest if newest.is_dir() else self.folder / "checkpoint"  # that of an adopted query
            return (checkpoint / "commits" / str(epoch)).exists()

        eventually(is_over, self._logs)

    def wait_for_silence(self) -> None:
        """Wait until nothing runs any more that was started here: supervisors, drivers, JVMs."""
        eventually(lambda: not _running_in(self.folder), self._logs)

    def output(self, name: str) -> list[dict[str, Any]]:
        parts = sorted((self.folder / name).glob("part-*.json"), key=lambda path: path.stat().st_mtime)
        return [json.loads(line) for path in parts for line in path.read_text().splitlines()]

    def sink(self, name: str) -> list[dict[str, Any]]:
        """The rows that Spark's log of the sink names, in order of their epochs."""
        log = self.folder / name / "_spark_metadata"
        rows = []
        for entry in sorted((path for path in log.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)):
            for line in entry.read_text().splitlines()[1:]:
                part = Path(urlsplit(json.loads(line)["path"]).path)
                rows += [json.loads(row) for row in part.read_text().splitlines()]
        return rows

    def _here(self, text: str) -> str:
        return text.replace(self._place, str(self.folder))

    def _logs(self) -> str:
        return "".join(path.read_text(errors="replace")[-4000:] for path in (self.folder / "state").rglob("*.log"))


def exported(block: Block, jars: str) -> dict[str, str]:
    """Return the variables that a block of a page exports, with these jars in the place of packages from Maven."""

    def here(match: re.Match[str]) -> str:
        for package in match[1].split(","):
            _, artifact, version = package.split(":")
            assert f"{artifact}-{version}.jar" in jars
        return f"--jars {jars}"

    lines = [line for line in block.text.replace("\\\n", "").splitlines() if line.startswith("export ")]
    found = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    return {name: re.sub(r"--packages (\S+)", here, value) for name, value in found.items()}


def reading(folder: Path, place: str, environment: Mapping[str, str] = MappingProxyType({})) -> Iterator[Reader]:
    """Yield a reader in a folder, and end what it has left running there."""
    yield Reader(folder, place, environment)
    for process in _running_in(folder):
        process.kill()


def _running_in(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["cwd", "status"])
    return [each for each in found if each.info["cwd"] == str(folder) and each.info["status"] != psutil.STATUS_ZOMBIE]
