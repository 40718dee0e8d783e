"""Which models are plain, and that what is taken for plain comes back from JSON as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from coord_control.errors import EventInvalid
from coord_control.spark.worker.model_codec import EventTypes
from coord_control.spark.worker.plain_models import plain_validator


class Plain(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    minutes: float = 1.5
    version: int | None = None
    is_urgent: bool = Field(default=False, alias="urgent")


class Constrained(BaseModel):
    minutes: int = Field(default=0, ge=0)


class Nested(BaseModel):
    inner: Plain | None = None


class Listing(BaseModel):
    numbers: list[int] = []


class Validated(BaseModel):
    name: str = ""

    @field_validator("name")
    @classmethod
    def refuse(cls, name: str) -> str:
        raise ValueError("never")


class ValidatedAsAWhole(BaseModel):
    name: str = ""

    @model_validator(mode="after")
    def refuse(self) -> ValidatedAsAWhole:
        raise ValueError("never")


class Written(BaseModel):
    minutes: int = 0

    @field_serializer("minutes")
    def write(self, minutes: int) -> str:
        return "many"


class WrittenAsAWhole(BaseModel):
    minutes: int = 0

    @model_serializer
    def write(self) -> dict[str, Any]:
        return {"minutes": "many"}


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2


class Excluded(BaseModel):
    name: str = Field(exclude=True)


class Stripped(BaseModel):
    model_config = ConfigDict(str_max_length=3)

    name: str = ""


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Initialised(BaseModel):
    name: str = ""

    def model_post_init(self, context: Any) -> None:
        raise ValueError("never")


class OwnInit(BaseModel):
    name: str = ""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)


class Root(RootModel[int]):
    pass


NOT_PLAIN = [
    Constrained,
    Nested,
    Listing,
    Validated,
    ValidatedAsAWhole,
    Written,
    WrittenAsAWhole,
    Computed,
    Excluded,
    Stripped,
    Open,
    Initialised,
    OwnInit,
    Root,
]


@pytest.mark.parametrize("model", NOT_PLAIN)
def test_a_model_that_adds_anything_of_its_own_is_not_plain(model: type[BaseModel]) -> None:
    assert plain_validator(model) is None


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers())


@given(st.fixed_dictionaries(dict.fromkeys(Plain.model_fields, VALUES)))
def test_what_is_taken_for_plain_comes_back_from_json(values: dict[str, Any]) -> None:
    validator = plain_validator(Plain)
    assert validator is not None
    event = Plain.model_construct(**values)
    if validator.isinstance_python(event.__dict__):
        data = event.__pydantic_serializer__.to_json(event)
        assert Plain.__pydantic_validator__.validate_json(data, by_alias=False, by_name=True) == event


@given(st.fixed_dictionaries({"name": st.text(), "minutes": st.floats(), "version": VALUES, "is_urgent": VALUES}))
def test_an_event_leaves_exactly_when_it_could_be_parsed(values: dict[str, Any]) -> None:
    events = EventTypes("op", "down", [Plain])
    event = Plain.model_construct(**values)
    try:
        data = event.__pydantic_serializer__.to_json(event, warnings=False)
        parsed = Plain.__pydantic_validator__.validate_json(data, by_alias=False, by_name=True)
    except (ValidationError, ValueError):
        with pytest.raises(EventInvalid):
            events.encode(event)
    else:
        assert events.decode([events.encode(event)]) == [parsed]


@pytest.mark.parametrize("minutes", [math.inf, -math.inf, math.nan])
def test_a_number_without_a_form_in_json_is_not_plain(minutes: float) -> None:
    validator = plain_validator(Plain)
    assert validator is not None
    assert not validator.isinstance_python(Plain.model_construct(name="", minutes=minutes).__dict__)


def test_a_number_that_is_too_long_to_be_read_back_does_not_leave() -> None:
    with pytest.raises(EventInvalid, match="number out of range"):
        EventTypes("op", "down", [Plain]).encode(Plain.model_construct(name="a", version=10**4_299 * 10))
