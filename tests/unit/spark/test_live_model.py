"""The model of a live value: what its fields can be, and what a change has to fit."""

from __future__ import annotations

import datetime
import json
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, model_validator

from coord_control.errors import LiveModelInvalid, LiveValueInvalid
from coord_control.protocol.records import MAX_LIVE_BYTES
from coord_control.spark.live.live_model import LiveModel


class Limits(BaseModel):
    minutes: Annotated[float, Field(ge=0, le=600)] = 30.0
    rows: int = 5
    is_open: bool = True
    carrier: str | None = None
    day: datetime.date = datetime.date(2013, 1, 1)
    since: datetime.datetime = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))

    @model_validator(mode="after")
    def _fits(self) -> Limits:
        if self.minutes > 100 and self.rows > 10:
            raise ValueError("too much")
        return self


def limits() -> LiveModel[Limits]:
    return LiveModel("limits", Limits())


def changed(**fields: Any) -> dict[str, str | None]:
    model = limits()
    return model.texts(model.changed(model.default, fields))


def test_each_field_has_a_type_of_spark_and_a_function() -> None:
    assert limits().fields == {
        "minutes": "DoubleType",
        "rows": "LongType",
        "is_open": "BooleanType",
        "carrier": "StringType",
        "day": "DateType",
        "since": "TimestampType",
    }
    assert limits().function("is_open") == "live_limits_is_open"


def test_values_are_texts_that_the_other_side_can_read() -> None:
    assert changed(rows=2**63 - 1, is_open=False, carrier="a=b&c ü%") == {
        "minutes": "30.0",
        "rows": "9223372036854775807",
        "is_open": "false",
        "carrier": "a=b&c ü%",
        "day": "2013-01-01",
        "since": "2013-01-01T10:00:00Z",
    }
    assert changed()["carrier"] is None


def test_a_text_becomes_what_the_model_says() -> None:
    texts = changed(minutes="45", rows="7", is_open="false", day="2014-02-03", since="2014-02-03T04:05:06Z")
    assert texts["minutes"] == "45.0"
    assert (texts["rows"], texts["is_open"], texts["day"]) == ("7", "false", "2014-02-03")
    assert texts["since"] == "2014-02-03T04:05:06Z"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"minutes": 601}, "minutes"),
        ({"minutes": "soon"}, "minutes"),
        ({"minutes": None}, "minutes"),
        ({"minutes": 200, "rows": 11}, "too much"),
        ({"hours": 1}, "no field 'hours'"),
        ({"rows": 2**63}, "64 bits"),
        ({"since": "2014-02-03T04:05:06"}, "no time zone"),
        ({"carrier": "x" * MAX_LIVE_BYTES}, "the limit is"),
        ({"carrier": object()}, "not JSON serializable"),
        ({"minutes": float("nan")}, "JSON"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], problem: str) -> None:
    model = limits()
    with pytest.raises(LiveValueInvalid, match=problem):
        model.changed(model.default, fields)


def test_the_fields_of_a_refusal_are_named() -> None:
    model = limits()
    with pytest.raises(LiveValueInvalid) as caught:
        model.changed(model.default, {"minutes": "soon"})
    assert [each["loc"] for each in caught.value.fields] == [["minutes"]]
    with pytest.raises(LiveValueInvalid, match="did you mean minutes") as caught:
        model.changed(model.default, {"minute": 1})
    assert [each["loc"] for each in caught.value.fields] == [["minute"]]


def test_a_number_that_is_not_finite_has_no_literal() -> None:
    class Loose(BaseModel):
        ratio: float = 1.0

    with pytest.raises(LiveModelInvalid, match="default"):
        LiveModel("loose", Loose(ratio=float("inf")))

    class Optional(BaseModel):
        ratio: float | None = 1.0

    with pytest.raises(LiveModelInvalid, match="cannot be used"):
        LiveModel("optional", Optional(ratio=float("inf")))


def test_a_value_that_was_written_down_is_read_by_a_model_with_more_fields() -> None:
    class Before(BaseModel):
        minutes: float = 1.0

    data = LiveModel("limits", Before()).default
    assert limits().load(data) == Limits(minutes=1.0)


def test_a_value_with_a_field_that_the_model_would_drop_is_refused() -> None:
    class After(BaseModel):
        minutes: float = 1.0

    with pytest.raises(LiveValueInvalid, match="rows"):
        LiveModel("limits", After()).load(limits().default)


class _Empty(BaseModel):
    pass


class _List(BaseModel):
    names: list[str] = []


class _Either(BaseModel):
    one: int | str = 1


class _Reserved(BaseModel):
    set: int = 1


@pytest.mark.parametrize(
    ("name", "default", "problem"),
    [
        ("my-limits", Limits(), "SQL text names it"),
        ("1st", Limits(), "SQL text names it"),
        ("limits", Limits, "instance"),
        ("limits", {"minutes": 1}, "instance"),
        ("limits", _Empty(), "no fields"),
        ("limits", _List(), "'names'"),
        ("limits", _Either(), "'one'"),
        ("limits", _Reserved(), "cannot be named 'set'"),
        ("limits", Limits(minutes=1).model_copy(update={"minutes": 900.0}), "default"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_what_cannot_be_a_live_value_is_refused_when_it_is_declared(name: str, default: Any, problem: str) -> None:
    with pytest.raises(LiveModelInvalid, match=problem):
        LiveModel(name, default)


def test_forms_can_be_made_of_its_schema() -> None:
    assert limits().schema()["properties"]["minutes"]["maximum"] == 600
    assert json.loads(limits().default)["minutes"] == 30.0
