"""Events and states between models and bytes: declared, checked at both ends, and back as they were."""

from __future__ import annotations

import datetime
import gc
import math
import pickle
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from coord_control.errors import (
    EventInvalid,
    EventTooLarge,
    InvalidModel,
    StateInvalid,
    StateTooLarge,
    UndeclaredEvent,
)
from coord_control.protocol.records import EventBatch, pack
from coord_control.spark.worker.model_codec import MAX_EVENT_BYTES, MAX_STATE_BYTES, EventTypes, StateType


class Threshold(BaseModel):
    minutes: int = Field(default=0, ge=0)


class Note(BaseModel):
    text: str = ""


class Thresholder(Threshold):
    """A subclass is a type of its own."""


class Undeclared(BaseModel):
    pass


class Rich(BaseModel):
    when: datetime.datetime = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    by_carrier: dict[str, list[Threshold]] = {}
    ratio: float | None = None


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    count: int = Field(default=0, alias="Count")
    written: int = Field(default=0, serialization_alias="out")
    read: int = Field(default=0, validation_alias="in")


EVENTS = EventTypes("op", "down", [Threshold, Note, Rich, Aliased])


def test_events_come_back_in_order_and_equal() -> None:
    events: list[BaseModel] = [Threshold(minutes=1), Threshold(minutes=2), Note(text='"quoted", [and] more ü')]
    events += [Threshold(minutes=3), Rich(by_carrier={"AA": [Threshold(minutes=4)]}, ratio=1.5)]
    batches = pack(EVENTS.encode(event) for event in events)
    assert [(batch.type_index, batch.length) for batch in batches] == [(0, 2), (1, 1), (0, 1), (2, 1)]
    assert EVENTS.decode(batches) == events
    assert [type(event) for event in EVENTS.decode(batches)] == [type(event) for event in events]
    assert EVENTS.decode([]) == []


def test_an_event_is_what_it_was_when_it_was_encoded() -> None:
    event = Threshold(minutes=1)
    batch = EVENTS.encode(event)
    event.minutes = 2
    assert EVENTS.decode([batch]) == [Threshold(minutes=1)]


def test_aliases_of_a_model_do_not_lose_its_fields() -> None:
    event = Aliased.model_validate({"Count": 1, "written": 2, "in": 3})
    assert (event.count, event.written, event.read) == (1, 2, 3)
    assert EVENTS.decode([EVENTS.encode(event)]) == [event]
    state = StateType("op", Aliased)
    assert state.load(0, state.dump(0, event)) == event


@pytest.mark.parametrize("event", [Thresholder(), Undeclared()], ids=["subclass", "other"])
def test_only_declared_types_are_events(event: BaseModel) -> None:
    with pytest.raises(UndeclaredEvent) as caught:
        EVENTS.encode(event)
    assert caught.value.got == type(event).__name__
    assert caught.value.declared == ["Threshold", "Note", "Rich", "Aliased"]
    assert "add it to down=[...] of job.operator()" in str(caught.value)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (Threshold.model_construct(minutes=-1), "minutes"),
        (Threshold.model_construct(minutes="many"), "minutes"),
        (Rich.model_construct(by_carrier={"AA": [Threshold.model_construct(minutes=-1)]}), "by_carrier.AA.0.minutes"),
        (Note.model_construct(text=None), "text"),
    ],
    ids=["constraint", "type", "nested", "null"],
)
def test_an_event_that_the_other_end_would_refuse_does_not_leave(event: BaseModel, field: str) -> None:
    with pytest.raises(
        EventInvalid, match=f"(?s)operator 'op': an event is not a valid {type(event).__name__}: .*{field}"
    ):
        EVENTS.encode(event)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_cannot_hold_does_not_leave(number: float) -> None:
    class Measured(BaseModel):
        value: float = 0.0

    events, state = EventTypes("op", "up", [Measured]), StateType("op", Measured)
    with pytest.raises(EventInvalid, match="not a valid Measured: field value: Input should be a valid number"):
        events.encode(Measured(value=number))
    with pytest.raises(StateInvalid, match="not a valid Measured: field value: Input should be a valid number"):
        state.dump(0, Measured(value=number))


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_number_that_json_cannot_hold_does_not_become_none(number: float) -> None:
    """Bug: a field that may be None came back as None, in events and after each epoch in states."""

    class Limit(BaseModel):
        most: float | None = 10.0

    events, state = EventTypes("op", "up", [Limit]), StateType("op", Limit)
    for refused, sent in ((EventInvalid, events.encode), (StateInvalid, partial(state.dump, 0))):
        with pytest.raises(refused, match="field most: JSON has no form for infinity and NaN"):
            sent(Limit(most=number))
        sent(Limit(most=None))


def test_the_size_of_an_event_is_limited_to_the_byte() -> None:
    frame = len(EVENTS.encode(Note()).payload)
    batch = EVENTS.encode(Note(text="x" * (MAX_EVENT_BYTES - frame)))
    assert len(batch.payload) == MAX_EVENT_BYTES == 1 << 20
    with pytest.raises(EventTooLarge) as caught:
        EVENTS.encode(Note(text="x" * (MAX_EVENT_BYTES - frame + 1)))
    assert (caught.value.size, caught.value.limit) == (MAX_EVENT_BYTES + 1, MAX_EVENT_BYTES)
    assert "send a reference to the data" in str(caught.value)


