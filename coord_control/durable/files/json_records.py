"""Small JSON records: one pydantic model per file, with the version of its format.

Threads: any.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pydantic

from coord_control.durable.files.filesystem import Files
from coord_control.errors import DamagedRecord, UnsupportedFormat

__all__ = ["read_json_record"]

Record = TypeVar("Record", bound=pydantic.BaseModel)


def read_json_record(
    files: Files,
    path: str,
    model: type[Record],
    newest_version: int,
    upgraded: Callable[[int, dict[str, Any]], dict[str, Any]] = lambda version, fields: fields,
) -> Record | None:
    """Read a record, or return None if there is none.

    Args:
        model: what it holds in the newest version.
        newest_version: of its format; a newer one was written by a later release.
        upgraded: turns the fields of an older version (given first) into those of the newest.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be read.
    """
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(data)
        version = fields["format_version"]
        if isinstance(version, int) and version > newest_version:
            raise UnsupportedFormat(path, version, newest_version)
        return model.model_validate_json(json.dumps(upgraded(version, fields)))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedRecord(path, str(error)) from error
