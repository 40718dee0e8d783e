"""Typed configs of live values and control events: what the launchpad offers, and which request it becomes."""

# Without "from __future__ import annotations": Dagster reads the types of a step's arguments, and not as text.

import datetime
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import pytest
from dagster._config.field_utils import Selector
from pydantic import BaseModel, Field

from coord_control.dagster.facts import DatabaseFacts, KnownJob, KnownModel, KnownOperator, from_json, to_json
from coord_control.dagster.runs.action_configs import SendConfig, SetConfig, job_choice
from coord_control.dagster.runs.form_configs import FormChoice, event_choice, live_choice
from coord_control.storage.records import CommandKind
from tests.agent_kit import LIVE, OPERATOR
from tests.dagster.action_kit import Actions, meanwhile
from tests.dagster_kit import Plane, plane_in
from tests.patience import eventually


class Mode(enum.Enum):
    FAST = "fast"
    SAFE = "sa-fe"


class Rules(BaseModel):
    """Names like those that configs have themselves, and every kind of field."""

    minutes: int = Field(default=30, ge=1, description="Late from here on.")
    share: float = 0.5
    on: bool = True
    text: str = Field(default="a", alias="schema")
    since: datetime.date | None = None
    at: datetime.datetime | None = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    mode: Mode = Mode.SAFE
    level: Literal[1, 2] = 1
    maybe: bool | None = None
    names: list[str] = ["x"]
    made: int = Field(default_factory=lambda: 7)
    set_to_null: str | None = None


class Ask(BaseModel):
    minutes: int
    carrier: str | None
    mode: Mode


class Reset(BaseModel):
    pass


def known(model: type[BaseModel], name: str = "") -> KnownModel:
    return KnownModel(name or model.__name__, model.model_json_schema())


ANYTHING = KnownModel("Anything", {"type": "object"})
FLIGHTS = KnownJob(
    "flights", (), (KnownOperator("op", (known(Rules), known(Ask), known(Reset), ANYTHING)),), (known(Rules, "rules"),)
)
TRAINS = KnownJob("trains", (), (), (known(Ask, "ask"), ANYTHING))
NAMES = ["flights", "trains"]


def chosen(choice: FormChoice | None, config: dict[str, Any]) -> tuple[str, Any]:
    """What a run does with this config."""
    assert choice is not None
    model, found = choice.config, list[tuple[str, Any]]()

    @dg.op
    def op(config: model) -> None:  # type: ignore[valid-type] # made of what is known
        found.append(choice.plain(config))

    @dg.job
    def job() -> None:
        op()

    job.execute_in_process(run_config={"ops": {"op": {"config": config}}})
    [one] = found
    return one


def live(value: dict[str, Any], **config: Any) -> tuple[str, SetConfig]:
    choice = live_choice((FLIGHTS, TRAINS), job_choice(NAMES, "StreamingJob"), NAMES)
    return chosen(choice, {"value": value, **config})


def event(event: dict[str, Any], **config: Any) -> tuple[str, SendConfig]:
    choice = event_choice((FLIGHTS, TRAINS), job_choice(NAMES, "StreamingJob"), NAMES)
    return chosen(choice, {"event": event, **config})


def offered(choice: FormChoice | None, name: str) -> dict[str, Any]:
    """The fields of each member of the selector, as the launchpad knows them."""
    assert choice is not None
    selector = choice.config.to_fields_dict()[name].config_type
    assert isinstance(selector, Selector)
    shapes: dict[str, Any] = {label: field.config_type for label, field in selector.fields.items()}
    return {label: shape.fields for label, shape in shapes.items()}


# What is offered.


def test_each_live_value_has_its_fields_with_their_types_and_none_is_required() -> None:
    members = offered(live_choice((FLIGHTS, TRAINS), job_choice(NAMES, "StreamingJob"), NAMES), "value")
    assert list(members) == ["flights/rules", "trains/ask", "other"]
    rules = members["flights/rules"]
    assert set(rules) == {*(Rules.model_json_schema()["properties"]), "set_to_null_"}
    assert not any(each.is_required for each in rules.values())
    kinds = {
        name: each.config_type.inner_type.key
        for name, each in rules.items()
        if name in ("minutes", "share", "on", "schema", "since")
    }
    assert kinds == {
        "minutes": "IntSourceType",
        "share": "Float",
        "on": "BoolSourceType",
        "schema": "StringSourceType",
        "since": "StringSourceType",
    }
    assert rules["minutes"].description == "Late from here on. At least 1. The model's default: 30"
    mode = rules["mode"].config_type.inner_type
    assert {each.config_value for each in mode.enum_values} == {"fast", "sa-fe"}


