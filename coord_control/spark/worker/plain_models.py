"""Models whose fields are plain, so that a look at the types of the values tells whether their JSON can be read back.

To parse what was just serialised is the surest check, and costs more than everything else that is done with an event.
For most events it is not needed: where every field is text, a whole number, a finite number, true or false, or one of
these or nothing, and the model adds nothing (no constraint, validator, serialiser, setting or computed field), a value
of the declared type comes back from JSON as it was. A model with anything else is not plain; then its JSON is parsed.

Threads: pure functions, any.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import SchemaValidator, core_schema

__all__ = ["plain_validator"]

# Strict: only the types themselves. Infinity and NaN have no form in JSON.
_PLAIN: Final[dict[str, core_schema.CoreSchema]] = {
    "str": core_schema.str_schema(strict=True),
    "int": core_schema.int_schema(strict=True),
    "float": core_schema.float_schema(strict=True, allow_inf_nan=False),
    "bool": core_schema.bool_schema(strict=True),
}

# What pydantic puts into the schema of every model; anything else changes how it is read or written.
_OF_MODEL: Final = {"type", "cls", "schema", "custom_init", "root_model", "config", "frozen", "ref", "metadata"}
_OF_FIELDS: Final = {"type", "fields", "model_name", "computed_fields"}
_OF_FIELD: Final = {"type", "schema", "metadata", "frozen", "validation_alias", "serialization_alias"}
_OF_DEFAULT: Final = {"type", "schema", "metadata", "default", "default_factory"}


def plain_validator(model: type[BaseModel]) -> SchemaValidator | None:
    """Make a validator of the fields of ``model``, for the ``__dict__`` of its objects, or None if it is not plain.

    What the validator accepts, the model itself reads back from the JSON that it is serialised to, but for numbers of
    thousands of digits.
    """
    # Its type is a union of some fifty dictionaries; here it is read as one that may hold anything.
    schema: dict[str, Any] = dict(model.__pydantic_core_schema__)
    if schema["type"] != "model" or not schema.keys() <= _OF_MODEL:
        return None
    if schema.get("custom_init") or schema.get("root_model") or schema.get("config", {}).keys() - {"title"}:
        return None
    inner = schema["schema"]
    if inner["type"] != "model-fields" or not inner.keys() <= _OF_FIELDS or inner.get("computed_fields"):
        return None
    fields: dict[str, core_schema.TypedDictField] = {}
    for name, field in inner["fields"].items():
        plain = _plain(field["schema"])
        if plain is None or not field.keys() <= _OF_FIELD:
            return None
        fields[name] = core_schema.typed_dict_field(plain)
    return SchemaValidator(core_schema.typed_dict_schema(fields))


def _plain(schema: dict[str, Any]) -> core_schema.CoreSchema | None:
    match schema:
        case {"type": "default", "schema": inner} if schema.keys() <= _OF_DEFAULT:
            return _plain(inner)  # an object has all its fields
        case {"type": "nullable", "schema": inner, **rest} if not rest.keys() - {"metadata"}:
            plain = _plain(inner)
            return None if plain is None else core_schema.nullable_schema(plain)
        case {"type": kind, **rest} if not rest.keys() - {"metadata"}:
            return _PLAIN.get(kind)
        case _:
            return None
