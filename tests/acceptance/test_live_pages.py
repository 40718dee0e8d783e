"""The programs and commands of README.md and two pages, typed one after the other into a real terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil
import pytest

from tests.docs_kit import Block, blocks
from tests.patience import eventually
from tests.places import CHECKOUT

pytestmark = pytest.mark.spark

README: Final = CHECKOUT / "README.md"
PAGE: Final = CHECKOUT / "docs" / "live-values.md"
OPERATORS: Final = CHECKOUT / "docs" / "operators.md"
#: Lines of an editor or a terminal that are seen at once.
SCREEN: Final = 24


class Reader:
    """A user who saves programs in a folder and types commands there.

    Args:
        place: the folder that the page uses; here it is one of the test.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self.folder, self._place = folder, place
        state = {"XDG_STATE_HOME": str(folder / "state"), "COORD_CONTROL": f"sqlite:///{folder / 'control.db'}"}
        self._environment = {**os.environ, **state, "PYTHONPATH": str(CHECKOUT), "PYSPARK_PYTHON": sys.executable}

    def save(self, name: str, program: Block) -> None:
        (self.folder / name).write_text(self._here(program.text))

    def type(self, line: str) -> str:
        command = self._here(line).replace(".venv/bin/coordctl", f"{sys.executable} -m coord_control.cli")
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
        eventually(lambda: (max(lineages.glob("lineage-*")) / f"spark/commits/{epoch}").exists(), self._logs)

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


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    yield Reader(tmp_path, request.param)
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(tmp_path):
            process.kill()


def of_the_readme() -> list[Block]:
    """The plain program and its commands, then that with a live value and its commands."""
    found = list(blocks(README))
    at = next(at for at, block in enumerate(found) if "cc.Job" in block.text)
    return found[at : at + 4]


def test_the_programs_of_the_readme_fit_on_a_screen() -> None:
    for block in of_the_readme():
        assert len(block.text.splitlines()) <= SCREEN


@pytest.mark.parametrize("reader", ["/tmp/tour"], indirect=True)
def test_the_programs_of_the_readme_and_their_commands_work(reader: Reader) -> None:
    plain, commands, live, more = of_the_readme()
    reader.save("tour.py", plain)
    printed = reader.follow(commands.text.splitlines(), "tour", "late")
    assert "can be restored; nothing was changed" in printed[6]
    assert "was restored from" in printed[7]
    reader.wait_for("tour", "late", 1)
    assert [row["carrier"] for row in reader.sink("out")] == ["UA", "AA"], "each flight once"
    reader.save("tour.py", live)
    reader.follow(more.text.splitlines(), "tour", "late")
    assert len(reader.sink("out")) == 2, "the third flight is not late by the new limit"


@pytest.mark.slow  # tests/spark shows each of its parts
@pytest.mark.parametrize("reader", ["/tmp/tour"], indirect=True)
def test_the_program_of_the_operators_page_and_its_commands_work(reader: Reader) -> None:
    program, commands = list(blocks(OPERATORS))[:2]
    reader.save("adaptive.py", program)
    folder, start, event, stop = commands.text.splitlines()
    late = [f'echo \'{{"carrier": "UA", "dep_delay": 40.0}}\' > /tmp/tour/in/{number}.json' for number in (1, 2)]
    reader.follow([folder, start, late[0], event, late[1], stop], "adaptive", "late")
    assert len(reader.output("adaptive")) == 1, "the event has raised the threshold"


@pytest.mark.parametrize("reader", ["/tmp/live"], indirect=True)
def test_the_program_and_the_commands_of_the_page_work(reader: Reader) -> None:
    program, commands = list(blocks(PAGE))[:2]
    reader.save("live.py", program)
    printed = reader.follow(commands.text.splitlines(), "flights", "late")
    assert "limits of job flights has version 1" in printed[3]
    assert "query late: version 1 since epoch 0" in printed[3]
    assert "version 2 from epoch 1 on" in printed[4]
    assert [row["minutes"] for row in reader.output("out")] == [30.0, 35.0]
