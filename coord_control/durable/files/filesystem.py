"""The job's storage: a handful of verbs, each with its atomicity, on any file system that Spark can write.

Everything durable of a job (claims of generations, lineages, the epoch store) is written through :class:`Files`, and
rests on three promises only: a file appears whole or not at all, ``create`` has one winner, and what a call has
returned for survives a power cut. :class:`LocalFiles` keeps them on a local disk with one system call each, and
:class:`.ObjectFiles` on object stores without Spark; a driver, and every other scheme, goes through Spark's own file
systems (``hadoop_files``); the test kit has one in memory that crashes on demand. ``tests/files_contract.py`` proves
the promises on all of them.

Threads: every implementation may be used from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Protocol

from coord_control.durable.files import posix
from coord_control.durable.files.passed_on import PassedOn, guarded
from coord_control.durable.files.posix import Checksum, FileInfo, Linked
from coord_control.errors import AlreadyExists, StoreUnavailable

__all__ = ["Checksum", "EagerListing", "FileInfo", "Files", "Linked", "Listing", "LocalFiles", "join", "scheme"]

#: A temporary file this old belongs to a process that died: no write takes an hour.
_STALE_TEMPORARY_SECONDS: Final = 3600.0

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Listing(Protocol):
    """The files below a folder, some while ago."""

    @property
    def names(self) -> Collection[str]:
        """Their paths relative to the folder, each once."""
        ...

    def infos(self, names: Sequence[str]) -> Sequence[FileInfo]:
        """Return size and modification time of these files, in order, as of the listing or of now.

        Raises:
            FileNotFoundError: one is gone; ``filename`` is its path.
        """
        ...


class EagerListing:
    """A listing of a storage that says all of its files at once."""

    def __init__(self, infos: Iterable[FileInfo]) -> None:
        self._infos = {info.path: info for info in infos}
        self.names: Final = self._infos.keys()

    def infos(self, names: Sequence[str]) -> Sequence[FileInfo]:
        return [self._infos[name] for name in names]


class _LocalListing:
    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = _local(path).rstrip("/")
        self.names: Final = frozenset(posix.names_below(self._folder))

    def infos(self, names: Sequence[str]) -> Sequence[FileInfo]:
        with _reported(self._path, "look at files of"), _missing_below(self._folder, self._path):
            return posix.infos(self._folder, names)


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

        Files that another process writes into the folder meanwhile may stay.
        """
        ...

    def make_dirs(self, path: str) -> None:
        """Make a folder and those above it; existing ones are fine."""
        ...

    def walk(self, path: str) -> Sequence[FileInfo]:
        """Return the files below a folder, in no particular order; none if it is absent.

        Not atomic: a file that comes or goes meanwhile may be there or not.
        """
        ...

    def listing(self, path: str) -> Listing:
        """Like :meth:`walk`, for callers that need the details of few files."""
        ...

    def chunks(self, path: str) -> Iterator[bytes]:
        """Read a file piece by piece: memory stays bounded whatever its size.

        Raises:
            FileNotFoundError: there is no such file; raised by the call or by the first piece.
        """
        ...

    def write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file piece by piece: whole or not at all, durable on return.

        An existing file is replaced, and may be absent for a moment. An error of ``chunks`` leaves no new file.
        """
        ...

    def link(self, source: str, target: str) -> bool:
        """Give a file that never changes another name, or copy it where the storage has no links.

        An existing target is replaced. A copy is durable on return. A link is as durable as the file was already, and
        its name is durable.

        Returns:
            Whether it was linked: then it takes no space.

        Raises:
            FileNotFoundError: there is no such source.
        """
        ...

    def link_all(
        self,
        source: str,
        target: str,
        names: Sequence[tuple[str, str]],
        summed: Collection[str] = (),
        listed: Sequence[FileInfo] | None = None,
    ) -> Sequence[Linked]:
        """As :meth:`link`, for many files of one folder. After an error any of them may have been linked.

        Args:
            names: pairs of relative paths: below ``source``, and below ``target``.
            summed: paths below ``source`` whose checksums the caller knows: they need not be computed for a copy.
            listed: what a listing has said of the sources, in the order of ``names``: a store that tells contents apart
                need not list again. One that was replaced since is then missing.

        Raises:
            FileNotFoundError: a source is missing; ``filename`` is its path.
        """
        ...

    def checksum_all(self, path: str, names: Sequence[str]) -> Sequence[Checksum | None]:
        """Read many files below a folder and return what they hold, in order; None for an absent one."""
        ...

    def delete_all(self, path: str, names: Sequence[str]) -> None:
        """Remove many files below a folder, in order; absent ones are fine. Folders that are empty then may go too."""
        ...


def join(folder: str, *names: str) -> str:
    """Append names to a path of the storage."""
    return "/".join([folder.rstrip("/") or "", *names])


def scheme(path: str) -> str | None:
    """Return the scheme of a URI, None for a plain path."""
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
            temporary, changed = self._write_temporary(target, (data,))
            try:
                os.link(temporary, target)
            except FileExistsError:
                raise AlreadyExists(path) from None
            finally:
                os.unlink(temporary)
            _sync(target, changed)

    def replace(self, path: str, data: bytes) -> None:
        with _reported(path, "replace"):
            self._replace(_local(path), (data,))

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
                posix.sync_folder(os.path.dirname(target))

    def make_dirs(self, path: str) -> None:
        with _reported(path, "make the folder"):
            posix.make_dirs(_local(path))

    def walk(self, path: str) -> Sequence[FileInfo]:
        with _reported(path, "list"):
            return posix.walk(_local(path))

    def listing(self, path: str) -> Listing:
        with _reported(path, "list"):
            return _LocalListing(path)

    def chunks(self, path: str) -> Iterator[bytes]:
        with _reported(path, "read"):
            yield from posix.chunks(_local(path))

    def write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        with _reported(path, "replace"):
            self._replace(_local(path), guarded(chunks))

    def link(self, source: str, target: str) -> bool:
        from_folder, _, from_name = source.rpartition("/")
        to_folder, _, to_name = target.rpartition("/")
        [linked] = self.link_all(from_folder, to_folder, [(from_name, to_name)])
        return linked.is_linked

    def link_all(
        self,
        source: str,
        target: str,
        names: Sequence[tuple[str, str]],
        summed: Collection[str] = (),
        listed: Sequence[FileInfo] | None = None,
    ) -> Sequence[Linked]:
        with _reported(target, "link or copy files into"):
            below = _local(source).rstrip("/")
            with _missing_below(below, source):
                return posix.link_all(below, _local(target).rstrip("/"), names, summed)

    def checksum_all(self, path: str, names: Sequence[str]) -> Sequence[Checksum | None]:
        with _reported(path, "read files of"):
            return posix.checksum_all(_local(path).rstrip("/"), names)

    def delete_all(self, path: str, names: Sequence[str]) -> None:
        with _reported(path, "delete files of"):
            posix.delete_all(_local(path).rstrip("/"), names)

    def _replace(self, target: str, chunks: Iterable[bytes]) -> None:
        temporary, changed = self._write_temporary(target, chunks)
        try:
            os.replace(temporary, target)
        except OSError:
            os.unlink(temporary)
            raise
        _sync(target, changed)

    def _write_temporary(self, target: str, chunks: Iterable[bytes]) -> tuple[str, Sequence[str]]:
        """Write a temporary file. Return its path, and the folders in which new ones were made for it: still to be
        synced."""
        folder, name = os.path.split(target)
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
        changed: Sequence[str] = ()
        try:
            descriptor = posix.open_new(temporary)
        except FileNotFoundError:
            changed = posix.make_dirs_unsynced(folder)
            descriptor = posix.open_new(temporary)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                for chunk in chunks:
                    posix.write_all(file.fileno(), chunk)
                os.fsync(file.fileno())
            if folder not in self._swept:
                self._sweep(folder, os.stat(temporary).st_mtime)
        except BaseException:
            os.unlink(temporary)
            raise
        return temporary, changed

    def _sweep(self, folder: str, now: float) -> None:
        """Remove what dead processes left; ``now`` is the file system's own clock. Once per folder and instance."""
        self._swept.add(folder)
        for entry in os.scandir(folder):
            if not (entry.name.startswith(".") and entry.name.endswith(".tmp")):
                continue
            with contextlib.suppress(FileNotFoundError):
                if now - entry.stat().st_mtime > _STALE_TEMPORARY_SECONDS:
                    os.unlink(entry.path)


