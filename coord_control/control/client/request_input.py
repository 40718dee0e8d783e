"""What people write into an orchestrator's request: JSON as text, and references to checkpoints.

Threads: any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coord_control.durable.files.filesystem import scheme

__all__ = ["InputUnusable", "absolute_reference", "changed_fields", "parsed"]


class InputUnusable(ValueError):
    """The input cannot be used; nothing was sent."""


def parsed(value: Any) -> Any:
    """Return a payload; text is read as JSON.

    Raises:
        InputUnusable: the text is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise InputUnusable(f"a payload given as text must be JSON: {error}") from error


def changed_fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of a live value that a request changes.

    Raises:
        InputUnusable: it is no JSON, or names no field.
    """
    fields = parsed(value)
    if not isinstance(fields, Mapping) or not fields:
        raise InputUnusable("name at least one field to change, with its value")
    return fields


def absolute_reference(ref: str) -> str:
    """Return a reference to a checkpoint, which means the same on every machine.

    Raises:
        InputUnusable: it is a relative path.
    """
    if "/" in ref and not ref.startswith("/") and scheme(ref) is None:
        raise InputUnusable(f"the path {ref!r} must be absolute: the driver has its own working directory")
    return ref
