"""The component: what YAML becomes, what is kept of the database, and what happens when it cannot be reached."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.instance_for_test import instance_for_test
from dagster.components.core.component_tree import ComponentTree
from dagster.components.testing import create_defs_folder_sandbox

from coord_control.dagster import QuerySpec, StreamingJobComponent, StreamingJobSpec, StreamingJobTranslator
from coord_control.dagster.definitions.component import refreshed_facts
from coord_control.dagster.facts import from_json
from tests import control_kit as kit

# Of Dagster, about itself: how it reads YAML, and says where a component is written.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning"),
]

CHECKOUT = Path(__file__).resolve().parents[2]

CONTEXT = ComponentTree.for_test().load_context


class Loud(StreamingJobTranslator):
    """For ``translator:`` in YAML."""

    def savepoint_key(self, job: StreamingJobSpec) -> dg.AssetKey:
        return dg.AssetKey(["LOUD", job.name])


@pytest.fixture(autouse=True)
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits here, and a busy machine may need longer than a person would."""
    monkeypatch.setattr("coord_control.dagster.definitions.component._READ_SECONDS", 60.0)


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'control.db'}"


def put_jobs(folder: Path, *names: str) -> None:
    with kit.opened(folder) as store:
        for name in names:
            kit.put_job(store, name)


def load(attributes: dict[str, Any]) -> dg.Definitions:
    """What YAML becomes in a project of a user's."""
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            StreamingJobComponent,
            defs_yaml_contents={"type": "dagster_defs.StreamingJobComponent", "attributes": attributes},
        )
        with sandbox.load_component_and_build_defs(path) as (_, defs):
            return defs


def asset_keys(defs: dg.Definitions) -> set[str]:
    return {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}


# --- YAML


def test_one_job_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    defs = load({"database": url(tmp_path), "jobs": [{"name": "flights", "queries": [{"name": "alerts"}]}]})
    assert asset_keys(defs) == {"flights/checkpoint", "flights/savepoint", "flights/query/alerts"}


def test_all_jobs_of_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    put_jobs(tmp_path, "flights", "orders")
    defs = load({"database": url(tmp_path), "discover": True, "jobs": [{"name": "flights", "group": "mine"}]})
    groups = {spec.key.to_user_string(): spec.group_name for spec in defs.resolve_all_asset_specs()}
    assert groups["flights/savepoint"] == "mine"
    assert groups["orders/savepoint"] == "orders"
    assert groups["orders/query/alerts"] == "orders"


def test_outside_of_development_loading_asks_no_database(tmp_path: Path) -> None:
    put_jobs(tmp_path, "flights")
    defs = load({"database": url(tmp_path), "discover": True, "jobs": [{"name": "orders"}]})
    assert asset_keys(defs) == {"orders/checkpoint", "orders/savepoint"}


def test_a_translator_by_its_name(tmp_path: Path) -> None:
    attributes = {"database": url(tmp_path), "jobs": [{"name": "flights"}], "translator": f"{__name__}:Loud"}
    component = StreamingJobComponent.from_attributes_dict(attributes=attributes)
    defs = component.build_defs_from_state(CONTEXT, None)
    assert "LOUD/flights" in asset_keys(defs)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere:Names", "No module named 'nowhere'"),
        (f"{__name__}:Quiet", "has no attribute 'Quiet'"),
        (f"{__name__}:load", "is not a subclass of coord_control.dagster.StreamingJobTranslator"),
        ("Names", "No module named 'Names'"),
        ("", "write it as package.module:Class"),
    ],
)
def test_a_translator_that_is_none_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        StreamingJobComponent(translator=name)


def test_a_misspelt_attribute_is_refused() -> None:
    with pytest.raises(Exception, match="discovery"):
        StreamingJobComponent.from_attributes_dict(attributes={"discovery": True})


def test_values_may_be_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DATABASE", url(tmp_path))
    component = StreamingJobComponent.from_attributes_dict(attributes={"database": "{{ env.MY_DATABASE }}"})
    assert component.database == url(tmp_path)


def test_text_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PORT", "8080")
    start = {
        "script": "flights.py",
        "args": ["--days", "365", "1e3", "007", "{{ env.MY_PORT }}", ""],
        "env": {"DAYS": "365", "PORT": "{{ env.MY_PORT }}", "ON": "True"},
    }
    attributes = {"jobs": [{"name": "flights", "start": start}]}
    made = StreamingJobComponent.from_attributes_dict(attributes=attributes).jobs[0].start
    assert made is not None
    assert made.args == ["--days", "365", "1e3", "007", "8080", ""]
    assert made.env == {"DAYS": "365", "PORT": "8080", "ON": "True"}


