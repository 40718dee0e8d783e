"""``coordctl init``: what it writes works as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.docs_reader import Reader, reading

pytestmark = pytest.mark.spark


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    yield from reading(tmp_path, "/tmp/init")


def test_an_empty_folder_becomes_a_job_a_dagster_project_and_a_unit(reader: Reader) -> None:
    made = json.loads(reader.type(".venv/bin/coordctl init orders --json"))
    run, savepoint, dagster, systemd = made["next"]
    assert "dg dev" in dagster
    assert f"{made['folder']}/orders.service" in systemd
    reader.type(run.replace("coordctl", ".venv/bin/coordctl"))
    reader.type(savepoint.replace("coordctl", ".venv/bin/coordctl"))
    assert "All definitions loaded successfully" in reader.type(".venv/bin/dg check defs")
    listed = json.loads(reader.type(".venv/bin/dg list defs --json"))
    assert "orders/savepoint" in str(listed)
    if shutil.which("systemd-analyze"):
        reader.type(f"systemd-analyze verify {made['folder']}/orders.service")
    reader.type(".venv/bin/coordctl stop orders")
