"""The tutorial, typed from its first command to its last."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.docs_reader import Reader, reading
from tests.docs_kit import blocks
from tests.places import CHECKOUT

# In every run: test_live_pages.py types the same commands of README.md, spark/test_adoption.py has the adoption.
pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE: Final = CHECKOUT / "docs" / "tutorial.md"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    shutil.copytree(
        CHECKOUT / "dagster_defs", tmp_path / "dagster_defs", ignore=shutil.ignore_patterns(".*", "__pycache__")
    )
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    yield from reading(tmp_path, "/tmp/tutorial")


def test_a_plain_query_is_saved_broken_set_back_and_shown_in_dagster(reader: Reader) -> None:
    plain, first, job, adopted, saved, broken, restored, dagster, tidy = blocks(PAGE)
    reader.save("plain.py", plain)
    for line in first.text.splitlines():
        reader.type(line)
    reader.save("job.py", job)
    reader.follow(adopted.text.splitlines(), "orders", "large")
    assert [row["id"] for row in reader.sink("large")] == [1, 2], "order 1 is not read again"
    assert "good" in reader.follow(saved.text.splitlines(), "orders", "large")[1]
    reader.follow(broken.text.splitlines(), "orders", "large")
    assert [row["amount"] for row in reader.sink("large")] == [250, 300, 999999]
    *before, start = restored.text.splitlines()
    printed = [reader.type(line) for line in before]
    assert "can be restored; nothing was changed" in printed[2]
    assert "was restored from" in printed[3]
    reader.type(start)
    reader.wait_for("orders", "large", 2)
    assert [(row["id"], row["amount"]) for row in reader.sink("large")] == [(1, 250), (2, 300), (3, 130)]
    listed = [reader.type(line) for line in dagster.text.splitlines()][1]
    assert [line.split()[1:3] for line in listed.splitlines()[1:]] == [["savepoint", "completed"]] * 2
    for line in tidy.text.splitlines():
        if not line.startswith("rm"):  # the folder is the test's
            reader.type(line)
