"""The model of a live value: what its fields are in Spark, and how a value is written down, read back and changed.

Threads: values; any.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import types
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from coord_control.coordinators.saved_state import fields_of, lost_numbers, parse_saved, problems_of
from coord_control.errors import LiveModelInvalid, LiveValueInvalid
from coord_control.errors.base import known_names
from coord_control.protocol.records import MAX_LIVE_BYTES

__all__ = ["LiveModel"]

#: What a field may be, and the fields of ``org.apache.spark.sql.types.DataTypes``.
_TYPES: Final[dict[Any, str]] = {
    bool: "BooleanType",
    int: "LongType",
    float: "DoubleType",
    str: "StringType",
    datetime.date: "DateType",
    datetime.datetime: "TimestampType",
}
_LONG: Final = range(-(2**63), 2**63)
_NAME: Final = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)
#: What a handle offers next to the columns.
_RESERVED: Final = frozenset({"get", "history", "name", "set"})

Model = TypeVar("Model", bound=BaseModel)


class LiveModel(Generic[Model]):
    """The model of one live value.

    Args:
        name: of the live value.
        default: its value in a job that has never had it.

    Attributes:
        fields: the name of the Spark type of each field, as ``DataTypes`` has it.

    Raises:
        LiveModelInvalid: the name or the model cannot be used.
    """

    def __init__(self, name: str, default: Model) -> None:
        if not _NAME.fullmatch(name):
            raise LiveModelInvalid(
                name, "use at most 100 letters, digits and '_', beginning with a letter: SQL text names it"
            )
        if not isinstance(default, BaseModel):
            raise LiveModelInvalid(
                name, f"its default is {default!r}; give an instance of a pydantic model (BaseModel)"
            )
        self.name = name
        self.model: type[Model] = type(default)
        self.fields = {field: self._type(field, info.annotation) for field, info in self.model.model_fields.items()}
        if not self.fields:
            raise LiveModelInvalid(name, f"{self.model.__name__} has no fields")
        try:
            self.default = self.dump(default)
        except LiveValueInvalid as error:
            raise LiveModelInvalid(name, f"its default cannot be used: {error.problems}") from error

    def function(self, field: str) -> str:
        """Return the name of the SQL function that stands for a field."""
        return f"live_{self.name}_{field}"

    def dump(self, value: BaseModel) -> bytes:
        """Return the JSON of a value.

        Raises:
            LiveValueInvalid: it does not come back from JSON, or cannot be a literal of Spark.
        """
        try:
            data = value.model_dump_json(by_alias=False, warnings="error").encode()
        except (PydanticSerializationError, UnicodeEncodeError) as error:
            raise LiveValueInvalid(self.name, str(error)) from error
        self.texts(data)
        if lost := lost_numbers(value, self.load(data)):
            raise LiveValueInvalid(self.name, lost)
        return data

    def load(self, data: bytes) -> Model:
        """Return a value that was written down.

        Raises:
            LiveValueInvalid: it does not fit the model, which has changed.
        """
        try:
            return parse_saved(self.model, data)
        except ValidationError as error:
            raise LiveValueInvalid(self.name, problems_of(error), fields_of(error)) from error

    def changed(self, data: bytes, fields: Mapping[str, Any]) -> bytes:
        """Return a value with some of its fields changed, validated as a whole.

        Args:
            fields: as JSON has them.

        Raises:
            LiveValueInvalid: there is no such field, or the value does not fit the model.
        """
        if unknown := sorted(set(fields) - set(self.fields)):
            field = unknown[0]
            problem = f"{self.model.__name__} has no field {field!r}; {known_names(field, sorted(self.fields))}"
            raise LiveValueInvalid(self.name, problem, [{"loc": [field], "msg": problem}])
        whole = json.loads(data) | dict(fields)
        try:
            return self.dump(self.load(json.dumps(whole, allow_nan=False).encode()))
        except LiveValueInvalid:
            raise
        except Exception as error:  # what is not JSON, and whatever a validator of the model raises
            raise LiveValueInvalid(self.name, f"{type(error).__name__}: {error}") from error

    def texts(self, data: bytes) -> dict[str, str | None]:
        """Return each field of a value as Spark's side reads it; None for a null.

        Raises:
            LiveValueInvalid: it does not fit the model, or has no literal in Spark.
        """
        if len(data) > MAX_LIVE_BYTES:
            raise LiveValueInvalid(self.name, f"it takes {len(data)} bytes as JSON, the limit is {MAX_LIVE_BYTES}")
        value = self.load(data)
        return {field: self._text(field, getattr(value, field)) for field in self.fields}

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the model, for forms."""
        return self.model.model_json_schema(by_alias=False)

    def _type(self, field: str, annotation: Any) -> str:
        if field in _RESERVED:
            raise LiveModelInvalid(self.name, f"a field cannot be named {field!r}; name it differently")
        if get_origin(annotation) in (Union, types.UnionType):
            one = [each for each in get_args(annotation) if each is not type(None)]
            annotation = one[0] if len(one) == 1 else annotation
        found = _TYPES.get(annotation)
        if found is None:
            kinds = ", ".join(each.__name__ for each in _TYPES)
            raise LiveModelInvalid(
                self.name, f"field {field!r} is {annotation}; it can be one of {kinds}, or None as well"
            )
        return found

    def _text(self, field: str, value: Any) -> str | None:
        if value is None:
            return None
        match self.fields[field]:
            case "BooleanType":
                return "true" if value else "false"
            case "LongType" if value not in _LONG:
                raise LiveValueInvalid(self.name, f"{field}: {value} takes more than 64 bits")
            case "DoubleType" if not math.isfinite(value):
                raise LiveValueInvalid(self.name, f"{field}: {value} is not a finite number")
            case "TimestampType":
                if value.tzinfo is None:
                    raise LiveValueInvalid(self.name, f"{field}: {value} names no time zone")
                return str(value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z"))
            case "DateType":
                return str(value.isoformat())
        return str(value)
