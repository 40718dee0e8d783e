"""The storage of a path without Spark: the local disk, and object stores if the extra ``objects`` is installed.

Threads: any.
"""

from __future__ import annotations

import functools
from typing import Final

from coord_control.durable.files.filesystem import Files, LocalFiles, scheme

__all__ = ["OBJECT_STORES", "without_spark"]

#: Schemes that ``ObjectFiles`` understands.
OBJECT_STORES: Final = frozenset({"abfs", "abfss", "gs", "s3", "s3a"})

# One of each: files are linked or copied within one, and sent from one to the other between two.
_LOCAL: Final = LocalFiles()


def without_spark(path: str) -> Files | None:
    """Return the storage of an absolute path or a URI; None if it takes Spark's file systems to reach it."""
    found = scheme(path)
    if found in (None, "file"):
        return _LOCAL
    return _object_files() if found in OBJECT_STORES else None


@functools.cache
def _object_files() -> Files | None:
    try:
        from coord_control.durable.files.objects import ObjectFiles
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        return None
    return ObjectFiles()
