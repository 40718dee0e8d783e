"""docs/compatibility.md says what runs on which Spark; each cell that says *tested* names a test that runs there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from scripts.compat import main, releases
from tests.places import CHECKOUT
from tests.unit.test_conformance import defined_tests, references

PAGE: Final = CHECKOUT / "docs" / "compatibility.md"
WORDS: Final = {"tested", "expected", "no"}
#: The PySpark of the checkout: all tiers run on it. On the others only one does.
NEWEST: Final = [*releases()][-1]
ELSEWHERE: Final = "compat/"


def tables() -> list[list[list[str]]]:
    """The cells of each table, row by row, with its head."""
    found = re.findall(r"(?:^\|.*\|\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [[line.strip("| ").split(" | ") for line in _lines(table)] for table in found]


def _lines(table: str) -> list[str]:
    # An empty last cell stays a cell.
    return [line[:-1] + "-" if line.endswith("| |") else line for line in table.splitlines() if "| --- |" not in line]


def rows() -> list[list[str]]:
    return [row for table in tables() for row in table[1:]]


def test_the_columns_are_the_releases_that_are_tested() -> None:
    assert len(tables()) == 5
    assert {tuple(table[0]) for table in tables()} == {("part", *releases(), "test")}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_that_says_tested_names_tests_that_run_there(row: list[str]) -> None:
    cells, named = dict(zip(releases(), row[1:-1], strict=True)), references(row[-1])
    assert set(cells.values()) <= WORDS
    assert named or "tested" not in cells.values()
    for file, test in named:
        path = CHECKOUT / "tests" / file
        assert path.is_file(), f"{file} does not exist"
        assert not test or test in defined_tests(path), f"{file} does not define {test}"
    elsewhere = [release for release, word in cells.items() if word == "tested" and release != NEWEST]
    assert not elsewhere or all(file.startswith(ELSEWHERE) for file, _ in named)


def test_the_pinned_releases_are_exact_and_the_newest_is_that_of_the_checkout() -> None:
    assert all(re.fullmatch(rf"{re.escape(release)}\.\d+", version) for release, version in releases().items())
    assert [*releases()] == sorted(releases())


@pytest.mark.parametrize("arguments", [[], ["2.4"]])
def test_a_release_that_is_not_pinned_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "one of 3.5, 4.0" in capsys.readouterr().err


def test_each_pinned_release_is_within_the_range_of_the_project() -> None:
    text = Path(CHECKOUT, "pyproject.toml").read_text(encoding="utf-8")
    assert f'"pyspark>={next(iter(releases()))},<5"' in text
