"""A saved state is loaded whole, or not at all."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, computed_field, model_validator

from coord_control.coordinators.saved_state import lost_numbers, parse_saved, problems_of


class Limits(BaseModel):
    low: int = 0


class Model(BaseModel):
    rows: int = 0
    limits: Limits = Limits()


class Lenient(Model):
    model_config = ConfigDict(extra="ignore")


class Migrating(Model):
    @model_validator(mode="before")
    @classmethod
    def _moved(cls, saved: Any) -> Any:
        return {("rows" if key == "count" else key): value for key, value in saved.items()}


class Computing(Model):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def doubled(self) -> int:
        return 2 * self.rows


@pytest.mark.parametrize(
    ("saved", "field"),
    [(b'{"count":3}', "count"), (b'{"rows":1,"limits":{"high":9}}', "limits.high")],
    ids=["renamed", "nested"],
)
def test_a_renamed_field_drops_nothing_in_silence(saved: bytes, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_saved(Model, saved)
    assert problems_of(refused.value).startswith(
        f"field {field}: it was saved, the model has no such field, and it would"
    )
    assert "extra='ignore'" in problems_of(refused.value)
    # The model may say that fields can go.
    parse_saved(Lenient, saved)


def test_a_renamed_field_is_moved_by_a_validator() -> None:
    assert parse_saved(Migrating, b'{"count":3}') == Migrating(rows=3)


def test_computed_fields_are_saved_and_computed_again() -> None:
    assert parse_saved(Computing, b'{"rows":2,"doubled":4}').doubled == 4
    with pytest.raises(ValidationError, match="gone"):
        parse_saved(Computing, b'{"rows":2,"doubled":4,"gone":1}')


def test_what_does_not_fit_is_named_as_ever() -> None:
    with pytest.raises(ValidationError) as refused:
        parse_saved(Model, b'{"rows":"many","gone":1}')
    assert "field rows: Input should be a valid integer" in problems_of(refused.value)


class Bounds(BaseModel):
    """The bounds of a value; None is none."""

    most: float | None = None
    others: list[float | None] = []
    by_name: dict[str, tuple[float | None, int]] = {}
    inner: Bounds | None = None


class Texts(Bounds):
    model_config = ConfigDict(ser_json_inf_nan="strings")


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        (Bounds(most=math.inf), "most"),
        (Bounds(others=[1.0, None, math.nan]), "others.2"),
        (Bounds(by_name={"a": (-math.inf, 1)}), "by_name.a.0"),
        (Bounds(inner=Bounds(most=math.inf)), "inner.most"),
    ],
)
def test_a_number_without_a_form_in_json_is_not_taken_for_none(bounds: Bounds, field: str) -> None:
    """Bug: infinity was saved as null, and came back as None where the field allows it."""
    back = Bounds.model_validate_json(bounds.model_dump_json())
    assert lost_numbers(bounds, back) == f"field {field}: JSON has no form for infinity and NaN"


@pytest.mark.parametrize("bounds", [Bounds(most=1e308, others=[None, 0.0]), Texts(most=math.inf)])
def test_numbers_and_none_that_come_back_are_not_lost(bounds: Bounds) -> None:
    back = type(bounds).model_validate_json(bounds.model_dump_json())
    assert back == bounds
    assert lost_numbers(bounds, back) == ""
