"""A storage in memory that can die at any durable step, be shared by two drivers, and be damaged on purpose.

It keeps the contract of :class:`coord_control.durable.files.filesystem.Files` exactly, so a test that passes here says
something about a real disk. Typical use, a driver that dies at its fifth step and another that takes over::

    files = MemoryFiles()
    first = files.seen_by(CrashAt(5))
    with pytest.raises(Crash):
        run_driver(first)
    run_driver(files)          # sees what the first one had made durable, and nothing else

A step is one of: a file created, a file replaced, a file linked or copied, a file deleted (each file of a folder by
itself). A hook is called
before it, when nothing has happened yet, and after it, when it is durable but the caller does not know.

Threads: any; the hooks run in the thread that writes, outside the lock.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coord_control.durable.files.filesystem import FileInfo, Linked
from coord_control.durable.files.one_by_one import OneByOne
from coord_control.errors import AlreadyExists

__all__ = ["Crash", "CrashAt", "Faults", "MemoryFiles"]


class Crash(BaseException):
    """The simulated death of a process. Not an ``Exception``: no code may survive it by catching all errors."""


class Faults(Protocol):
    """Called around each durable step; may raise :class:`Crash` to end the process there, or an error to fail it."""

    def before_write(self, path: str) -> None: ...

    def after_write(self, path: str) -> None: ...


@dataclass
class CrashAt:
    """Counts the points where a process can die (before and after each step) and dies at one of them.

    Attributes:
        point: the point to die at, from 1; None: never.
        passed: how many points were reached; a run without a crash tells how many there are.
    """

    point: int | None = None
    passed: int = 0

    def before_write(self, path: str) -> None:
        self._pass(f"before {path}")

    def after_write(self, path: str) -> None:
        self._pass(f"after {path}")

    def _pass(self, where: str) -> None:
        self.passed += 1
        if self.passed == self.point:
            raise Crash(where)


class _NoFaults:
    def before_write(self, path: str) -> None:
        pass

    def after_write(self, path: str) -> None:
        pass


@dataclass
class _Disk:
    files: dict[str, bytes] = field(default_factory=dict)
    modified: dict[str, int] = field(default_factory=dict)  #: ticks of the clock below
    clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    folders: set[str] = field(default_factory=set)
    created_twice: int = 0  #: files that somebody else created between the look and the write
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryFiles(OneByOne):
    """Files in memory.

    Args:
        faults: called around each durable step.
        torn_writes: a crash before a file has appeared leaves half of its temporary file behind, as a real disk does;
            the file itself never appears by halves. :meth:`residue` lists what was left.
        has_links: False: files can only be copied.
        creates_atomically: False: ``create`` looks first and writes later, so several callers may succeed and the last
            one's content stays. Some of Spark's file managers do that on object stores.
    """

    def __init__(
        self,
        faults: Faults | None = None,
        *,
        torn_writes: bool = False,
        has_links: bool = True,
        creates_atomically: bool = True,
    ) -> None:
        self._faults: Faults = faults or _NoFaults()
        self._torn_writes = torn_writes
        self._has_links = has_links
        self._creates_atomically = creates_atomically
        self._disk = _Disk()

    def seen_by(self, faults: Faults | None) -> MemoryFiles:
        """Return the same storage as another driver sees it: it shares the content, and has faults of its own."""
        view = self._new(faults)
        view._disk = self._disk
        return view

    def copy(self) -> MemoryFiles:
        """Return an independent storage with the same content and no faults."""
        with self._disk.lock:
            other = self._new()
            other._disk = _Disk(
                dict(self._disk.files),
                dict(self._disk.modified),
                itertools.count(next(self._disk.clock)),
                set(self._disk.folders),
            )
            return other

    def damage(self, path: str, *, flip_bit: int | None = None, keep: int | None = None) -> None:
        """Damage a file behind the back of its writer.

        Args:
            path: an existing file.
            flip_bit: the bit to invert, counted from the first bit of the file.
            keep: the number of bytes to keep; the rest is cut off.
        """
        data = bytearray(self._disk.files[path])
        if flip_bit is not None:
            data[flip_bit // 8] ^= 1 << flip_bit % 8
        with self._disk.lock:
            self._disk.files[path] = bytes(data[:keep])

    @property
    def created_twice(self) -> int:
        """How many files two callers have created, because the storage looks first and writes later."""
        return self._disk.created_twice

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        with self._disk.lock:
            return sorted(path for path in self._disk.files if not _is_hidden(path))

    def residue(self) -> list[str]:
        """Return the temporary files that crashes have left, sorted."""
        with self._disk.lock:
            return sorted(path for path in self._disk.files if _is_hidden(path))

    def read(self, path: str) -> bytes:
        with self._disk.lock:
            try:
                return self._disk.files[path]
            except KeyError:
                raise FileNotFoundError(path) from None

    def create(self, path: str, data: bytes) -> None:
        if not self._creates_atomically and self.exists(path):
            raise AlreadyExists(path)
        self._before(path, data)
        with self._disk.lock:
            if self._creates_atomically and (path in self._disk.files or path in self._disk.folders):
                raise AlreadyExists(path)
            self._disk.created_twice += path in self._disk.files
            self._put(path, data)
        self._faults.after_write(path)

    def replace(self, path: str, data: bytes) -> None:
        self._before(path, data)
        with self._disk.lock:
            self._put(path, data)
        self._faults.after_write(path)

    def exists(self, path: str) -> bool:
        with self._disk.lock:
            return path in self._disk.files or path in self._disk.folders

    def list(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        with self._disk.lock:
            paths = [*self._disk.files, *self._disk.folders]
        below = [name.removeprefix(prefix) for name in paths if name.startswith(prefix)]
        return sorted({name.split("/")[0] for name in below if not name.startswith(".")})

    def delete(self, path: str) -> None:
        with self._disk.lock:
            is_file = path in self._disk.files
            doomed = [path] if is_file else [name for name in self._disk.files if name.startswith(path + "/")]
        # The contract promises no order; the last names first is the one that a log can bear least.
        for name in sorted(doomed, reverse=True):
            self._faults.before_write(name)
            with self._disk.lock:
                self._disk.files.pop(name, None)
            self._faults.after_write(name)
        if not is_file:
            with self._disk.lock:
                folders = self._disk.folders
                folders -= {name for name in folders if name == path or name.startswith(path + "/")}

    def make_dirs(self, path: str) -> None:
        with self._disk.lock:
            self._make_folders(path)

    def walk(self, path: str) -> Sequence[FileInfo]:
        prefix = path.rstrip("/") + "/"
        with self._disk.lock:
            return [
                FileInfo(name.removeprefix(prefix), len(data), self._disk.modified[name])
                for name, data in self._disk.files.items()
                if name.startswith(prefix) and "/." not in name[len(prefix) - 1 :]
            ]

    def chunks(self, path: str) -> Iterator[bytes]:
        yield self.read(path)

    def write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        self.replace(path, b"".join(chunks))

    def link_one(self, source: str, target: str) -> Linked:
        with self._disk.lock:
            data, modified = self._disk.files.get(source), self._disk.modified.get(source)
        if data is None or modified is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._before(target, data)
        with self._disk.lock:
            self._put(target, data)
            if self._has_links:
                self._disk.modified[target] = modified
        self._faults.after_write(target)
        return Linked(len(data), modified, self._has_links)

    def delete_all(self, path: str, names: Sequence[str]) -> None:
        super().delete_all(path, names)
        with self._disk.lock:
            for name in names:
                folder = name.rpartition("/")[0]
                while folder and not any(one.startswith(f"{path}/{folder}/") for one in self._everything()):
                    self._disk.folders.discard(f"{path}/{folder}")
                    folder = folder.rpartition("/")[0]

    def _new(self, faults: Faults | None = None) -> MemoryFiles:
        return MemoryFiles(
            faults,
            torn_writes=self._torn_writes,
            has_links=self._has_links,
            creates_atomically=self._creates_atomically,
        )

    def _everything(self) -> Iterable[str]:
        return itertools.chain(self._disk.files, self._disk.folders)

    def _before(self, path: str, data: bytes) -> None:
        try:
            self._faults.before_write(path)
        except Crash:
            if self._torn_writes:
                folder, _, name = path.rpartition("/")
                with self._disk.lock:
                    self._put(f"{folder}/.{name}.tmp", data[: len(data) // 2])
            raise

    def _put(self, path: str, data: bytes) -> None:
        self._make_folders(path.rpartition("/")[0])
        self._disk.files[path] = bytes(data)
        self._disk.modified[path] = next(self._disk.clock)

    def _make_folders(self, path: str) -> None:
        while path:
            self._disk.folders.add(path)
            path = path.rpartition("/")[0]


def _is_hidden(path: str) -> bool:
    return path.rpartition("/")[2].startswith(".")
