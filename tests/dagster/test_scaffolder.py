"""What ``dg scaffold defs`` writes, for each way to say what is wanted; that it loads is tested in test_definitions."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pytest
import yaml

from coord_control.dagster import StreamingJobComponent
from coord_control.dagster.definitions.scaffolder import StreamingJobParams, StreamingJobScaffolder

NAME = "dagster_defs.StreamingJobComponent"


def scaffold(folder: Path, written: Literal["yaml", "python"], **params: Any) -> None:
    request = dg.ScaffoldRequest(
        type_name=NAME,
        target_path=folder,
        scaffold_format=written,
        project_root=folder,
        params=StreamingJobParams(**params),
    )
    StreamingJobScaffolder().scaffold(request)


@pytest.mark.parametrize(
    ("params", "attributes"),
    [
        ({}, {"discover": True}),
        ({"database": "sqlite:////c.db"}, {"database": "sqlite:////c.db", "discover": True}),
        ({"job": "flights"}, {"jobs": [{"name": "flights"}]}),
        (
            {"job": "flights", "script": "flights.py"},
            {"jobs": [{"name": "flights", "start": {"script": "flights.py"}}]},
        ),
    ],
)
def test_yaml(tmp_path: Path, params: dict[str, Any], attributes: dict[str, Any]) -> None:
    scaffold(tmp_path, "yaml", **params)
    assert yaml.safe_load((tmp_path / "defs.yaml").read_text()) == {"type": NAME, "attributes": attributes}
    StreamingJobComponent.from_attributes_dict(attributes=attributes)


def test_python(tmp_path: Path) -> None:
    scaffold(tmp_path, "python", job="flights")
    code = ast.parse((tmp_path / "component.py").read_text())
    given = [ast.literal_eval(node.args[0]) for node in ast.walk(code) if isinstance(node, ast.Call)]
    assert given == [{"jobs": [{"name": "flights"}]}]


def test_a_script_without_its_job_is_refused() -> None:
    with pytest.raises(ValueError, match="--job"):
        StreamingJobParams(script="flights.py")
