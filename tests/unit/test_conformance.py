"""docs/conformance.md names a test, or a reason, for every rule; here we see to it that both exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Final

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = CHECKOUT / "tests"
PAGE: Final = CHECKOUT / "docs" / "conformance.md"

ROW: Final = re.compile(r"^\| ([A-Z]?\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
REFERENCE: Final = re.compile(r"`([\w/]+\.(?:py|txt))((?:::\w+)*)`")

EXPECTED: Final = [
    *(f"C{number}" for number in range(1, 19)),
    *(f"H{number}" for number in range(1, 6)),
    *(f"I{number}" for number in range(1, 8)),
    *(f"S{number}" for number in range(1, 7)),
    *(f"L{number}" for number in range(1, 10)),
    *(f"W{number}" for number in range(1, 8)),
    *(f"R{number}" for number in range(1, 8)),
    *(f"F{number}" for number in range(1, 18)),
    *map(str, range(1, 82)),
]


def rows() -> list[tuple[str, str]]:
    """Id and last column of each row, in the order of the page."""
    return [(match[1], match[3]) for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]


def references(text: str) -> list[tuple[str, str]]:
    """The files that a row names, each with its test, without the leading ``::``."""
    return [(match[1], match[2].removeprefix("::")) for match in REFERENCE.finditer(text)]


@functools.cache
def defined_tests(file: Path) -> frozenset[str]:
    """The tests that a module defines: ``test_x``, or ``TestClass::test_x``."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found |= {f"{node.name}::{child.name}" for child in node.body if isinstance(child, ast.FunctionDef)}
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def test_every_rule_and_every_scenario_has_one_row_in_order() -> None:
    assert [rule for rule, _ in rows()] == EXPECTED


@pytest.mark.parametrize(("rule", "covered"), rows(), ids=[rule for rule, _ in rows()])
def test_a_row_names_tests_that_exist_or_says_why_there_are_none(rule: str, covered: str) -> None:
    named = references(covered)
    reasons = re.findall(r"\*\*Not applicable\*\*: \w+", covered)
    assert named or reasons, f"{rule} has neither a test nor a reason"
    for file, test in named:
        path = TESTS / file
        assert path.is_file(), f"{rule} names {file}, which does not exist"
        if path.suffix == ".py":
            assert test in defined_tests(path), f"{rule} names {test}, which {file} does not define"


def test_everything_in_backticks_that_looks_like_a_test_is_checked() -> None:
    for rule, covered in rows():
        quoted = [text for text in re.findall(r"`([^`]+)`", covered) if "/" in text]
        assert len(quoted) == len(references(covered)), rule


def test_every_story_covers_something_on_the_page_or_is_about_cost_and_fencing() -> None:
    told = {file for _, covered in rows() for file, _ in references(covered) if file.endswith(".txt")}
    stories = {f"transcripts/{path.name}" for path in (TESTS / "transcripts").glob("*.txt")}
    elsewhere = {"idle_epochs_write_nothing", "normal_epoch", "output_not_consumed", "stale_generation"}
    assert stories - told == {f"transcripts/{name}.txt" for name in elsewhere}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_a(): ...\ndef helper(): ...", {"test_a"}),
        ("class TestB:\n    def test_c(self): ...\n    def helper(self): ...", {"TestB::test_c"}),
        ("async def test_d(): ...\nclass Kit:\n    def test_e(self): ...", {"test_d"}),
    ],
)
def test_tests_are_found_by_their_definition(tmp_path: Path, source: str, expected: set[str]) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(source, encoding="utf-8")
    assert defined_tests(file) == expected
