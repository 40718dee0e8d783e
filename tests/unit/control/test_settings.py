from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coord_control.control.settings import ControlSettings, default_url
from coord_control.errors import ControlSettingsInvalid, NoControlPlane


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COORD_CONTROL")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_the_users_own_database_is_the_default(tmp_path: Path) -> None:
    assert default_url() == f"sqlite:///{tmp_path}/state/coord-control/control.db"
    assert ControlSettings.load().url == default_url()


def test_an_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORD_CONTROL", "sqlite:////a.db")
    monkeypatch.setenv("COORD_CONTROL_LEASE_SECONDS", "30")

    assert (ControlSettings.load().url, ControlSettings.load().lease_seconds) == ("sqlite:////a.db", 30.0)
    assert ControlSettings.load("sqlite:////b.db", lease_seconds=20.0).url == "sqlite:////b.db"
    assert ControlSettings.load("sqlite:////b.db", lease_seconds=20.0).lease_seconds == 20.0


@pytest.mark.parametrize("url", ["none", "NONE", " none "])
def test_there_may_be_no_control_plane(url: str) -> None:
    assert ControlSettings.load(url).is_off
    with pytest.raises(NoControlPlane, match="COORD_CONTROL"):
        ControlSettings.load(url).open_database("test")


def test_a_password_comes_from_the_environment_and_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORD_CONTROL_PASSWORD", "s3cret")
    settings = ControlSettings.load("postgresql://me@localhost/control")

    database = settings.open_database("test")

    assert database.url.password == "s3cret"
    for shown in (database.display_url, repr(settings), str(settings), settings.model_dump_json()):
        assert "s3cret" not in shown


def test_a_password_comes_from_a_file_without_its_line_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss/word \n")
    monkeypatch.setenv("COORD_CONTROL_PASSWORD_FILE", str(file))

    database = ControlSettings.load("postgresql://me@localhost/control").open_database("test")

    assert database.url.password == "p@ss/word "


def test_a_password_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = ControlSettings.load("postgresql://me@localhost/control", password_file=tmp_path / "missing")

    with pytest.raises(ControlSettingsInvalid, match=r"missing cannot be read: No such file"):
        settings.open_database("test")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LEASE_SECONDS", "soon", "LEASE_SECONDS|lease_seconds"),
        ("LEASE_SECONDS", "3", "at least two heartbeats"),
        ("POLL_MAX_SECONDS", "0.001", "shorter than"),
        ("HISTORY_DAYS", "-1", "greater than 0"),
        ("HEARTBEAT_SECONDS", "inf", "finite"),
    ],
)
def test_a_wrong_value_is_named_and_a_secret_beside_it_is_not(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"COORD_CONTROL_{name}", value)
    monkeypatch.setenv("COORD_CONTROL_PASSWORD", "s3cret")

    with pytest.raises(ControlSettingsInvalid, match=said) as raised:
        ControlSettings.load()
    assert "s3cret" not in str(raised.value)


def test_a_job_without_a_control_plane_does_not_import_sqlalchemy(tmp_path: Path) -> None:
    program = (
        "import sys; from coord_control.spark.job.control_plane_choice import control_plane;"
        "print(control_plane('none'), 'sqlalchemy' in sys.modules);"
        f"print(control_plane('sqlite:///{tmp_path}/control.db') is None, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None False\nFalse True\n"
