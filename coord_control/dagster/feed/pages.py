"""Reads changes from the control database page by page, no more than one tick can handle.

A change is small, but a checkpoint comes with a row for each of its subtasks, and Dagster sends them between its
processes. So a page ends where one of its limits is reached, and names the last change that it covers: the next tick
continues from there.

Threads: one; blocks on the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from coord_control.control.client.control_client import ControlClient
from coord_control.dagster.feed.cursor import CatchUp, Waiting
from coord_control.dagster.feed.dagster_events import happened_at
from coord_control.storage.records import Change

__all__ = ["Page", "Pages"]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of changes.

    Attributes:
        through: the last change that the page covers.
        is_last: whether there are no changes after it.
    """

    changes: Sequence[Change]
    through: int
    is_last: bool


class Pages:
    """Reads the changes of one tick.

    Args:
        changes: how many changes to read at once.
        subtasks: limit on the subtasks of all checkpoints of a page.
        is_over: returns whether the tick's time is up.
    """

    def __init__(self, client: ControlClient, *, changes: int, subtasks: int, is_over: Callable[[], bool]) -> None:
        self._client, self._limit, self._subtasks, self._is_over = client, changes, subtasks, is_over

    def after(self, after: int, jobs: Collection[str], *, floor: datetime, newest: int) -> Page:
        """Return changes of these jobs after a sequence number.

        Args:
            floor: older changes are left out.
            newest: the newest known change of any job; the last page covers at least all changes up to it.
        """
        while True:
            found = self._client.changes(after, limit=self._limit, jobs=jobs)
            is_last = len(found) < self._limit
            last = found[-1].sequence if found else after
            young = [change for change in found if happened_at(change) >= floor]
            if young or is_last or self._is_over():
                return self._light(Page(young, max(last, newest) if is_last else last, is_last))
            after = last

    def late(self, catch_up: CatchUp, jobs: Collection[str]) -> Page:
        """Return the earlier changes of jobs that were added later.

        Args:
            jobs: the jobs that have assets now.
        """
        names = [name for name in catch_up.jobs if name in jobs]
        page = self.after(catch_up.after, names, floor=catch_up.floor, newest=0)
        before = [change for change in page.changes if change.sequence <= catch_up.until]
        return Page(before, page.through, page.is_last or page.through >= catch_up.until)

    def of(self, waiting: Sequence[Waiting]) -> list[Change]:
        """Return these changes, without those that no longer exist."""
        jobs, missing = {each.job for each in waiting}, sorted(each.sequence for each in waiting)
        found: list[Change] = []
        while missing:
            page = self._client.changes(missing[0] - 1, limit=self._limit, jobs=jobs)
            found.extend(change for change in page if change.sequence in missing)
            missing = [sequence for sequence in missing if page and sequence > page[-1].sequence]
        return found

    def _light(self, page: Page) -> Page:
        """Return as many of the changes as one tick can handle, but at least one."""
        rows = 0
        for place, change in enumerate(page.changes):
            rows += 0 if change.checkpoint is None else change.checkpoint.subtasks
            if rows > self._subtasks and place > 0:
                return Page(page.changes[:place], page.changes[place - 1].sequence, False)
        return page
