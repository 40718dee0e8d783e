"""One trial per test; whatever it started is gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill.life import Trial


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(tmp_path, seed=int(os.environ.get("COORD_KILL_SEED", "1")))
    trial.feeder.start()
    yield trial
    trial.feeder.stop()
    trial.clean_up()
