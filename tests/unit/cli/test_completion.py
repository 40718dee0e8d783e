from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from coord_control.cli.completion import complete_job
from coord_control.cli.main import app
from coord_control.storage.store import ControlStore
from tests import control_kit as kit


@pytest.fixture
def context() -> typer.Context:
    return typer.Context(typer.main.get_command(app))


def test_names_that_begin_so_are_offered(
    tmp_path: Path, store: ControlStore, context: typer.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.put_job(store, "fleet")
    monkeypatch.setenv("COORD_CONTROL", kit.settings(tmp_path).url)

    assert complete_job(context, "fl") == ["fleet", "flights"]
    assert complete_job(context, "fli") == ["flights"]
    assert complete_job(context, "x") == []


@pytest.mark.parametrize(
    "url", ["none", "sqlite:////nowhere/control.db", "mysql://a/b", "postgresql://me@127.0.0.1:1/control"]
)
def test_no_error_spoils_a_prompt(url: str, context: typer.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORD_CONTROL", url)
    assert complete_job(context, "fl") == []


def test_a_shell_gets_it(tmp_path: Path, store: ControlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORD_CONTROL", kit.settings(tmp_path).url)
    monkeypatch.setenv("_COORDCTL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "coordctl show fl")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = subprocess.run([sys.executable, "-m", "coord_control.cli"], capture_output=True, text=True)
    assert done.stdout.split() == ["flights"]
