"""What the sensor remembers from one tick to the next: Dagster keeps it as a text, and may lose it.

Nothing depends on its being there. It saves work, and says which of the things that come and go (the outcomes of
checks, the epochs of queries) Dagster has been told. With many jobs it is long, and Dagster stores it with every tick:
then it is compressed.

Threads: values.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

__all__ = ["CatchUp", "Cursor", "JobMark", "Waiting"]

_COMPRESSED: Final = "zlib:"
_LONG: Final = 4096
_LONGEST: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Waiting:
    """A checkpoint of one of our own runs, which may still report it itself.

    Attributes:
        sequence: of the change.
        actor: who asked for it: a run, or a schedule.
    """

    sequence: int
    job: str
    actor: str


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Jobs that were not among ours when their changes went by.

    Attributes:
        after: what of them has been looked at.
        until: from there on they are among all others.
        floor: what is older is left out.
    """

    jobs: tuple[str, ...]
    after: int
    until: int
    floor: datetime


@dataclass(frozen=True, slots=True)
class JobMark:
    """What Dagster was last told of a job.

    Attributes:
        checks: the outcomes of its checks, a letter for each.
        checked_at: when all of them were told, in whole seconds since 1970.
        epochs: of its queries, when they were observed.
        is_there: the control database knew it.
    """

    is_there: bool = False
    checks: str = ""
    checked_at: int = 0
    epochs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cursor:
    """All of it.

    Attributes:
        sequence: of the last change that was looked at.
        at: when that was, by the clock of the control database.
        floor: changes from before are left out: history from before the sensor was started for the first time.
        observed: the last query that was observed, as ``job/query``: the next tick goes on after it.
        jobs: all of ours.
    """

    sequence: int
    at: datetime
    floor: datetime
    waiting: tuple[Waiting, ...] = ()
    catch_up: CatchUp | None = None
    observed: str = ""
    jobs: dict[str, JobMark] = field(default_factory=dict)
    version: Literal[1] = 1

    def encode(self) -> str:
        """As text."""
        text = _CURSOR.dump_json(self)
        if len(text) < _LONG:
            return text.decode()
        return _COMPRESSED + base64.b64encode(zlib.compress(text)).decode()

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """From text.

        Raises:
            ValueError: it is no cursor, or one of a newer release.
        """
        try:
            return _CURSOR.validate_json(_plain(text))
        except (ValidationError, binascii.Error, zlib.error) as error:
            raise ValueError(f"this is no cursor of this release: {type(error).__name__}") from error


def _plain(text: str) -> bytes:
    if not text.startswith(_COMPRESSED):
        return text.encode()
    unpacking = zlib.decompressobj()
    return unpacking.decompress(base64.b64decode(text[len(_COMPRESSED) :], validate=True), _LONGEST)


_CURSOR: Final[TypeAdapter[Cursor]] = TypeAdapter(Cursor)