def test_each_control_event_has_its_fields_with_their_defaults() -> None:
    members = offered(event_choice((FLIGHTS, TRAINS), job_choice(NAMES, "StreamingJob"), NAMES), "event")
    assert list(members) == ["flights/op/Ask", "flights/op/Reset", "flights/op/Rules", "other"]
    assert {name for name, each in members["flights/op/Ask"].items() if each.is_required} == {
        "minutes",
        "mode",
    }
    assert members["flights/op/Reset"] == {}
    rules = members["flights/op/Rules"]
    assert not any(each.is_required for each in rules.values())
    defaults = {name: each.default_value for name, each in rules.items() if each.default_provided}
    assert {name: defaults[name] for name in ("minutes", "share", "on", "schema", "level", "names")} == {
        "minutes": 30,
        "share": 0.5,
        "on": True,
        "schema": "a",
        "level": 1,
        "names": ["x"],
    }


def test_nothing_is_offered_if_no_schema_has_a_form() -> None:
    plain = KnownJob("flights", (), (KnownOperator("op", (ANYTHING,)),), (ANYTHING,))
    choice = job_choice(NAMES, "StreamingJob")
    assert live_choice((plain,), choice, NAMES) is None
    assert event_choice((plain,), choice, NAMES) is None


def test_forms_do_not_change_when_the_facts_are_stored() -> None:
    facts = DatabaseFacts((FLIGHTS, TRAINS))
    assert from_json(to_json(facts)) == facts


def test_definitions_can_be_loaded_again_with_other_models_of_the_same_name() -> None:
    class Speed(enum.Enum):
        SLOW = "slow"

    class Limits(BaseModel):
        mode: Mode

    class Limits2(BaseModel):
        mode: Speed

    choice = job_choice(["a", "b"], "StreamingJob")
    for model, value in ((Limits, "fast"), (Limits2, "slow"), (Limits, "sa-fe")):
        jobs = (KnownJob("a", (), (), (known(model, "limits"),)),)
        job, config = chosen(live_choice(jobs, choice, ["a", "b"]), {"value": {"a/limits": {"mode": value}}})
        assert (job, config.fields) == ("a", {"mode": value})


# What it becomes.


def test_only_the_fields_that_are_given_are_changed() -> None:
    job, config = live({"flights/rules": {"minutes": 45, "on": False, "mode": "fast"}}, expect=3, timeout_seconds=5.0)
    assert (job, config.name, config.expect, config.timeout_seconds) == ("flights", "rules", 3, 5.0)
    assert config.fields == {"minutes": 45, "on": False, "mode": "fast"}
    assert live({"trains/ask": {"carrier": "UA"}})[1].fields == {"carrier": "UA"}


def test_a_field_of_a_value_can_be_set_to_null_and_one_with_that_name_can_be_set() -> None:
    given = {"set_to_null_": ["since", "maybe"], "set_to_null": "x", "names": ["y"], "share": 1}
    assert live({"flights/rules": given})[1].fields == {
        "since": None,
        "maybe": None,
        "set_to_null": "x",
        "names": ["y"],
        "share": 1.0,
    }


def test_an_event_has_the_defaults_of_its_model_and_what_it_computes_is_left_to_it() -> None:
    job, config = event({"flights/op/Rules": {}})
    assert (job, config.operator, config.event_type, config.subtask) == ("flights", "op", "Rules", None)
    assert "made" not in config.payload
    assert Rules.model_validate(config.payload) == Rules()


def test_an_event_has_what_was_given_and_may_have_nulls() -> None:
    given = {"minutes": 5, "carrier": None, "mode": "sa-fe"}
    assert event({"flights/op/Ask": given}, subtask=1)[1].payload == given
    assert event({"flights/op/Ask": given}, subtask=1)[1].subtask == 1
    payload = event({"flights/op/Rules": {"at": None, "made": 8, "share": 2, "names": []}})[1].payload
    assert (payload["at"], payload["made"], payload["share"], payload["names"]) == (None, 8, 2.0, [])
    assert event({"flights/op/Reset": {}})[1].payload == {}


