"""Errors that pass through a storage's translation as they are, because they are not about the path at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["PassedOn", "guarded"]


class PassedOn(Exception):
    """Carries an error to the caller of the storage, who gets ``error`` itself."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def guarded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Return the chunks; an error of theirs is passed on.

    Raises:
        PassedOn: the chunks raised an error.
    """
    try:
        yield from chunks
    except Exception as error:
        raise PassedOn(error) from None
