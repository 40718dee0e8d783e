"""Saved states become models again, and nothing of them is dropped in silence.

A model that has lost a field, or has it under another name, would be valid without what was saved in it. So a field
that the model does not know is an error, unless the model says itself what becomes of it (``extra`` in its
``model_config``). A validator of the model (``mode="before"``) can move it to where it belongs now.

Threads: pure functions.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

__all__ = ["as_json", "fields_of", "lost_numbers", "parse_saved", "problems_of"]

State = TypeVar("State", bound=BaseModel)

_UNKNOWN = "extra_forbidden"


def parse_saved(model: type[State], data: bytes) -> State:
    """Return the state that was saved as JSON, by the names of the fields.

    Raises:
        ValidationError: it does not fit the model, or has a field that the model would drop.
    """
    parse: Callable[..., State] = model.__pydantic_validator__.validate_json
    if "extra" in model.model_config:
        return parse(data, by_alias=False, by_name=True)
    try:
        return parse(data, by_alias=False, by_name=True, extra="forbid")
    except ValidationError as error:
        unknown = [problem["loc"] for problem in error.errors(include_url=False) if problem["type"] == _UNKNOWN]
        if len(unknown) < error.error_count():
            raise
        # Computed fields are saved with the others, and computed again.
        loaded = parse(data, by_alias=False, by_name=True)
        kept = loaded.model_dump(mode="json", by_alias=False)
        if not all(_has(kept, place) for place in unknown):
            raise
        return loaded


def as_json(data: bytes) -> JsonValue:
    """Return a saved state for people: the JSON that it is, or else its bytes as base64."""
    try:
        found: JsonValue = json.loads(data)
        json.dumps(found, allow_nan=False)
    except ValueError:
        return base64.b64encode(data).decode("ascii")
    return found


def lost_numbers(before: object, after: object) -> str:
    """Return in which fields a number became null; empty if in none.

    JSON has no form for infinity and NaN. Pydantic writes null, which a field that may be None reads back as None.

    Args:
        before: a value before it was serialised.
        after: what has been read back of it.
    """
    places = [".".join(place) for place in _lost(before, after, ())]
    return "; ".join(f"field {place}: JSON has no form for infinity and NaN" for place in places)


def _lost(before: object, after: object, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(before, float):
        if after is None and not math.isfinite(before):
            yield place
    elif isinstance(before, BaseModel):
        if isinstance(after, BaseModel):
            yield from _lost(_fields(before), _fields(after), place)
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        for name, value in before.items():
            yield from _lost(value, after.get(name), (*place, str(name)))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for index, pair in enumerate(zip(before, after, strict=False)):
            yield from _lost(*pair, (*place, str(index)))


def _fields(model: BaseModel) -> dict[str, Any]:
    return {**model.__dict__, **(model.__pydantic_extra__ or {})}


def fields_of(error: ValidationError) -> list[dict[str, Any]]:
    """Return where a value does not fit its model: ``loc`` and ``msg`` of each problem."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"loc": list(problem["loc"]), "msg": problem["msg"]} for problem in problems]


def problems_of(error: ValidationError, skip: int = 0) -> str:
    """Describe which fields are invalid.

    Args:
        skip: number of leading steps to leave out of each field's path.
    """
    return "; ".join(
        f"field {'.'.join(map(str, problem['loc'][skip:])) or '(the whole)'}: {_message(problem)}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )


def _message(problem: Any) -> str:
    if problem["type"] != _UNKNOWN:
        return str(problem["msg"])
    return (
        "it was saved, the model has no such field, and it would be dropped; move it with a "
        "model_validator(mode='before'), or say that it may be dropped: model_config = ConfigDict(extra='ignore')"
    )


def _has(value: Any, place: Sequence[int | str]) -> bool:
    for step in place:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True
