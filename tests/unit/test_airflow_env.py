"""The environment of Airflow for the tests: made once, from a list that pins everything, or not at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import airflow_env
from scripts.airflow_env import AirflowMissing, fetch, main, python
from tests.places import CHECKOUT

PINS = CHECKOUT / "scripts" / "airflow_env.txt"


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of no packages, and an empty cache."""
    pinned = tmp_path / "airflow_env.txt"
    pinned.write_text("# nothing\n")
    monkeypatch.setattr(airflow_env, "_PINNED", pinned)
    monkeypatch.setenv("COORD_AIRFLOW_CACHE", str(tmp_path / "cache"))
    return pinned


def test_an_environment_is_made_once_for_each_list(pinned: Path) -> None:
    with pytest.raises(AirflowMissing, match="make airflow"):
        python()

    assert fetch()
    assert not fetch()
    assert python().is_file()

    pinned.write_text("# another nothing\n")
    with pytest.raises(AirflowMissing):
        python()


def test_what_cannot_be_installed_leaves_no_environment(pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pinned.write_text("./there-is-no-such-file.whl\n")

    assert main(optional=False) == 1
    assert main(optional=True) == 0

    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("Airflow is not tested: pip could not install it: ERROR")]
    with pytest.raises(AirflowMissing):
        python()


def test_every_package_is_pinned_and_none_is_sparks() -> None:
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]

    assert len(lines) > 100
    assert all(re.fullmatch(r"[a-z0-9._-]+==[\w.]+", line) for line in lines)
    names = {line.partition("==")[0] for line in lines}
    assert "apache-airflow" in names
    assert not names & {"pyspark", "pyarrow", "pandas"}