def test_what_arrives_is_checked_and_the_field_is_named() -> None:
    batch = EventBatch(0, 2, b'{"minutes":1},{"minutes":"soon"}')
    with pytest.raises(EventInvalid) as caught:
        EVENTS.decode([batch])
    assert caught.value.model == "Threshold"
    assert caught.value.problems.startswith("field minutes: Input should be a valid integer")
    with pytest.raises(EventInvalid, match=r"field \(the whole\): Input should be an object"):
        EVENTS.decode([EventBatch(0, 1, b"3")])


def test_a_misspelled_field_of_a_user_is_refused_and_named() -> None:
    class Limit(BaseModel):
        minutes: int = 10

    class Open(BaseModel, extra="ignore"):
        minutes: int = 10

    events = EventTypes("op", "down", [Limit, Open])
    with pytest.raises(EventInvalid, match="field minuts: there is no such field; the fields are: minutes") as refused:
        events.parse("Limit", b'{"minuts": 22}')
    assert [field["loc"] for field in refused.value.fields] == [["minuts"]]
    assert events.parse("Limit", b'{"minutes": 22}') == Limit(minutes=22)
    # The program that accepted it had the field.
    assert events.parse("Limit", b'{"minutes": 22, "unit": "m"}', is_accepted=True) == Limit(minutes=22)
    assert events.parse("Open", b'{"minuts": 22}') == Open()


def test_a_long_run_is_parsed_without_the_collector_and_leaves_it_as_it_was() -> None:
    states: list[bool] = []

    class Spy(BaseModel):
        number: int

        def model_post_init(self, context: Any) -> None:
            states.append(gc.isenabled())

    events = EventTypes("op", "down", [Spy])
    run = pack(EventBatch(0, 1, b'{"number":%d}' % number) for number in range(1_001))
    assert [event.number for event in events.decode(run) if isinstance(event, Spy)] == list(range(1_001))
    assert not any(states)
    assert gc.isenabled()
    with pytest.raises(EventInvalid):
        events.decode([*run, EventBatch(0, 1, b"{}")])
    assert gc.isenabled()
    gc.disable()
    try:
        events.decode(run)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_event_types_travel_in_a_closure() -> None:
    batch = EVENTS.encode(Threshold(minutes=7))
    travelled = pickle.loads(pickle.dumps(EVENTS))
    assert travelled.models == EVENTS.models
    assert (travelled.operator, travelled.direction) == ("op", "down")
    assert travelled.decode([batch]) == [Threshold(minutes=7)]
    assert travelled.encode(Threshold(minutes=7)) == batch


@pytest.mark.parametrize("model", [int, dict, Threshold(), "Threshold", None])
def test_only_models_can_be_declared(model: Any) -> None:
    with pytest.raises(InvalidModel, match=r"events are pydantic models \(BaseModel\)"):
        EventTypes("op", "down", [model])
    with pytest.raises(InvalidModel, match=r"operator state is a pydantic model \(BaseModel\)"):
        StateType("op", model)


def test_a_state_model_begins_by_itself() -> None:
    class Required(BaseModel):
        inner: Threshold
        count: int

    with pytest.raises(InvalidModel) as caught:
        StateType("op", Required)
    assert "every field needs a default, a new subtask begins with Required()" in str(caught.value)
    assert "field inner: Field required; field count: Field required" in str(caught.value)


def test_a_state_comes_back() -> None:
    state = StateType("op", Rich)
    assert state.load(3, None) == Rich()
    value = Rich(by_carrier={"AA": [Threshold(minutes=4)]})
    assert state.load(3, state.dump(3, value)) == value
    assert state.load(3, None) is not state.load(3, None)


def test_a_default_state_belongs_to_one_subtask() -> None:
    state = StateType("op", Rich)
    state.load(0, None).by_carrier["AA"] = []
    assert state.load(1, None).by_carrier == {}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Threshold.model_construct(minutes=-1), "field minutes: Input should be greater than or equal to 0"),
        (Threshold.model_construct(minutes="many"), "minutes"),
        (Thresholder(), "subtask.state was replaced by a Thresholder"),
        (None, "subtask.state was replaced by a NoneType"),
    ],
    ids=["constraint", "type", "subclass", "none"],
)
def test_a_state_that_could_not_be_loaded_is_not_saved(value: Any, problem: str) -> None:
    state = StateType("op", Threshold)
    with pytest.raises(StateInvalid, match="the state of subtask 3 is not a valid Threshold") as caught:
        state.dump(3, value)
    assert problem in caught.value.problems


def test_a_state_that_has_not_changed_is_not_checked_again() -> None:
    state = StateType("op", Threshold)
    invalid = Threshold.model_construct(minutes=-1)
    assert state.dump(0, invalid, before=b'{"minutes":-1}') == b'{"minutes":-1}'
    with pytest.raises(StateInvalid):
        state.dump(0, invalid, before=b'{"minutes":0}')


def test_the_size_of_a_state_is_limited_to_the_byte() -> None:
    state = StateType("op", Note)
    frame = len(state.dump(0, Note()))
    assert len(state.dump(0, Note(text="x" * (MAX_STATE_BYTES - frame)))) == MAX_STATE_BYTES == 1 << 20
    with pytest.raises(StateTooLarge, match="the state of subtask 5 takes 1048577 bytes, the limit is 1048576"):
        state.dump(5, Note(text="x" * (MAX_STATE_BYTES - frame + 1)))


def test_a_saved_state_that_the_model_does_not_accept_any_more_is_named() -> None:
    with pytest.raises(StateInvalid) as caught:
        StateType("op", Threshold).load(2, b'{"minutes": "soon"}')
    assert (caught.value.where, caught.value.model) == ("subtask 2", "Threshold")
    assert "field minutes: Input should be a valid integer" in str(caught.value)
    assert "give new fields a default" in str(caught.value)