def test_what_has_no_form_can_be_given_as_json() -> None:
    job, config = live({"other": {"job": "trains", "name": "new", "fields": {"a": 1}}})
    assert (job, config.name, config.fields) == ("trains", "new", {"a": 1})
    sent = {"job": "flights", "operator": "op", "event_type": "Anything", "payload": '{"a": 1}'}
    name, one = event({"other": sent})
    assert (name, one.operator, one.event_type, one.payload) == ("flights", "op", "Anything", '{"a": 1}')


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"flights/nothing": {}},
        {"flights/rules": {"minute": 5}},
        {"flights/rules": {"minutes": "5"}},
        {"flights/rules": {"mode": "slow"}},
        {"flights/rules": {}, "trains/ask": {}},
    ],
)
def test_the_launchpad_refuses_what_does_not_fit_the_types(value: dict[str, Any]) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError):
        live(value)


# As runs, with a driver.


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path) as plane:
        yield plane


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


@pytest.fixture
def actions(plane: Plane, instance: dg.DagsterInstance) -> Actions:
    return Actions(plane, instance)


def test_a_live_value_is_changed_by_a_form_and_by_json(plane: Plane, actions: Actions) -> None:
    plane.driver()
    eventually(lambda: plane.client().job("flights").live_values)

    ended = actions.run("set_live_value_form", value={f"flights/{LIVE}": {"minutes": 45}}, expect=1)

    assert ended.is_success, ended.description
    assert ended.metadata["live_value"] == LIVE
    assert (ended.metadata["version"], ended.metadata["value"]) == (2, {"minutes": 45})
    assert ended.metadata["by"].startswith("dagster:run:")
    assert ended.has_said("limits of job flights has version 2")
    for number, fields in enumerate(({"minutes": 46}, '{"minutes": 47}')):
        ended = actions.run("set_live_value", name=LIVE, fields=fields)
        assert (ended.is_success, ended.metadata["version"]) == (True, 3 + number), ended.description
    assert [each.value["minutes"] for each in plane.client().live_changes("flights")] == [47, 46, 45, 30]


def test_a_value_that_does_not_fit_is_shown_by_field_and_nothing_is_changed(plane: Plane, actions: Actions) -> None:
    plane.driver()
    ended = actions.run("set_live_value", name=LIVE, fields={"minutes": "soon"})
    assert "live value limits: minutes: Input should be a valid integer. Nothing was changed" in ended.description
    assert "| minutes | Input should be a valid integer |" in ended.metadata["problems"]
    ended = actions.run("set_live_value", name=LIVE, fields={"minutes": 45}, expect=7)
    assert ended.metadata["reason"] == "LIVE_VERSION_CHANGED"
    nothing: Any
    for nothing in ({}, "[]"):
        assert "name at least one field" in actions.run("set_live_value", name=LIVE, fields=nothing).description
    assert len(plane.client().live_changes("flights")) == 1


def test_a_change_is_made_once_however_often_the_run_is_repeated(plane: Plane, actions: Actions) -> None:
    plane.driver()
    first = actions.run("set_live_value", name=LIVE, fields={"minutes": 45})
    again = actions.run("set_live_value", again=first, name=LIVE, fields={"minutes": 45})
    assert [each.metadata["version"] for each in (first, again)] == [2, 2]
    assert len(plane.client().commands("flights", kind=CommandKind.SET_LIVE)) == 1


def test_an_event_is_sent_by_a_form(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()

    with meanwhile(lambda: _apply(plane, driver)):
        ended = actions.run("send_control_event_form", event={f"flights/{OPERATOR}/Threshold": {"minutes": 45}})

    assert ended.is_success, ended.description
    assert driver.recorded_events() == [45]
    assert ended.metadata == {"number": 1, "operator": OPERATOR, "event_type": "Threshold"}


def _apply(plane: Plane, driver: Any) -> None:
    eventually(lambda: any(each.number for each in plane.client().commands("flights")))
    driver.run_epoch()
