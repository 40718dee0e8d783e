"""Forms for what clients send: the fields of a model, made from the JSON schema that the control database has of it.

A form knows what kind of input each field needs and reads what a user enters. It finds what is plainly wrong; the
driver has the model itself, and the last word. A field that has no simple input (a list, a model inside the model) is
entered as JSON; a schema that is not an object with named fields has no form.

Threads: values; any.
"""

from __future__ import annotations

import datetime
import enum
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

__all__ = ["FormField", "InputKind", "ModelForm", "form_of"]

#: References that lead to each other would never end.
_MOST_REFERENCES: Final = 20
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}", re.ASCII)


class InputKind(enum.Enum):
    """The input that a field needs."""

    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    TEXT = "text"
    DATE = "date"
    TIME = "time"  #: a point in time
    CHOICE = "choice"  #: one of a few values
    JSON = "json"  #: anything else


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A field of a form.

    Attributes:
        is_required: whether it has no default.
        is_nullable: whether it may be null.
        default: its value if nothing is entered. None as well if the model computes it.
        has_default: whether the default is known.
        choices: the values of a choice.
        limits: the part of its schema that restricts it.
    """

    name: str
    kind: InputKind
    description: str = ""
    is_required: bool = True
    is_nullable: bool = False
    default: JsonValue = None
    has_default: bool = False
    choices: tuple[JsonValue, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hint(self) -> str:
        """Return its description and its limits, for people."""
        limits = [f"{words} {self.limits[name]}" for name, words in _LIMITS.items() if name in self.limits]
        return ". ".join(filter(None, [self.description.strip().rstrip("."), _HINTS.get(self.kind, ""), *limits]))

    def text(self, value: JsonValue) -> str:
        """Return a value as it is entered; an empty text for null."""
        if self.kind is InputKind.CHOICE:
            return str(self.choices.index(value)) if value in self.choices else ""
        if self.kind is InputKind.JSON:
            return json.dumps(value, ensure_ascii=False)
        if value is None:
            return ""
        return value if isinstance(value, str) else json.dumps(value)

    def parse(self, text: str) -> JsonValue:
        """Return what was entered.

        Raises:
            ValueError: with what is wrong, for people.
        """
        value = _PARSERS[self.kind](self, text)
        for name, (is_right, problem) in _CHECKS.items():
            if name in self.limits and not is_right(value, self.limits[name]):
                raise ValueError(problem.format(self.limits[name]))
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForm:
    """The form of a model.

    Attributes:
        title: the name of the model.
    """

    title: str
    description: str
    fields: tuple[FormField, ...]

    def read(
        self, entered: Mapping[str, str], nulls: Collection[str] = ()
    ) -> tuple[dict[str, JsonValue], dict[str, str]]:
        """Return the values that were entered, and what is wrong, by field.

        Args:
            entered: the texts, by field. One that is missing was left empty; of a boolean, it is not ticked.
            nulls: fields that were declared to be null.
        """
        values: dict[str, JsonValue] = {}
        problems: dict[str, str] = {}
        for each in self.fields:
            text = entered.get(each.name, "")
            if each.is_nullable and (each.name in nulls or _is_null(each, text)):
                values[each.name] = None
            elif not text.strip() and each.kind not in (InputKind.TEXT, InputKind.BOOLEAN):
                if each.is_required:
                    problems[each.name] = "Enter a value."
            elif not text and each.kind is InputKind.TEXT and not (each.is_required or each.has_default):
                continue  # the model computes its default
            else:
                try:
                    values[each.name] = each.parse(text)
                except ValueError as error:
                    problems[each.name] = str(error)
        return values, problems


def form_of(schema: Mapping[str, Any]) -> ModelForm | None:
    """Return the form of a JSON schema, or None if it is not that of an object with named fields."""
    found = _resolved(schema, schema)
    properties = found.get("properties")
    if found.get("type", "object") != "object" or not isinstance(properties, Mapping):
        return None
    required = found.get("required", ())
    fields = tuple(_field(name, each, schema, is_required=name in required) for name, each in properties.items())
    return ModelForm(title=str(found.get("title", "")), description=str(found.get("description", "")), fields=fields)


def _is_null(each: FormField, text: str) -> bool:
    # An empty text is a text; JSON has a word for null. What has an unknown default is left to the model.
    is_telling = each.is_required or each.has_default
    return not text.strip() and is_telling and each.kind not in (InputKind.TEXT, InputKind.BOOLEAN, InputKind.JSON)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(_MOST_REFERENCES):
        place = schema.get("$ref")
        if not isinstance(place, str):
            return schema
        target: Any = root
        for part in place.removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            break
        schema = {**target, **{name: value for name, value in schema.items() if name != "$ref"}}
    return {}


def _field(name: str, schema: Any, root: Mapping[str, Any], *, is_required: bool) -> FormField:
    outer = _resolved(schema, root) if isinstance(schema, Mapping) else {}
    options = [_resolved(each, root) for each in outer.get("anyOf", ()) if isinstance(each, Mapping)]
    others = [each for each in options if each.get("type") != "null"]
    is_nullable = len(others) < len(options)
    inner = others[0] if is_nullable and len(others) == 1 else outer
    kind, choices = _kind(inner)
    if kind is InputKind.BOOLEAN and is_nullable:
        kind, choices = InputKind.CHOICE, (True, False)
    return FormField(
        name=name,
        kind=kind,
        description=str(outer.get("description", inner.get("description", ""))),
        is_required=is_required,
        is_nullable=is_nullable,
        default=outer.get("default"),
        has_default="default" in outer,
        choices=choices,
        limits={} if kind in _UNLIMITED else _limits(inner),
    )


def _limits(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: schema[name] for name in _LIMITS if name in schema}
    return {
        name: limit for name, limit in found.items() if isinstance(limit, str if name == "pattern" else int | float)
    }


def _kind(schema: Mapping[str, Any]) -> tuple[InputKind, tuple[JsonValue, ...]]:
    if "const" in schema:
        return InputKind.CHOICE, (schema["const"],)
    if isinstance(listed := schema.get("enum"), list):
        return InputKind.CHOICE, tuple(listed)
    match schema.get("type"):
        case "integer":
            return InputKind.INTEGER, ()
        case "number":
            return InputKind.NUMBER, ()
        case "boolean":
            return InputKind.BOOLEAN, ()
        case "string":
            return {"date": InputKind.DATE, "date-time": InputKind.TIME}.get(
                schema.get("format", ""), InputKind.TEXT
            ), ()
    return InputKind.JSON, ()


def _whole(each: FormField, text: str) -> JsonValue:
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError("Enter a whole number.")
    return int(text)


def _number(each: FormField, text: str) -> JsonValue:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("Enter a number.") from None
    if not math.isfinite(value):
        raise ValueError("Enter a finite number.")
    return int(text) if _WHOLE.fullmatch(text.strip()) else value


def _date(each: FormField, text: str) -> JsonValue:
    try:
        return datetime.date.fromisoformat(text.strip()).isoformat()
    except ValueError:
        raise ValueError("Enter a date, such as 2026-01-31.") from None


def _time(each: FormField, text: str) -> JsonValue:
    try:
        datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("Enter a date and time, such as 2026-01-31T12:00:00Z.") from None
    return text.strip()


def _choice(each: FormField, text: str) -> JsonValue:
    if not (text.isascii() and text.isdigit() and int(text) < len(each.choices)):
        raise ValueError("Choose one of the values.")
    return each.choices[int(text)]


def _json(each: FormField, text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Enter JSON: {error}.") from None
    return value


_PARSERS: Final[Mapping[InputKind, Callable[[FormField, str], JsonValue]]] = {
    InputKind.INTEGER: _whole,
    InputKind.NUMBER: _number,
    InputKind.BOOLEAN: lambda each, text: bool(text),
    InputKind.TEXT: lambda each, text: text,
    InputKind.DATE: _date,
    InputKind.TIME: _time,
    InputKind.CHOICE: _choice,
    InputKind.JSON: _json,
}

#: What else a schema may say of a value; patterns are shown, and left to the driver.
_LIMITS: Final = {
    "minimum": "At least",
    "exclusiveMinimum": "More than",
    "maximum": "At most",
    "exclusiveMaximum": "Less than",
    "minLength": "Characters, at least",
    "maxLength": "Characters, at most",
    "pattern": "Pattern:",
}
_UNLIMITED: Final = (InputKind.CHOICE, InputKind.JSON, InputKind.BOOLEAN)
_CHECKS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (lambda value, limit: value >= limit, "It must be at least {}."),
    "exclusiveMinimum": (lambda value, limit: value > limit, "It must be more than {}."),
    "maximum": (lambda value, limit: value <= limit, "It must be at most {}."),
    "exclusiveMaximum": (lambda value, limit: value < limit, "It must be less than {}."),
    "minLength": (lambda value, limit: len(value) >= limit, "It must have at least {} characters."),
    "maxLength": (lambda value, limit: len(value) <= limit, "It must have at most {} characters."),
}
_HINTS: Final = {InputKind.TIME: "ISO 8601 with a time zone, such as 2026-01-31T12:00:00Z", InputKind.JSON: "JSON"}
