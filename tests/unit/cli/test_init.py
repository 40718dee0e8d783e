"""What ``coordctl init`` writes, and what it refuses; that it works is shown by ``tests/acceptance/test_init.py``."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli_kit import call, run, run_json


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "orders_job.py").write_text("mine")
    files = run_json(tmp_path, "init", "orders", str(tmp_path))["files"]
    assert [path for path, state in files.items() if state == "kept"] == ["orders_job.py"]
    assert set(run_json(tmp_path, "init", "orders", str(tmp_path))["files"].values()) == {"kept"}
    assert (tmp_path / "orders_job.py").read_text() == "mine"


def test_a_name_that_no_job_can_have_is_refused(tmp_path: Path) -> None:
    assert "cannot name a job" in run(tmp_path, "init", "a b", str(tmp_path / "new"), code=2)
    assert not (tmp_path / "new").exists()


def test_names_and_paths_of_any_kind_stay_what_they_are(tmp_path: Path) -> None:
    place = tmp_path / '5% of "it"'
    run(tmp_path, "init", "007", str(place))
    calls = [node for node in ast.walk(ast.parse((place / "007_job.py").read_text())) if isinstance(node, ast.Assign)]
    assert ast.literal_eval(calls[0].value) == str(place / "jobs")
    (job,) = yaml.safe_load((place / "streams/defs/007/defs.yaml").read_text())["attributes"]["jobs"]
    assert job["name"] == "007"
    assert job["start"]["script"] == str(place / "007_job.py")
    assert f"WorkingDirectory={tmp_path}/5%% of" in (place / "007.service").read_text()


def test_a_query_that_exists_keeps_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    message = run(tmp_path, "init", "new", str(tmp_path / "new"), "--adopt", str(checkpoint), code=2)
    assert "no checkpoint of Spark" in message
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text("{}")
    made = run_json(tmp_path, "init", "new", str(tmp_path / "new"), "--adopt", str(checkpoint))
    script = (tmp_path / "new" / "new_job.py").read_text()
    assert f'checkpoint_location="{checkpoint}"' in script
    assert "put your query here" in script, "an example would run on that checkpoint"
    assert "stop the program that runs it" in made["next"][0]


@pytest.mark.parametrize(
    ("url", "is_named"), [("postgresql://ada@db/control", True), ("postgresql://ada:secret@db/control", False)]
)
def test_a_unit_names_the_control_database_and_no_password(tmp_path: Path, url: str, is_named: bool) -> None:
    result: Any = call("init", "orders", str(tmp_path), COORD_CONTROL=url)
    assert result.exit_code == 0
    unit = (tmp_path / "orders.service").read_text()
    assert (url in unit) == is_named
    assert "secret" not in unit
    assert ("a password does not belong" in result.output) != is_named
