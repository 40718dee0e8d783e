"""Between pydantic models and the bytes that the protocol moves; used on both ends of a channel.

Values are serialised when they are sent, so a later change of the object does not reach the other side, and parsed by
the receiver. What the receiver would refuse is refused where it is sent: once it is durable, it would be refused after
each restart. Where the fields are plain (:mod:`.plain_models`) it is enough to look at their types; everything else is
parsed once for it. The receiver checks again: its class may be newer than the sender's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from coord_control import collector
from coord_control.coordinators.saved_state import fields_of, lost_numbers, parse_saved, problems_of
from coord_control.errors import (
    EventInvalid,
    EventTooLarge,
    InvalidModel,
    StateInvalid,
    StateTooLarge,
    UndeclaredEvent,
)
from coord_control.protocol.records import EventBatch, count
from coord_control.spark.worker.plain_models import plain_validator

__all__ = [
    "MAX_EVENT_BYTES",
    "MAX_STATE_BYTES",
    "EventTypes",
    "StateType",
    "in_words",
    "json_schema",
    "unknown_fields",
]

# Control data travels in every begin record, hello and ack; a megabyte is far above any control message and far below
# what would stall an epoch.
MAX_EVENT_BYTES: Final = 1 << 20
MAX_STATE_BYTES: Final = 1 << 20

# Above this many events in one run, parsing without the garbage collector is about twice as fast: nothing of it is
# garbage.
_PAUSE_COLLECTOR_ABOVE: Final = 1_000

# A number that is too long to be read back does not fit into so many.
_SHORT_BYTES: Final = 4_000

_NULL: Final = b"null"

State = TypeVar("State", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _Form:
    """What is done with each event of one type, looked up once: a hundred thousand may be sent at a time."""

    index: int
    to_json: Callable[..., bytes]
    parse: Callable[..., Any]
    is_plain: Callable[[dict[str, Any]], bool]  #: whether these fields' JSON can be read back for sure

    @classmethod
    def of(cls, index: int, model: type[BaseModel]) -> _Form:
        plain = plain_validator(model)
        is_plain = _never if plain is None else plain.isinstance_python
        return cls(index, model.__pydantic_serializer__.to_json, model.__pydantic_validator__.validate_json, is_plain)


class EventTypes:
    """The declared event types of one direction of an operator."""

    def __init__(self, operator: str, direction: str, models: Sequence[type[BaseModel]]) -> None:
        for model in models:
            if not _is_model(model):
                raise InvalidModel(operator, f"{direction} event {model!r}", "events are pydantic models (BaseModel)")
        self.operator = operator
        self.direction = direction
        self.models = tuple(models)
        self._index = {model: index for index, model in enumerate(self.models)}
        self._forms: dict[type[BaseModel], _Form] = {}
        self._parsers: dict[int, TypeAdapter[list[BaseModel]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Parsers are rebuilt where they are used: they are large, and executors need only their own direction.
        return EventTypes, (self.operator, self.direction, self.models)

    def encode(self, event: BaseModel) -> EventBatch:
        """Serialise one event.

        Raises:
            UndeclaredEvent: its type is not declared for this direction.
            EventInvalid: a field holds a value that the other end would refuse, or that JSON cannot hold (infinity).
            EventTooLarge: it takes more than :data:`MAX_EVENT_BYTES` bytes as JSON.
        """
        index, payload = self.dump(event)
        return EventBatch(index, 1, payload)

    def dump(self, event: BaseModel) -> tuple[int, bytes]:
        """Serialise one event; returns the index of its type and its JSON. Raises like :meth:`encode`."""
        form = self._forms.get(type(event)) or self._form(type(event))
        try:
            if form.is_plain(event.__dict__):
                payload = form.to_json(event)
                if len(payload) <= _SHORT_BYTES:
                    return form.index, payload
            else:
                # Without the serialiser's own check of types, which does not replace the next line.
                payload = form.to_json(event, by_alias=False, warnings=False)
            found = form.parse(payload, by_alias=False, by_name=True)
        except PydanticSerializationError as error:
            raise EventInvalid(self.operator, type(event).__name__, str(error)) from error
        except ValidationError as error:
            raise EventInvalid(self.operator, type(event).__name__, problems_of(error)) from error
        if _NULL in payload and (lost := lost_numbers(event, found)):
            raise EventInvalid(self.operator, type(event).__name__, lost)
        if len(payload) > MAX_EVENT_BYTES:
            raise EventTooLarge(self.operator, type(event).__name__, len(payload), MAX_EVENT_BYTES)
        return form.index, payload

    def _form(self, model: type[BaseModel]) -> _Form:
        index = self._index.get(model)
        if index is None:
            declared = [known.__name__ for known in self.models]
            raise UndeclaredEvent(self.operator, self.direction, model.__name__, declared)
        form = self._forms[model] = _Form.of(index, model)
        return form

    def parse(self, name: str, payload: bytes, *, is_accepted: bool = False) -> BaseModel:
        """Parse an event from JSON that a user has written, by the name of its model.

        Args:
            is_accepted: it is not lost because a later program's model has lost a field.

        Raises:
            UndeclaredEvent: no event of this name is declared.
            EventInvalid: it does not fit; ``fields`` says where.
        """
        model = next((model for model in self.models if model.__name__ == name), None)
        if model is None:
            raise UndeclaredEvent(self.operator, self.direction, name, [known.__name__ for known in self.models])
        try:
            event = model.model_validate_json(payload, by_alias=False, by_name=True)
        except ValidationError as error:
            raise EventInvalid(self.operator, name, problems_of(error), fields_of(error)) from error
        if not is_accepted and (unknown := unknown_fields(model, json.loads(payload))):
            raise EventInvalid(self.operator, name, in_words(unknown), unknown)
        return event

    def schemas(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the name and JSON schema of every event that :meth:`parse` takes; those that have no schema take any
        object."""
        return [(model.__name__, json_schema(model)) for model in self.models]

    def decode(self, batches: Iterable[EventBatch]) -> list[BaseModel]:
        """Parse and validate events, in order.

        Raises:
            EventInvalid: an event does not fit its model; names the model and the field.
        """
        batches = list(batches)
        with collector.paused(count(batches) > _PAUSE_COLLECTOR_ABOVE):
            events: list[BaseModel] = []
            for batch in batches:
                events += self._parse(batch)
            return events

    def _parse(self, batch: EventBatch) -> list[BaseModel]:
        model = self.models[batch.type_index]
        parser = self._parsers.get(batch.type_index)
        if parser is None:
            parser = self._parsers[batch.type_index] = TypeAdapter(list[model])  # type: ignore[valid-type]
        try:
            return parser.validate_json(b"[" + batch.payload + b"]", by_alias=False, by_name=True)
        except ValidationError as error:
            raise EventInvalid(self.operator, model.__name__, problems_of(error, skip=1)) from error


