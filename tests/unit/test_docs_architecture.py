"""docs/architecture.md names modules that exist, and its walks are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = CHECKOUT / "coord_control"
PAGE: Final = CHECKOUT / "docs" / "architecture.md"

#: The heads of the tables whose first column names modules or packages, and the folder that these are in.
FOLDERS: Final = {"room": PACKAGE, "package": PACKAGE, "file": PACKAGE, "module": PACKAGE / "protocol"}

MAX_ROOMS: Final = 25


def tables() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the section, the head of the first column, and the cells below it, for each table of the page."""
    section, rows = "", list[str]()
    for line in [*PAGE.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("## "):
            section = line[3:]
        if line.startswith("|"):
            rows.append(line.split("|")[1].strip())
        elif rows:
            yield section, rows[0], rows[2:]
            rows = []


def modules(folder: Path, cell: str) -> Iterator[Path]:
    """Yield the paths in a cell; a name without a folder is in the folder of the name before it."""
    before = folder
    for name in re.findall(r"`([\w/.]+)`", cell):
        path = (folder if "/" in name else before) / name.removesuffix(".py")
        before = path.parent
        yield path


def exists(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("head", FOLDERS)
def test_every_module_that_a_table_names_exists(head: str) -> None:
    found = [
        path for _, each, cells in tables() if each == head for cell in cells for path in modules(FOLDERS[head], cell)
    ]
    assert len(found) > 2
    assert not [str(path.relative_to(CHECKOUT)) for path in found if not exists(path)]


def test_every_file_that_the_text_names_with_its_folder_exists() -> None:
    found = re.findall(r"`(\w+/[\w/]+\.py)`", PAGE.read_text(encoding="utf-8"))
    assert len(found) > 10
    assert not [name for name in found if not (PACKAGE / name).is_file()]


def test_a_walk_names_few_rooms() -> None:
    walks = {section: cells for section, head, cells in tables() if head == "room"}
    assert len(walks) == 4
    for section, cells in walks.items():
        rooms = {path for cell in cells for path in modules(PACKAGE, cell)}
        assert len(rooms) <= MAX_ROOMS, section