def _sync(target: str, changed: Iterable[str]) -> None:
    # Last, when there is nothing more to change: the first call writes the journal for all.
    for folder in (os.path.dirname(target), *changed):
        posix.sync_folder(folder)


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
    """Translate errors of the operating system into ours; the only place that does."""
    try:
        yield
    except PassedOn as other:
        raise other.error from None
    except FileNotFoundError:
        # Of the other verbs none lets it pass: they have made or forgiven what was absent.
        if action == "read":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        raise StoreUnavailable(path, action, "its folder was removed meanwhile") from None
    except OSError as exc:
        raise StoreUnavailable(path, action, exc) from exc


@contextlib.contextmanager
def _missing_below(folder: str, path: str) -> Iterator[None]:
    """Report a file that is missing below a folder by its path on the storage, instead of blaming the folder."""
    try:
        yield
    except FileNotFoundError as exc:
        if not str(exc.filename).startswith(folder + "/"):
            raise
        missing = join(path, str(exc.filename).removeprefix(folder + "/"))
        raise PassedOn(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), missing)) from None


def _ignore_others(function: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
    # Another driver may remove the same folder at the same time, or write into it (it is fenced and has not noticed).
    if not (isinstance(error[1], OSError) and error[1].errno in (errno.ENOENT, errno.ENOTEMPTY)):
        raise error[1]