class StateType(Generic[State]):
    """The state model of an operator's subtasks."""

    def __init__(self, operator: str, model: type[State]) -> None:
        if not _is_model(model):
            raise InvalidModel(operator, f"state {model!r}", "operator state is a pydantic model (BaseModel)")
        self.operator = operator
        self.model = model
        try:
            self.dump(0, model())
        except ValidationError as error:
            why = f"every field needs a default, a new subtask begins with {model.__name__}(): {problems_of(error)}"
            raise InvalidModel(operator, model.__name__, why) from error
        except StateInvalid as error:
            why = f"its default does not come back from JSON: {error.problems}"
            raise InvalidModel(operator, model.__name__, why) from error
        except Exception as error:
            why = f"a new subtask begins with {model.__name__}(): {type(error).__name__}: {error}"
            raise InvalidModel(operator, model.__name__, why) from error

    def load(self, subtask: int, data: bytes | None) -> State:
        """Return the state of a subtask; None is the default state.

        Raises:
            StateInvalid: the saved state does not fit the model, or has a field that the model would drop; names the
                model and the field.
        """
        if data is None:
            return self.model()
        try:
            return parse_saved(self.model, data)
        except ValidationError as error:
            where = f"subtask {subtask}"
            raise StateInvalid(self.operator, where, self.model.__name__, problems_of(error)) from error

    def dump(self, subtask: int, state: State, *, before: bytes | None = None) -> bytes:
        """Serialise a state, and check what has changed as it will be checked when it is loaded.

        Args:
            before: what an earlier call returned for this subtask.

        Raises:
            StateInvalid: a field holds a value that its type does not allow, or that JSON has no form for (infinity).
            StateTooLarge: it takes more than :data:`MAX_STATE_BYTES` bytes as JSON.
        """
        where, name = f"subtask {subtask}", self.model.__name__
        if type(state) is not self.model:
            raise StateInvalid(self.operator, where, name, f"subtask.state was replaced by a {type(state).__name__}")
        try:
            data = state.__pydantic_serializer__.to_json(state, by_alias=False, warnings="error")
        except PydanticSerializationError as error:
            raise StateInvalid(self.operator, where, name, str(error)) from error
        if len(data) > MAX_STATE_BYTES:
            raise StateTooLarge(self.operator, subtask, len(data), MAX_STATE_BYTES)
        if data != before:
            loaded = self.load(subtask, data)
            if _NULL in data and (lost := lost_numbers(state, loaded)):
                raise StateInvalid(self.operator, where, name, lost)
        return data


def _never(fields: dict[str, Any]) -> bool:
    return False


def _is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a model by the names of its fields; one that has none takes any object."""
    try:
        return model.model_json_schema(by_alias=False)
    except PydanticUserError:  # a field with a custom validator that does not describe its JSON
        return {"title": model.__name__, "type": "object"}


def unknown_fields(model: type[BaseModel], payload: Any) -> list[dict[str, Any]]:
    """Return the fields that a user has written and the model does not have, as :func:`.fields_of` does.

    Pydantic drops them, so a misspelled field would silently have its default. A model that says what becomes of them
    (``extra`` in its configuration) has none.
    """
    if not isinstance(payload, dict) or model.model_config.get("extra") is not None:
        return []
    problem = f"there is no such field; the fields are: {', '.join(sorted(model.model_fields)) or 'none'}"
    return [{"loc": [name], "msg": problem} for name in sorted(payload.keys() - model.model_fields.keys())]


def in_words(fields: Sequence[Mapping[str, Any]]) -> str:
    """Describe fields that do not fit, as :func:`.problems_of` does."""
    return "; ".join(f"field {field['loc'][0]}: {field['msg']}" for field in fields)
