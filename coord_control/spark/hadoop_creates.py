"""How each of Hadoop's file systems creates a file so that exactly one of several writers succeeds.

| file system | how | why it is atomic |
| --- | --- | --- |
| S3A, if it declares conditional creation | written in place, on that condition | it sends ``If-None-Match: *`` |
| Google Cloud Storage | written in place, without overwriting | its connector sends ``ifGenerationMatch=0`` |
| HDFS | a rename without overwriting | one operation of the name node |
| ABFS | a rename without overwriting | its client sends ``If-None-Match: *`` |
| a view of a local disk | a hard link | one system call |
| any other | refused | |

``create(overwrite=false)`` of HDFS and ABFS has one winner too, but shows the file before its content: a writer that
dies in between would leave an empty record.

Threads: any.
"""

from __future__ import annotations

import contextlib
import enum
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError

from coord_control.durable.files.object_facts import ATTEMPT

__all__ = ["Create", "HadoopPlace", "create_of", "is_refused", "put", "put_new", "resolved", "why_unsafe"]

_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
_UNPROBED: Final = "fs.s3a.create.performance"
#: The last one is S3A's for a condition that does not hold.
_REFUSALS: Final = (
    "org.apache.hadoop.fs.FileAlreadyExistsException",
    "java.nio.file.FileAlreadyExistsException",
    "org.apache.hadoop.fs.s3a.RemoteFileChangedException",
)
#: File systems that show folders of others.
_VIEWS: Final = ("viewfs",)


class Create(enum.Enum):
    """The way in which a file is created."""

    CONDITIONAL = "conditional"
    EXCLUSIVE = "exclusive"
    RENAME = "rename"
    LINK = "link"
    UNSAFE = "unsafe"

    @property
    def is_in_place(self) -> bool:
        """Whether a file appears only when it is complete, so that it needs no temporary name."""
        return self in (Create.CONDITIONAL, Create.EXCLUSIVE)


_BY_SCHEME: Final = {
    "abfs": Create.RENAME,
    "abfss": Create.RENAME,
    "file": Create.LINK,
    "gs": Create.EXCLUSIVE,
    "hdfs": Create.RENAME,
    # A folder of the view itself: nothing can be created there, and the view raises its own error.
    "viewfs": Create.RENAME,
}


class HadoopPlace(NamedTuple):
    """Where a path is: behind a view this is a path of the file system that holds the file."""

    path: Any
    file_system: Any
    scheme: str
    authority: str
    create: Create = Create.UNSAFE


def resolved(path: Any, configuration: Any, path_of: Callable[[str], Any]) -> HadoopPlace:
    """Look through a view; the path need not exist.

    Args:
        path: Hadoop's path, with a scheme or in its default file system.
        configuration: Hadoop's.
        path_of: makes one of Hadoop's paths of a string.
    """
    file_system = path.getFileSystem(configuration)
    uri = file_system.getUri()
    if uri.getScheme() in _VIEWS:
        existing, below = path, ""
        while not file_system.exists(existing) and existing.getParent() is not None:
            existing, below = existing.getParent(), f"/{existing.getName()}{below}"
        target = file_system.resolvePath(existing)
        # A folder of the view itself resolves to itself.
        if target.toUri().getScheme() not in _VIEWS:
            return resolved(path_of(str(target).rstrip("/") + below), configuration, path_of)
    return HadoopPlace(path, file_system, str(uri.getScheme()), f"{uri.getScheme()}://{uri.getAuthority() or ''}")


def create_of(place: HadoopPlace) -> Create:
    """Return how files are created there. No request to the storage."""
    if (known := _BY_SCHEME.get(place.scheme)) is not None:
        return known
    declares_it = place.file_system.hasPathCapability(place.path, _CONDITIONAL)
    return Create.CONDITIONAL if declares_it else Create.UNSAFE


def why_unsafe(place: HadoopPlace) -> str:
    """Say what is missing there."""
    name = place.file_system.getClass().getName()
    return f"the file system of {place.scheme}:// ({name}) creates files without excluding other writers"


def put_new(place: HadoopPlace, data: bytes) -> None:
    """Create a file in place, with all folders above it, unless it exists.

    Raises:
        Py4JJavaError: it exists, or the storage failed; then it may have been written or not.
    """
    builder = place.file_system.createFile(place.path).recursive().overwrite(False)
    if place.create is not Create.CONDITIONAL:
        _fill(builder.build(), lambda stream: stream.write(data))
        return
    attempt = uuid.uuid4().hex
    stream = builder.must(_CONDITIONAL, True).opt(f"fs.s3a.create.header.{ATTEMPT}", attempt).build()
    try:
        _fill(stream, lambda stream: stream.write(data))
    except Py4JJavaError as error:
        if not is_refused(error) or _attempt_of(place) != attempt:
            raise


def is_refused(error: Py4JJavaError) -> bool:
    """Return whether the error says that a file exists which must not."""
    return error.java_exception.getClass().getName() in _REFUSALS


def _attempt_of(place: HadoopPlace) -> str | None:
    try:
        found = place.file_system.getXAttr(place.path, f"header.{ATTEMPT}")
    except Py4JJavaError:
        return None
    return None if found is None else bytes(found).decode()


def put(place: HadoopPlace, fill: Callable[[Any], object]) -> None:
    """Write a file in place, whether it exists or not."""
    # S3A would look whether it is a folder: a request for what no caller does. Others do not know the option.
    builder = place.file_system.createFile(place.path).recursive().overwrite(True).opt(_UNPROBED, "true")
    _fill(builder.build(), fill)


def _fill(stream: Any, fill: Callable[[Any], object]) -> None:
    try:
        fill(stream)
    except BaseException:
        # Closing it would publish what there is.
        with contextlib.suppress(Py4JError):
            stream.abort()
        raise
    stream.close()
