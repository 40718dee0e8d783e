"""Forms of models: which input each field gets, and what is made of what a user enters."""

from __future__ import annotations

import datetime
import decimal
import enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel

from coord_control.control.model_form import InputKind, ModelForm, form_of


class Mode(enum.Enum):
    FAST = "fast"
    SAFE = "safe"


class Inner(BaseModel):
    x: int = 1


class Everything(BaseModel):
    """All kinds."""

    minutes: int = Field(ge=1, lt=100, description="How late.")
    share: float = 0.5
    on: bool = True
    note: Annotated[str, Field(max_length=5)] = ""
    day: datetime.date = datetime.date(2026, 1, 31)
    at: datetime.datetime
    mode: Mode = Mode.SAFE
    level: Literal[1, 2] = 1
    inner: Inner = Inner()
    names: list[str] = []
    price: decimal.Decimal = decimal.Decimal("1")
    maybe: int | None = None
    maybe_on: bool | None = None
    maybe_note: str | None = None
    maybe_mode: Mode | None = Field(default=None, description="Perhaps.")
    made: int = Field(default_factory=lambda: 7)
    made_note: str = Field(default_factory=lambda: "made")


def form(model: type[BaseModel] = Everything) -> ModelForm:
    found = form_of(model.model_json_schema(by_alias=False))
    assert found is not None
    return found


#: What a browser sends of a form in which nothing was changed, and what has no default was entered.
FILLED = {"minutes": "30", "at": "2026-01-31T12:00:00Z"}


def entered(**changes: str) -> dict[str, str]:
    """The texts as a page fills them in."""
    texts = {each.name: each.text(each.default) for each in form().fields if each.kind is not InputKind.BOOLEAN}
    return {**texts, "on": "on", **FILLED, **changes}


def test_each_field_has_the_input_of_its_type() -> None:
    kinds = {each.name: each.kind.value for each in form().fields}
    assert kinds == {
        "minutes": "integer",
        "share": "number",
        "on": "boolean",
        "note": "text",
        "day": "date",
        "at": "time",
        "mode": "choice",
        "level": "choice",
        "inner": "json",
        "names": "json",
        "price": "json",
        "maybe": "integer",
        "maybe_on": "choice",
        "maybe_note": "text",
        "maybe_mode": "choice",
        "made": "integer",
        "made_note": "text",
    }
    fields = {each.name: each for each in form().fields}
    assert (form().title, form().description) == ("Everything", "All kinds.")
    assert fields["mode"].choices == ("fast", "safe")
    assert fields["maybe_on"].choices == (True, False)
    assert [name for name, each in fields.items() if each.is_nullable] == [
        "maybe",
        "maybe_on",
        "maybe_note",
        "maybe_mode",
    ]
    assert [name for name, each in fields.items() if each.is_required] == ["minutes", "at"]
    assert (fields["minutes"].hint, fields["maybe_mode"].hint) == ("How late. At least 1. Less than 100", "Perhaps")


def test_a_form_that_is_sent_as_it_was_filled_in_makes_the_model_with_its_defaults() -> None:
    values, problems = form().read(entered(), nulls=["maybe_note"])
    assert problems == {}
    assert not {"made", "made_note"} & set(values), "the model computes them"
    assert Everything.model_validate(values) == Everything(
        minutes=30, at=datetime.datetime(2026, 1, 31, 12, 0, 0, 0, datetime.UTC)
    )


def test_every_kind_of_value_can_be_entered() -> None:
    changed = entered(
        share="1e3",
        note="héllo",
        day="2027-02-28",
        mode="0",
        level="1",
        inner='{"x": 5}',
        names='["a"]',
        price='"2.50"',
        maybe="-4",
        maybe_on="1",
        maybe_note="",
        maybe_mode="1",
        made="8",
        made_note="mine",
    )
    del changed["on"]
    values, problems = form().read(changed)
    assert problems == {}
    assert values == {
        "minutes": 30,
        "share": 1000.0,
        "on": False,
        "note": "héllo",
        "day": "2027-02-28",
        "at": "2026-01-31T12:00:00Z",
        "mode": "fast",
        "level": 2,
        "inner": {"x": 5},
        "names": ["a"],
        "price": "2.50",
        "maybe": -4,
        "maybe_on": False,
        "maybe_note": "",
        "maybe_mode": "safe",
        "made": 8,
        "made_note": "mine",
    }
    assert Everything.model_validate(values).maybe_note == ""


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("minutes", "", "Enter a value."),
        ("minutes", "3.5", "Enter a whole number."),
        ("minutes", "\u0661", "Enter a whole number."),
        ("minutes", "0", "It must be at least 1."),
        ("minutes", "100", "It must be less than 100."),
        ("share", "much", "Enter a number."),
        ("share", "nan", "Enter a finite number."),
        ("note", "too long", "It must have at most 5 characters."),
        ("day", "31.1.2026", "Enter a date, such as 2026-01-31."),
        ("at", "noon", "Enter a date and time, such as 2026-01-31T12:00:00Z."),
        ("mode", "7", "Choose one of the values."),
        ("mode", "fast", "Choose one of the values."),
        ("maybe", "x", "Enter a whole number."),
        ("inner", "{", "Enter JSON: "),
        ("inner", "NaN", "Enter JSON: "),
    ],
)
def test_what_is_wrong_is_said_of_its_field_alone(name: str, text: str, problem: str) -> None:
    values, problems = form().read(entered(**{name: text}))
    assert list(problems) == [name]
    assert problems[name].startswith(problem)
    assert name not in values


def test_what_the_model_would_refuse_is_a_problem_and_never_a_crash() -> None:
    for text in ("", " ", "\0", "9" * 400, "[" * 2000, "1e999", "-", "🙂", "null"):
        form().read({each.name: text for each in form().fields})


class Name(RootModel[str]):
    pass


class Empty(BaseModel):
    pass


class Tree(BaseModel):
    children: list[Tree] = []


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "object"}, {"type": "string"}, Name.model_json_schema(), {"$ref": "#/$defs/A"}, {"properties": []}],
)
def test_what_is_not_an_object_with_named_fields_has_no_form(schema: dict[str, Any]) -> None:
    assert form_of(schema) is None


def test_a_model_without_fields_has_a_form_and_one_that_contains_itself_too() -> None:
    assert form(Empty).fields == ()
    assert form(Empty).read({}) == ({}, {})
    assert [each.kind for each in form(Tree).fields] == [InputKind.JSON]


def test_schemas_of_other_programs_do_no_harm() -> None:
    strange = {
        "$defs": {"A": {"$ref": "#/$defs/A"}},
        "properties": {
            "a": {"$ref": "#/$defs/A"},
            "b": True,
            "c": {"anyOf": ["x", {"type": "null"}]},
            "d": {"$ref": 5},
            "e": {"type": "integer", "minimum": "x"},
        },
    }
    found = form_of(strange)
    assert found is not None
    assert [each.kind for each in found.fields] == [*[InputKind.JSON] * 4, InputKind.INTEGER]
    assert found.fields[-1].parse("5") == 5
