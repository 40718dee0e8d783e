"""A control database with a story in it, and somebody who looks at its pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.ui.app import make_app
from tests.control_kit import opened, settings
from tests.ui.story import put_stopped, put_story
from tests.ui.visitor import Visitor


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a database that is only read."""
    folder = tmp_path_factory.mktemp("story")
    with opened(folder) as store:
        put_story(store)
        put_stopped(store, "invoices")
    return folder


@pytest.fixture(scope="session")
def visitor(story: Path) -> Iterator[Visitor]:
    """Pages that can only be read."""
    with ControlClient(settings=settings(story)) as client:
        yield Visitor(make_app(client))
