"""Many files of a local disk at once, and the few system calls that make a write durable.

A state directory can hold a hundred thousand files, and a checkpoint takes them all: here a path is resolved once per
folder and not once per file, nothing is read into more than one buffer per thread, and a folder is synced once after
all its new names. Two threads work side by side on large files: blocks are read, written and summed up without Python's
lock. Small files and links are the work of one: after each short system call two would wait for that lock.

Everything here raises :class:`OSError`; the layer above translates it.

Threads: any; the functions for many files start two threads and end them before they return.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

__all__ = [
    "CHUNK_BYTES",
    "Checksum",
    "FileInfo",
    "Linked",
    "checksum_all",
    "chunks",
    "delete_all",
    "infos",
    "link_all",
    "make_dirs",
    "make_dirs_unsynced",
    "open_new",
    "sync_folder",
    "walk",
    "write_all",
]

#: What is held of a file at a time, whatever its size.
CHUNK_BYTES: Final = 1 << 18

_THREADS: Final = 2
#: A smaller file is read by one call, which no other thread can make faster.
_SMALL_BYTES: Final = 1 << 16
#: So many files are one piece of work, or fewer: each thread gets several pieces.
_MAX_PIECE: Final = 256
_PIECES: Final = 16
#: So few folders are synced by one thread: the first of them writes the journal, and that is most of the time.
_FEW_FOLDERS: Final = 64

#: The file system, or the kernel's rules, do not let this file have another name there: then it is copied.
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class FileInfo(NamedTuple):
    """A file below a folder.

    Attributes:
        path: relative to the folder.
        size: in bytes.
        modified: only to be compared: a file that was replaced has another one.
        etag: the store's name for the content; None where there is none.
    """

    path: str
    size: int
    modified: int
    etag: str | None = None


class Linked(NamedTuple):
    """A file that has got a second name, or has been copied.

    Attributes:
        size: in bytes.
        modified: of what was linked or copied, as in :class:`FileInfo`.
        is_linked: False: it was copied.
        crc32: of what was copied, as in :class:`Checksum`; None if it was not read and the store does not say.
    """

    size: int
    modified: int
    is_linked: bool
    crc32: str | None = None


class Checksum(NamedTuple):
    """What a file's content is.

    Attributes:
        size: in bytes.
        crc32: eight hexadecimal digits.
    """

    size: int
    crc32: str


#: Stands for a file that has not been read to its end.
_LARGE: Final = Checksum(-1, "")


def walk(folder: str) -> list[FileInfo]:
    """List the files below a folder, without hidden ones and those in hidden folders; nothing if it is absent."""
    found: list[FileInfo] = []
    for name in names_below(folder):
        with contextlib.suppress(FileNotFoundError):
            found.append(_info(folder, name))
    return found


def infos(folder: str, names: Iterable[str]) -> list[FileInfo]:
    """Look at files below a folder.

    Raises:
        FileNotFoundError: ``filename`` is the path of one that does not exist.
    """
    found: list[FileInfo] = []
    for below, group in _by_folder(names):
        prefix = f"{below}/" if below else ""
        with _opened_folder(f"{folder}/{below}", f"{folder}/{prefix}{group[0]}") as descriptor:
            for name in group:
                try:
                    status = os.stat(name, dir_fd=descriptor)
                except FileNotFoundError:
                    path = f"{folder}/{prefix}{name}"
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
                found.append(FileInfo(prefix + name, status.st_size, status.st_mtime_ns))
    return found


def _info(folder: str, name: str) -> FileInfo:
    status = os.stat(f"{folder}/{name}")
    return FileInfo(name, status.st_size, status.st_mtime_ns)


def names_below(folder: str) -> list[str]:
    """Return the paths of the files that :func:`walk` lists, relative to the folder: a quarter of its time."""
    found: list[str] = []
    folders = [("", folder)]
    while folders:
        prefix, path = folders.pop()
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append((f"{prefix}{name}/", entry.path))
                else:
                    found.append(prefix + name)
    return found


def link_all(source: str, target: str, names: Sequence[tuple[str, str]], summed: Collection[str] = ()) -> list[Linked]:
    """Give files of one folder names below another one, or copies where that cannot be.

    Args:
        names: pairs of relative paths: below ``source``, and below ``target``.
        summed: paths below ``source`` whose checksums the caller knows: they are not computed for a copy.

    Raises:
        FileNotFoundError: ``filename`` is the path of a source that does not exist.
    """
    below = {name.rpartition("/")[0] for _, name in names}
    changed = {f"{target}/{folder}" if folder else target for folder in below}
    for folder in sorted(changed):
        changed.update(make_dirs_unsynced(folder))
    linked = _link(source, target, names)
    unlinked = [place for place, one in enumerate(linked) if one is None]
    copies = _spread(lambda piece: _copy_piece(source, target, piece, summed), [names[place] for place in unlinked])
    for place, copy in zip(unlinked, copies, strict=True):
        linked[place] = copy
    # Only now that all names are there: to sync one writes the journal, and has most of it done for the others.
    _spread(_sync_folders, sorted(changed), at_least=_FEW_FOLDERS)
    return [one for one in linked if one is not None]


def checksum_all(folder: str, names: Sequence[str]) -> list[Checksum | None]:
    """Read files; None for one that does not exist."""
    found = _checksums_of_small(folder, names)
    large = [place for place, one in enumerate(found) if one is _LARGE]
    checksums = _spread(lambda piece: _checksum_piece(folder, piece), [names[place] for place in large])
    for place, checksum in zip(large, checksums, strict=True):
        found[place] = checksum
    return found


def delete_all(folder: str, names: Sequence[str]) -> None:
    """Remove files, absent ones too, and the folders below ``folder`` that are empty then."""
    emptied: set[str] = set()
    for below, group in _by_folder(names):
        with contextlib.suppress(FileNotFoundError), _opened_folder(f"{folder}/{below}") as descriptor:
            for name in group:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)
            os.fsync(descriptor)
        emptied.update(folder for folder in (below, *_above(below)) if folder)
    for below in sorted(emptied, key=len, reverse=True):
        with contextlib.suppress(FileNotFoundError):
            try:
                os.rmdir(os.path.join(folder, below))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise


def chunks(path: str) -> Iterator[bytes]:
    """Read a file piece by piece."""
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def open_new(path: str) -> int:
    """Make a file that did not exist and return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it, in as many calls as it takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def make_dirs(folder: str) -> None:
    """Make folders so that they survive a power cut: a folder's name is an entry of the one above it."""
    for changed in make_dirs_unsynced(folder):
        sync_folder(changed)


