"""The job's storage: a handful of verbs, each with its atomicity, on any file system that Spark can write.

Everything durable of a job (claims of generations, lineages, the epoch store) is written through :class:`Files`, and
rests on three promises only: a file appears whole or not at all, ``create`` has one winner, and what a call has
returned for survives a power cut. :class:`LocalFiles` keeps them on a local disk with one system call each; every other
scheme goes through Spark's own file systems (``hadoop_files``); the test kit has one in memory that crashes on demand.
One suite proves the promises on all of them.

Threads: every implementation may be used from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from typing import Final, Protocol

from coord_control.errors import AlreadyExists, StoreUnavailable

__all__ = ["Files", "LocalFiles", "join", "scheme"]

#: A temporary file this old belongs to a process that died: no write takes an hour.
_STALE_TEMPORARY_SECONDS: Final = 3600.0

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Files(Protocol):
    """Whole files by path. A path is a plain string of the job's storage: a URI, or an absolute path.

    Names that begin with a dot belong to the implementation (temporary files, checksums): they are never listed, and
    callers do not use them. Any verb may raise :class:`~coord_control.errors.StoreUnavailable`; then a write may or may
    not have happened, and a read of its path tells which.
    """

    def read(self, path: str) -> bytes:
        """Return the content.

        Raises:
            FileNotFoundError: there is no such file.
        """
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a new file: atomic, durable on return, with its folders. Of several callers exactly one succeeds.

        Raises:
            AlreadyExists: the file is there; it was not touched.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it is there or not: atomic (readers see the old or the new one), durable on return."""
        ...

    def exists(self, path: str) -> bool:
        """Say whether there is a file or a folder."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; none if it is absent. Not atomic with regard to writes in between."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all in it, in no particular order; absent is fine.

        What somebody else writes into the folder meanwhile may stay.
        """
        ...

    def make_dirs(self, path: str) -> None:
        """Make a folder and those above it; existing ones are fine."""
        ...


def join(folder: str, *names: str) -> str:
    """Append names to a path of the storage."""
    return "/".join([folder.rstrip("/") or "", *names])


def scheme(path: str) -> str | None:
    """The scheme of a URI, None for a plain path."""
    match = _SCHEME.match(path)
    return match[1] if match else None


class LocalFiles:
    """A local (or POSIX-mounted) file system that has hard links.

    A file is written under a temporary name, synced, and gets its name by ``link`` (which refuses an existing one) or
    ``rename``; then the folder is synced. What a crash leaves behind has a temporary name: never listed, and removed by
    a later write in that folder.
    """

    def __init__(self) -> None:
        self._swept: set[str] = set()

    def read(self, path: str) -> bytes:
        with _reported(path, "read"), open(_local(path), "rb") as file:
            return file.read()

    def create(self, path: str, data: bytes) -> None:
        with _reported(path, "create"):
            target = _local(path)
            temporary = self._write_temporary(target, data)
            try:
                os.link(temporary, target)
            except FileExistsError:
                raise AlreadyExists(path) from None
            finally:
                os.unlink(temporary)
            _sync_folder(os.path.dirname(target))

    def replace(self, path: str, data: bytes) -> None:
        with _reported(path, "replace"):
            target = _local(path)
            temporary = self._write_temporary(target, data)
            try:
                os.replace(temporary, target)
            except OSError:
                os.unlink(temporary)
                raise
            _sync_folder(os.path.dirname(target))

    def exists(self, path: str) -> bool:
        with _reported(path, "look for"):
            try:
                os.stat(_local(path))
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def list(self, path: str) -> list[str]:
        with _reported(path, "list"):
            try:
                names = os.listdir(_local(path))
            except FileNotFoundError:
                return []
            return sorted(name for name in names if not name.startswith("."))

    def delete(self, path: str) -> None:
        with _reported(path, "delete"):
            target = _local(path)
            try:
                os.unlink(target)
            except FileNotFoundError:
                return
            except OSError:
                # Linux says EISDIR, POSIX and macOS EPERM.
                if not os.path.isdir(target):
                    raise
                shutil.rmtree(target, onerror=_ignore_others)
            with contextlib.suppress(FileNotFoundError):
                _sync_folder(os.path.dirname(target))

    def make_dirs(self, path: str) -> None:
        with _reported(path, "make the folder"):
            _make_dirs(_local(path))

    def _write_temporary(self, target: str, data: bytes) -> str:
        folder, name = os.path.split(target)
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
        try:
            descriptor = _open_new(temporary)
        except FileNotFoundError:
            _make_dirs(folder)
            descriptor = _open_new(temporary)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                _write_all(file.fileno(), data)
                os.fsync(file.fileno())
            if folder not in self._swept:
                self._sweep(folder, os.stat(temporary).st_mtime)
        except OSError:
            os.unlink(temporary)
            raise
        return temporary

    def _sweep(self, folder: str, now: float) -> None:
        """Remove what dead processes left; ``now`` is the file system's own clock. Once per folder and instance."""
        self._swept.add(folder)
        for entry in os.scandir(folder):
            if not (entry.name.startswith(".") and entry.name.endswith(".tmp")):
                continue
            with contextlib.suppress(FileNotFoundError):
                if now - entry.stat().st_mtime > _STALE_TEMPORARY_SECONDS:
                    os.unlink(entry.path)


def _local(path: str) -> str:
    found = scheme(path)
    if found is None:
        return path
    # As Hadoop reads it: file:/a and file:///a, nothing is percent-decoded.
    rest = path[len(found) + 1 :]
    rest = rest[2:] if rest.startswith("//") else rest
    if found != "file" or not rest.startswith("/"):
        raise ValueError(f"{path} is not a path of this machine")
    return rest


@contextlib.contextmanager
def _reported(path: str, action: str) -> Iterator[None]:
    """The one border where errors of the operating system become ours."""
    try:
        yield
    except FileNotFoundError:
        # Of the verbs only read lets it pass: the others have made or forgiven what was absent.
        if action == "read":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        raise StoreUnavailable(path, action, "its folder was removed meanwhile") from None
    except OSError as exc:
        raise StoreUnavailable(path, action, exc) from exc


def _open_new(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _make_dirs(folder: str) -> None:
    """Make folders so that they survive a power cut: a folder's name is an entry of the one above it."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return
    except FileNotFoundError:
        _make_dirs(os.path.dirname(folder))
        _make_dirs(folder)
        return
    _sync_folder(os.path.dirname(folder))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ignore_others(function: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
    # Another driver may remove the same folder at the same time, or write into it (it is fenced and has not noticed).
    if not (isinstance(error[1], OSError) and error[1].errno in (errno.ENOENT, errno.ENOTEMPTY)):
        raise error[1]
