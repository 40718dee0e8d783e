"""The files that the checkpoints of a job share, and the checkpoints that need each of them.

Whether a shared file is needed is never written down: it is the number of existing ``_metadata`` that name it, counted
when a driver starts and kept in memory from then on. So no crash can make the count wrong; it can only leave files that
no checkpoint names, and these are found by listing.

A name ends with a tag: size, modification time and generation, so a file that Spark has rewritten is a different one.
The generation makes it safe against a driver that does not know yet that it was fenced and removes what *it* believes
to be superfluous: it only knows names of its generation and older ones, and no checkpoint of ours rests on those. The
price is that the first checkpoint of a generation links every file again, or copies it where there are no links.

A checksum is computed once: of a file that a retained checkpoint has, or that the query's last savepoint had, it is
known. Savepoints share no files, but they tell what they have read.

Threads: any. A file that is being removed is never given to a new owner: :meth:`SharedFiles.acquire` waits, and the
file is linked again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from coord_control.durable.files.filesystem import Checksum, FileInfo, Files, join
from coord_control.ids import CheckpointId, Generation

__all__ = ["Acquired", "SharedFiles"]

_GENERATION: Final = re.compile(r"\.[0-9a-f]+-[0-9a-f]+-([0-9a-f]+)$")


class Acquired(NamedTuple):
    """A file that a checkpoint may count on.

    Attributes:
        tag: what its name ends with.
        checksum: of its content; None if it was never read.
        is_missing: it has to be linked first.
    """

    tag: str
    checksum: Checksum | None
    is_missing: bool


@dataclass(slots=True)
class _Shared:
    checksum: Checksum | None  #: None while it is being pinned
    owners: int = 0


class SharedFiles:
    """The shared files of one job, for one generation.

    Args:
        files: the job's storage.
        folder: where they lie.
    """

    def __init__(self, files: Files, folder: str, generation: Generation) -> None:
        self.files = files
        self.folder = folder
        self._generation = generation
        self._known: dict[str, _Shared] = {}
        self._read: dict[str, dict[str, Checksum]] = {}  #: of the files of each query's last savepoint
        self._owned: dict[CheckpointId, set[str]] = {}
        self._generations: set[str] = set()  #: of the known names
        self._unneeded: set[str] = set()  #: files that no checkpoint names, and that still exist
        self._keeps_older = False
        self._is_removing = False
        self._changed = threading.Condition()

    def load(self, owner: CheckpointId, files: Iterable[tuple[str, Checksum]]) -> None:
        """Count the files of a complete checkpoint."""
        with self._changed:
            owned = self._owned.setdefault(owner, set())
            for name, checksum in files:
                shared = self._known.setdefault(name, _Shared(checksum))
                self._generations.add(name.rpartition("-")[2])
                self._own(owned, name, shared)

    def keep_older(self) -> None:
        """Never remove files of older generations: checkpoints that we do not know of may need them."""
        with self._changed:
            self._keeps_older = True

    def checksums(self, prefix: str, infos: Sequence[FileInfo]) -> list[Checksum | None]:
        """Return the known checksums of live files, which are immutable; None for each that was never read.

        Args:
            prefix: of the names: query and lineage.
        """
        with self._changed:
            return [self._known_checksum(prefix, info) for info in infos]

    def remember(self, prefix: str, infos: Sequence[FileInfo], checksums: Iterable[Checksum]) -> None:
        """Remember the checksums of the live files that are in a savepoint, instead of those of an earlier one."""
        read = {_live_name(info): checksum for info, checksum in zip(infos, checksums, strict=True)}
        with self._changed:
            self._read[prefix] = read

    def acquire(self, owner: CheckpointId, prefix: str, infos: Iterable[FileInfo]) -> list[Acquired]:
        """Reserve files for a checkpoint that is being made; from now on they are not removed.

        Those that are missing must be linked next, and reported to :meth:`ready`.
        """
        with self._changed:
            while self._is_removing:
                self._changed.wait()
            owned = self._owned.setdefault(owner, set())
            return [self._acquire(owned, prefix, info) for info in infos]

    def ready(self, names: Iterable[str], checksums: Iterable[Checksum]) -> None:
        """Record that these files exist under their shared names."""
        with self._changed:
            for name, checksum in zip(names, checksums, strict=True):
                self._known[name].checksum = checksum
            self._generations.add(f"{self._generation:x}")

    def keep(self, owner: CheckpointId, names: Iterable[str]) -> None:
        """Keep just these files of a checkpoint, which is complete; it acquired more if it was cut several times."""
        with self._changed:
            kept = set(names)
            self._release(self._owned.get(owner, set()) - kept)
            self._owned[owner] = kept

    def release(self, owner: CheckpointId) -> None:
        """Release the files of a checkpoint that is gone, or will never exist; the next :meth:`remove_unneeded` removes
        those that no other checkpoint needs."""
        with self._changed:
            self._release(self._owned.pop(owner, ()))

    def remove_unneeded(self) -> None:
        """Remove the files that no checkpoint needs. May be repeated after an error.

        Raises:
            StoreUnavailable: some files may remain.
        """
        with self._changed:
            while self._is_removing:
                self._changed.wait()
            doomed = sorted(self._unneeded)
            if not doomed:
                return
            self._is_removing = True
        try:
            self.files.delete_all(self.folder, doomed)
        except BaseException:
            self._end_removing([])
            raise
        self._end_removing(doomed)

    def sweep(self) -> None:
        """Remove shared files that no checkpoint needs, left by crashes. Call it before anything is acquired.

        Raises:
            StoreUnavailable: some files may remain.
        """
        with self._changed:
            found = [info.path for info in self.files.walk(self.folder)]
            # What a newer driver has made is not ours: it has fenced us just now.
            orphans = sorted(name for name in found if name not in self._known and self._is_ours_to_remove(name))
        if orphans:
            self.files.delete_all(self.folder, orphans)

    def owners(self) -> dict[str, int]:
        """Return how many checkpoints need each shared file, by name."""
        with self._changed:
            return {name: shared.owners for name, shared in self._known.items() if shared.owners}

    def path(self, prefix: str) -> str:
        """Return the folder of one query and lineage."""
        return join(self.folder, prefix)

    def _acquire(self, owned: set[str], prefix: str, info: FileInfo) -> Acquired:
        tag = self._tag(info)
        name = f"{prefix}/{info.path}.{tag}"
        shared = self._known.setdefault(name, _Shared(None))
        self._own(owned, name, shared)
        if shared.checksum is not None:
            return Acquired(tag, shared.checksum, False)
        return Acquired(tag, self._known_checksum(prefix, info), True)

    def _release(self, names: Iterable[str]) -> None:
        for name in names:
            shared = self._known[name]
            shared.owners -= 1
            if shared.owners:
                continue
            if self._keeps_older and name.rpartition("-")[2] != f"{self._generation:x}":
                del self._known[name]
            else:
                self._unneeded.add(name)

    def _own(self, owned: set[str], name: str, shared: _Shared) -> None:
        if name not in owned:
            owned.add(name)
            shared.owners += 1
            self._unneeded.discard(name)

    def _is_ours_to_remove(self, name: str) -> bool:
        generation = _GENERATION.search(name)
        return generation is not None and int(generation[1], 16) <= self._generation

    def _end_removing(self, removed: Iterable[str]) -> None:
        with self._changed:
            for name in removed:
                self._unneeded.discard(name)
                del self._known[name]
            if not removed:
                # Some are gone, but which ones is unknown: if needed again, they are linked again.
                for name in self._unneeded:
                    self._known[name].checksum = None
            self._is_removing = False
            self._changed.notify_all()

    def _tag(self, info: FileInfo) -> str:
        return f"{_version(info)}-{self._generation:x}"

    def _known_checksum(self, prefix: str, info: FileInfo) -> Checksum | None:
        name = _live_name(info)
        for generation in self._generations:
            shared = self._known.get(f"{prefix}/{name}-{generation}")
            if shared is not None and shared.checksum is not None:
                return shared.checksum
        return self._read.get(prefix, {}).get(name)


def _version(info: FileInfo) -> str:
    return f"{info.size:x}-{info.modified:x}"


def _live_name(info: FileInfo) -> str:
    return f"{info.path}.{_version(info)}"
