"""Conversion of plain JSON values to records.

msgspec builds what it has to know of a type when the type is first used, and two threads that build it at once crash
the process (measured with 0.22; ``tests/unit/test_conversion.py``). So types are built one at a time, by one thread.

Threads: any.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

__all__ = ["convert"]

_T = TypeVar("_T")

_lock: Final = threading.Lock()
_built: Final[set[Any]] = set()


def convert(value: object, type_: type[_T]) -> _T:
    """Return the record of a type from plain values.

    Raises:
        msgspec.ValidationError: the values do not fit the type.
    """
    if type_ not in _built:
        with _lock:
            msgspec.json.Decoder(type_)
            _built.add(type_)
    return msgspec.convert(value, type_)
