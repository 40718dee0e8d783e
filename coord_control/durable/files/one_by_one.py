"""Default bulk operations, by calls for single files.

Threads: those of the implementation.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from coord_control.durable.files.filesystem import EagerListing, Listing, join
from coord_control.durable.files.posix import Checksum, FileInfo, Linked

__all__ = ["OneByOne"]


class OneByOne(Protocol):
    """Mix-in for an implementation of :class:`~coord_control.durable.files.filesystem.Files`."""

    def chunks(self, path: str) -> Iterator[bytes]: ...

    def delete(self, path: str) -> None: ...

    def walk(self, path: str) -> Sequence[FileInfo]: ...

    def link_one(self, source: str, target: str) -> Linked:
        """As :meth:`~coord_control.durable.files.filesystem.Files.link`, and return what the file is."""
        ...

    def checksum_one(self, path: str) -> Checksum:
        """Read a file and return what it holds.

        Raises:
            FileNotFoundError: there is no such file.
        """
        size, crc = 0, 0
        for chunk in self.chunks(path):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        return Checksum(size, f"{crc:08x}")

    def link(self, source: str, target: str) -> bool:
        return self.link_one(source, target).is_linked

    def link_all(
        self,
        source: str,
        target: str,
        names: Sequence[tuple[str, str]],
        summed: Collection[str] = (),
        listed: Sequence[FileInfo] | None = None,
    ) -> Sequence[Linked]:
        return [self.link_one(join(source, from_name), join(target, to_name)) for from_name, to_name in names]

    def listing(self, path: str) -> Listing:
        return EagerListing(self.walk(path))

    def checksum_all(self, path: str, names: Sequence[str]) -> Sequence[Checksum | None]:
        return [self._checksum_of(join(path, name)) for name in names]

    def delete_all(self, path: str, names: Sequence[str]) -> None:
        for name in names:
            self.delete(join(path, name))

    def _checksum_of(self, path: str) -> Checksum | None:
        try:
            return self.checksum_one(path)
        except FileNotFoundError:
            return None
