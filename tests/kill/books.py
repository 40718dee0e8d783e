"""What both sides of the numbered conversation write down, and how they notice a gap, a duplicate or a wrong copy.

Every channel numbers its events from 1. A side's `Page` of a channel holds the newest number and a check value over
all (number, value) pairs so far. Values of the coordinator's events are random, so an event of a coordinator that was
reset, and that has "not happened", cannot be mistaken for the one that took its place.

The driver imports this module, its Python workers too, and so do the tests that read what is left of a killed driver.
"""

from __future__ import annotations

import uuid
import zlib
from pathlib import Path
from typing import Final

from pydantic import BaseModel

__all__ = [
    "PARTICIPANTS",
    "RETAIN",
    "Books",
    "Ledger",
    "Order",
    "Page",
    "Report",
    "Violation",
    "story_folder",
    "violated",
]

#: Subtasks of the operator.
PARTICIPANTS: Final = 4
#: Epochs that Spark's checkpoint can be set back: few, so that logs are purged and thinned out within a test.
RETAIN: Final = 8


class Order(BaseModel):
    """Down: an event of the coordinator."""

    number: int
    value: int


class Report(BaseModel):
    """Up: an event of a subtask."""

    number: int
    value: int


class Violation(Exception):
    """Something that must never happen did."""


class Page(BaseModel):
    """One side's view of one channel."""

    number: int = 0
    check: int = 0

    def enter(self, event: Order | Report) -> None:
        """Note the next event.

        Raises:
            Violation: it is not the next one.
        """
        if event.number != self.number + 1:
            raise Violation(f"after number {self.number} came {event!r}")
        self.number = event.number
        self.check = zlib.crc32(f"{self.check}.{event.number}.{event.value}".encode())


class Ledger(BaseModel):
    """State of a subtask."""

    received: Page = Page()
    sent: Page = Page()
    rows: int = 0


class Books(BaseModel):
    """State of the coordinator; one page per subtask."""

    sent: list[Page] = [Page() for _ in range(PARTICIPANTS)]
    received: list[Page] = [Page() for _ in range(PARTICIPANTS)]


def violated(folder: Path, what: str) -> Violation:
    """Leave a note that outlives every process, and give the error to raise."""
    folder.mkdir(exist_ok=True)
    (folder / f"{uuid.uuid4().hex}.txt").write_text(what)
    return Violation(what)


def story_folder(folder: Path, restore: str | None) -> Path:
    """Where a job writes, and notes what it was served; after a restore in another place than before."""
    if restore is None:
        return folder
    return folder / f"story-{zlib.crc32(restore.encode()):08x}"
