"""What all tiers of tests share: their order, how long one test may hang, and the options of the whole run.

The tiers climb from cheap to dear, and so does a run: what a unit test can find is not left for a Spark test to find
minutes later. The time limits only end a test that hangs; no test measures anything with them, so they are generous
enough for a busy machine. A test with a `timeout` marker of its own keeps it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

# No test finds, or fills, the control database of whoever runs it; those that want one name their own.
os.environ["COORD_CONTROL"] = "none"

TESTS: Final = Path(__file__).resolve().parent

#: Folder below `tests` and the seconds after which one of its tests counts as hanging; cheap tiers first. A folder
#: that is not here comes last, with the limit of the last.
TIERS: Final = {
    "unit": 60,
    "machines": 60,
    "transcripts": 60,
    "simulation": 600,
    "deploy": 120,
    "storage": 120,
    "ui": 120,
    "spark": 300,
    "acceptance": 900,
}

#: The file that takes longest by far; first of the Spark tests, because at the end one process would run it alone.
LONGEST: Final = "kill/test_standalone.py"

# Deadlines measure the machine, not the code: two processes share two cores here. In CI (the variable CI is set)
# Hypothesis itself chooses derandomized examples, so that a submission is not failed by an unlucky draw.
settings.register_profile("house", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("house")


def _tier(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


def _place(item: pytest.Item) -> tuple[int, bool]:
    """Where an item stands in the order of a run."""
    tiers = list(TIERS)
    if item.path == TESTS / LONGEST:
        return tiers.index("spark"), False
    return tiers.index(_tier(item)) if _tier(item) in TIERS else len(tiers), True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the stories in tests/transcripts print now into them; read the difference afterwards",
    )


# First, because pytest's own -m must already see the markers that are added here.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIERS.get(_tier(item), max(TIERS.values()))))
