"""The programs and commands of README.md and two pages, typed one after the other into a real terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.docs_reader import Reader, reading
from tests.docs_kit import Block, blocks
from tests.places import CHECKOUT

pytestmark = pytest.mark.spark

README: Final = CHECKOUT / "README.md"
PAGE: Final = CHECKOUT / "docs" / "live-values.md"
OPERATORS: Final = CHECKOUT / "docs" / "operators.md"
#: Lines of an editor or a terminal that are seen at once.
SCREEN: Final = 24


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    yield from reading(tmp_path, request.param)


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
    reader.wait_for_silence()
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


# In every run: the README's program with a live value, above, and tests/spark/test_live.py.
@pytest.mark.slow
@pytest.mark.parametrize("reader", ["/tmp/live"], indirect=True)
def test_the_program_and_the_commands_of_the_page_work(reader: Reader) -> None:
    program, commands = list(blocks(PAGE))[:2]
    reader.save("live.py", program)
    printed = reader.follow(commands.text.splitlines(), "flights", "late")
    assert "limits of job flights has version 1" in printed[3]
    assert "query late: version 1 since epoch 0" in printed[3]
    assert "version 2 from epoch 1 on" in printed[4]
    assert [row["minutes"] for row in reader.output("out")] == [30.0, 35.0]