def make_dirs_unsynced(folder: str) -> list[str]:
    """Make folders; returns those that have got a new one, which the caller syncs: later, and with other changes."""
    above = os.path.dirname(folder)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return []
    except FileNotFoundError:
        return [*make_dirs_unsynced(above), *make_dirs_unsynced(folder)]
    return [above]


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    with _opened_folder(folder) as descriptor:
        os.fsync(descriptor)


def _sync_folders(folders: Sequence[str]) -> list[None]:
    for folder in folders:
        sync_folder(folder)
    return []


def _spread(
    work: Callable[[Sequence[_Item]], list[_Result]], items: Sequence[_Item], *, at_least: int = 1
) -> list[_Result]:
    """Do the work on pieces of the items, in order, by some threads; the first error ends it.

    Args:
        at_least: items of a piece: with fewer, starting the threads would take longer.
    """
    size = max(at_least, min(_MAX_PIECE, -(-len(items) // _PIECES)))
    pieces = [items[start : start + size] for start in range(0, len(items), size)]
    if len(pieces) < _THREADS:
        return [result for piece in pieces for result in work(piece)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="coord-control-files") as pool:
        try:
            return [result for results in pool.map(work, pieces) for result in results]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _link(source: str, target: str, names: Sequence[tuple[str, str]]) -> list[Linked | None]:
    """Link in one thread, which is faster than two that hand Python's lock to each other; None for files to copy
    instead."""
    linked: list[Linked | None] = []
    with contextlib.ExitStack() as stack:
        opened: tuple[str, str] | None = None
        for source_path, target_path in names:
            # Not os.path: a hundred thousand times that would take as long as the links.
            below_source, _, source_name = source_path.rpartition("/")
            below_target, _, target_name = target_path.rpartition("/")
            if (below_source, below_target) != opened:
                stack.close()
                from_folder = stack.enter_context(_opened_folder(f"{source}/{below_source}", f"{source}/{source_path}"))
                to_folder = stack.enter_context(_opened_folder(f"{target}/{below_target}"))
                opened = (below_source, below_target)
            try:
                os.link(source_name, target_name, src_dir_fd=from_folder, dst_dir_fd=to_folder)
                status = os.stat(target_name, dir_fd=to_folder, follow_symlinks=False)
            except OSError as error:
                linked.append(_link_otherwise(error, f"{source}/{source_path}", f"{target}/{target_path}"))
                continue
            linked.append(Linked(status.st_size, status.st_mtime_ns, True))
    return linked


def _link_otherwise(error: OSError, source: str, target: str) -> Linked | None:
    if isinstance(error, FileExistsError):
        return _link_over(source, target)
    if isinstance(error, FileNotFoundError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source) from None
    if error.errno in _NO_LINK:
        return None
    raise error


def _link_over(source: str, target: str) -> Linked | None:
    """Link over a target that an earlier attempt has left."""
    status = os.stat(source)
    if os.path.samestat(status, os.lstat(target)):
        return Linked(status.st_size, status.st_mtime_ns, True)
    temporary = _temporary(target)
    try:
        os.link(os.path.realpath(source), temporary)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return None
    os.replace(temporary, target)
    return Linked(status.st_size, status.st_mtime_ns, True)


def _copy_piece(source: str, target: str, names: Sequence[tuple[str, str]], summed: Collection[str]) -> list[Linked]:
    return [
        _copy(f"{source}/{source_path}", f"{target}/{target_path}", is_summed=source_path in summed)
        for source_path, target_path in names
    ]


def _copy(source: str, target: str, *, is_summed: bool) -> Linked:
    temporary = _temporary(target)
    with open(source, "rb", buffering=0) as reader:
        status = os.fstat(reader.fileno())
        buffer = memoryview(bytearray(max(1, min(status.st_size, CHUNK_BYTES))))
        size, crc = 0, 0
        try:
            with open(open_new(temporary), "wb", buffering=0) as writer:
                while count := reader.readinto(buffer):
                    # Computed while the bytes are at hand: a later caller would have to read them again.
                    if not is_summed:
                        crc = zlib.crc32(buffer[:count], crc)
                    size += count
                    write_all(writer.fileno(), buffer[:count])
                os.fsync(writer.fileno())
            os.replace(temporary, target)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    return Linked(size, status.st_mtime_ns, False, None if is_summed else f"{crc:08x}")


def _temporary(target: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")


def _checksums_of_small(folder: str, names: Sequence[str]) -> list[Checksum | None]:
    """Compute checksums in one thread, for the same reason as links; the large files are left to others."""
    return _checksums(folder, names, memoryview(bytearray(_SMALL_BYTES)), lambda descriptor, buffer: _LARGE)


def _checksum_piece(folder: str, names: Sequence[str]) -> list[Checksum | None]:
    return _checksums(folder, names, memoryview(bytearray(CHUNK_BYTES)), _checksum_of_more)


def _checksums(
    folder: str, names: Sequence[str], buffer: memoryview, more: Callable[[int, memoryview], Checksum]
) -> list[Checksum | None]:
    """Compute the checksums of files; ``more`` is called when a file fills the buffer, which holds its beginning."""
    found: list[Checksum | None] = []
    for below, group in _by_folder(names):
        try:
            with _opened_folder(f"{folder}/{below}") as descriptor:
                found += [_checksum(name, descriptor, buffer, more) for name in group]
        except FileNotFoundError:
            found += [None] * len(group)
    return found


def _checksum(
    name: str, folder: int, buffer: memoryview, more: Callable[[int, memoryview], Checksum]
) -> Checksum | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        # Fewer bytes than there is room for: that was the end, as it is with every regular file.
        size = os.readv(descriptor, (buffer,))
        if size == len(buffer):
            return more(descriptor, buffer)
        return Checksum(size, f"{zlib.crc32(buffer[:size]):08x}")
    finally:
        os.close(descriptor)


def _checksum_of_more(descriptor: int, buffer: memoryview) -> Checksum:
    size, crc = len(buffer), zlib.crc32(buffer)
    while count := os.readv(descriptor, (buffer,)):
        size, crc = size + count, zlib.crc32(buffer[:count], crc)
    return Checksum(size, f"{crc:08x}")


def _by_folder(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Neighbours of one folder together: the folder, and the names in it."""
    group: list[str] = []
    current: str | None = None
    for path in names:
        below, _, name = path.rpartition("/")
        if below != current:
            if current is not None:
                yield current, group
            current, group = below, []
        group.append(name)
    if current is not None:
        yield current, group


def _above(below: str) -> Iterator[str]:
    while below:
        below = below.rpartition("/")[0]
        yield below


@contextlib.contextmanager
def _opened_folder(folder: str, for_file: str | None = None) -> Iterator[int]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), for_file or folder) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
