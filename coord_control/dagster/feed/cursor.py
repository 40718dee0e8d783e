"""What the sensor remembers between ticks: Dagster stores it as text, and may lose it.

Correctness does not depend on it. It saves work, and records which transient facts (the results of checks, the epochs
of queries) have been reported. Dagster stores it with every tick, so it is compressed if there are many jobs.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from coord_control.dagster.feed.blocked import BlockedMark

__all__ = ["CatchUp", "Cursor", "JobMark", "Waiting", "WrittenMark"]

_COMPRESSED: Final = "zlib:"
_LONG: Final = 4096
_LONGEST: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Waiting:
    """A checkpoint of one of our runs, which may still report it itself.

    Attributes:
        sequence: the number of the change.
        actor: the requester: a run or a schedule.
    """

    sequence: int
    job: str
    actor: str


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Jobs that were added after some of their changes had been read.

    Attributes:
        after: the last change of these jobs that has been read.
        until: the last change to read here; later ones are read together with those of the other jobs.
        floor: older changes are left out.
    """

    jobs: tuple[str, ...]
    after: int
    until: int
    floor: datetime


@dataclass(frozen=True, slots=True)
class WrittenMark:
    """Up to where the rows of a query were last reported as a materialization.

    Attributes:
        version: the data version: the query's lineage and the epoch.
        at: when, in whole seconds since 1970.
        generation: of the driver that has counted the rows; 0 if they are not known.
        rows, output_rows: those that the query had read and written since that driver started.
    """

    version: str
    epoch: int
    at: int
    generation: int = 0
    rows: int | None = None
    output_rows: int | None = None


@dataclass(frozen=True, slots=True)
class JobMark:
    """What was last reported about a job.

    Attributes:
        is_there: whether the control database knew the job.
        checks: the results of its checks, one letter each.
        checked_at: when all of them were reported, in whole seconds since 1970.
        epochs: the epochs of its queries when they were last observed.
        blocked: the blocked events of its operators at that time.
        written: up to where its queries were materialized.
    """

    is_there: bool = False
    checks: str = ""
    checked_at: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    blocked: dict[str, BlockedMark] = field(default_factory=dict)
    written: dict[str, WrittenMark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The whole cursor.

    Attributes:
        sequence: the number of the last change that was read.
        at: when it was read, by the clock of the control database.
        floor: older changes are left out: the history before the sensor was first started.
        waiting: checkpoints of our runs that may still be reported by them.
        catch_up: jobs whose earlier changes are still to be read.
        observed: the last query that was observed, as ``job/query``; the next tick continues after it.
        jobs: all jobs that have assets.
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
        """Return the cursor as text."""
        text = _CURSOR.dump_json(self)
        if len(text) < _LONG:
            return text.decode()
        return _COMPRESSED + base64.b64encode(zlib.compress(text)).decode()

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Parse a cursor.

        Raises:
            ValueError: the text is not a cursor, or is from a newer release.
        """
        try:
            return _CURSOR.validate_json(_plain(text))
        except (ValidationError, binascii.Error, zlib.error) as error:
            raise ValueError(f"not a cursor of this release: {type(error).__name__}") from error


def _plain(text: str) -> bytes:
    if not text.startswith(_COMPRESSED):
        return text.encode()
    unpacking = zlib.decompressobj()
    return unpacking.decompress(base64.b64decode(text[len(_COMPRESSED) :], validate=True), _LONGEST)


_CURSOR: Final[TypeAdapter[Cursor]] = TypeAdapter(Cursor)