def test_every_yaml_in_the_documentation_is_a_component() -> None:
    text = (CHECKOUT / "docs" / "dagster.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)]
    assert blocks
    for block in blocks:
        assert block["type"] == "dagster_defs.StreamingJobComponent"
        attributes = {**block["attributes"], "translator": f"{__name__}:Loud"}
        attributes["jobs"][0]["start"]["working_directory"] = "/jobs"
        component = StreamingJobComponent.from_attributes_dict(attributes=attributes)
        # The page shows all there is: nothing that a spec knows is left out.
        assert component.model_fields_set == set(StreamingJobComponent.model_fields)
        assert component.jobs[0].model_fields_set == set(StreamingJobSpec.model_fields)
        queries = component.jobs[0].queries
        assert queries is not None
        assert queries[0].model_fields_set == set(QuerySpec.model_fields)
        schedule = component.jobs[0].schedules[0]
        assert schedule.model_fields_set == set(type(schedule).model_fields)


# --- what is kept of the database


def test_the_state_is_what_the_database_knows(tmp_path: Path) -> None:
    put_jobs(tmp_path, "flights")
    component, state = StreamingJobComponent(database=url(tmp_path), discover=True), tmp_path / "state"
    component.write_state_to_path(state)
    assert [job.name for job in from_json(state.read_text()).jobs] == ["flights"]
    defs = component.build_defs_from_state(CONTEXT, state)
    assert "flights/query/alerts" in asset_keys(defs)


def test_a_database_that_cannot_be_reached_leaves_the_state_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_jobs(tmp_path, "flights")
    component, state = StreamingJobComponent(database=url(tmp_path), discover=True), tmp_path / "state"
    component.write_state_to_path(state)
    before = state.read_text()
    (tmp_path / "control.db").unlink()
    with caplog.at_level(logging.WARNING, "coord_control.dagster"):
        component.write_state_to_path(state)
    assert state.read_text() == before
    assert len(caplog.records) == 1
    assert "could not be read, its last known state is used" in caplog.text


def test_without_an_earlier_state_there_is_an_empty_one(tmp_path: Path) -> None:
    component, state = StreamingJobComponent(database=url(tmp_path), discover=True), tmp_path / "state"
    component.write_state_to_path(state)
    assert from_json(state.read_text()).jobs == ()
    assert not (tmp_path / "control.db").exists()


@pytest.mark.parametrize("management", ["LOCAL_FILESYSTEM", "VERSIONED_STATE_STORAGE"])
def test_what_dagster_keeps_survives_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, management: str
) -> None:
    """Through Dagster's own refresh, which hands out a new folder, or clears the old one, each time."""
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    put_jobs(tmp_path, "flights")
    attributes = {"database": url(tmp_path), "discover": True, "defs_state": {"management_type": management}}
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            StreamingJobComponent,
            defs_yaml_contents={"type": "dagster_defs.StreamingJobComponent", "attributes": attributes},
        )
        with sandbox.load_component_and_build_defs(path) as (_, defs):
            assert "flights/savepoint" in asset_keys(defs)
        (tmp_path / "control.db").rename(tmp_path / "gone")
        with sandbox.load_component_and_build_defs(path) as (_, defs):
            assert "flights/savepoint" in asset_keys(defs)
        (tmp_path / "gone").rename(tmp_path / "control.db")
        put_jobs(tmp_path, "orders")
        with sandbox.load_component_and_build_defs(path) as (_, defs):
            assert {"flights/savepoint", "orders/savepoint"} <= asset_keys(defs)


def test_a_state_that_cannot_be_read_is_no_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    component, state = StreamingJobComponent(database=url(tmp_path), discover=True), tmp_path / "state"
    state.write_text("{")
    with caplog.at_level(logging.WARNING, "coord_control.dagster"):
        defs = component.build_defs_from_state(CONTEXT, state)
    assert asset_keys(defs) == set()
    assert "will be refreshed" in caplog.text


def test_each_database_has_a_state_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(database: str | None) -> str:
        return StreamingJobComponent(database=database).defs_state_config.key

    monkeypatch.setenv("COORD_CONTROL", "sqlite:////elsewhere/control.db")
    assert key("sqlite:////a/control.db") != key("sqlite:////b/control.db")
    assert key(None) == key("sqlite:////elsewhere/control.db")
    assert len(key("sqlite:////" + "x" * 3000 + "/control.db")) < 100
    assert "secret" not in key("postgresql://me:secret@127.0.0.1/secret2").replace("secret2", "")
    monkeypatch.setenv("COORD_CONTROL", "none")
    assert key(None) == "StreamingJobComponent[none]"


def test_a_server_that_says_nothing_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """It takes the connection, and then nothing more comes."""
    with socket.create_server(("127.0.0.1", 0)) as server, caplog.at_level(logging.WARNING, "coord_control.dagster"):
        address = f"postgresql://me@127.0.0.1:{server.getsockname()[1]}/control"
        assert refreshed_facts(address, seconds=0.3) is None
    assert "within 0.3 s" in caplog.text


def test_a_server_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with caplog.at_level(logging.WARNING, "coord_control.dagster"):
        assert refreshed_facts(f"postgresql://me@127.0.0.1:{port}/control", seconds=60.0) is None
    assert "could not be read" in caplog.text


@pytest.mark.parametrize("address", ["none", "mysql://me@127.0.0.1/control"])
def test_an_address_that_is_none(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coord_control.dagster"):
        assert refreshed_facts(address, seconds=60.0) is None
    assert "could not be read" in caplog.text
