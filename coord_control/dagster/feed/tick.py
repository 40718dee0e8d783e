"""One tick of the sensor: turns changes of the jobs into events that Dagster does not have yet.

Each change is reported exactly once. The daemon writes the events of a tick one by one, and the cursor after the last.
So the cursor may be lost, or be out of date because the daemon died between two events. Dagster's own event log
decides, but looking up every event would be slow. Most of the time a single lookup is enough:

* The changes after the cursor, and hence their events, always come in the same order. If Dagster does not have the
  first event, the previous tick was not interrupted, and Dagster has none of the following ones.
* If it has the first event, or there is no valid cursor, or a job is new, every event is looked up.
* Single events are looked up if they may have been reported otherwise or earlier: those of our runs, and those that
  happened before the last tick but were recorded after it (a history that was written again).

A checkpoint that one of our runs has requested is left to that run, which reports it with its own log. If the run
has finished without reporting it (it was killed), the sensor does. Until then the checkpoint waits in the cursor,
without delaying others.

The work of one tick is limited in changes, in rows of subtasks and in time; the next tick continues. The number of
database statements does not depend on the number of jobs. The daemon stores the events after the tick, at a few
milliseconds each, and evaluates no other sensor meanwhile, hence the limits.

The events of changes come first and the check results last, because Dagster hides a result that is older than the
newest materialization.

Threads: one; blocks on the database.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.dagster.feed.current_state import check_jobs, observe_queries
from coord_control.dagster.feed.cursor import CatchUp, Cursor, JobMark, Waiting
from coord_control.dagster.feed.dagster_events import AssetEvent, AssetFact, JobAssets, facts_of, happened_at
from coord_control.dagster.feed.pages import Page, Pages
from coord_control.dagster.feed.seen import Seen
from coord_control.dagster.feed.written import materialize_queries
from coord_control.dagster.runs.own_runs import OwnRuns, is_own
from coord_control.dagster.runs.patience import within
from coord_control.storage.records import Change, CheckpointKind, CheckpointState, Fleet, JobOverview

__all__ = ["Tick", "TickLimits", "TickResult"]

#: How far back history is reported when the sensor is first started or has lost its cursor.
_HISTORY: Final = timedelta(hours=24)
_ANSWER_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class TickLimits:
    """How much work one tick may do.

    Attributes:
        changes: changes to read at once.
        subtasks: rows in the tables of all checkpoints together; Dagster sends them between its processes.
        observations: queries to observe, not counting those that have recovered; the next tick continues.
        materializations: queries to materialize; the next tick continues.
        repeats: jobs whose unchanged check results are reported again because the last time was five minutes ago.
        seconds: when to stop reading changes; Dagster aborts a tick after 60 seconds.
    """

    changes: int = 1000
    subtasks: int = 20_000
    observations: int = 50
    materializations: int = 50
    repeats: int = 50
    seconds: float = 40.0


@dataclass(frozen=True, slots=True)
class TickResult:
    """The result of a tick.

    Attributes:
        is_all: whether no change is left for the next tick.
    """

    events: Sequence[AssetEvent]
    cursor: Cursor
    is_all: bool


@dataclass(slots=True)
class _Decided:
    """What to report.

    Attributes:
        facts: the events to report.
        waiting: checkpoints that are left to our own runs.
        materialized: jobs whose checkpoint asset gets a new materialization from this tick.
        reported: jobs whose checkpoint asset has a new materialization from one of our runs.
    """

    facts: list[AssetFact] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    materialized: set[str] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)


class Tick:
    """One tick of the sensor.

    Args:
        jobs: the assets of the jobs, by name.
        cursor: the cursor of the last tick, or None if there is no valid one.
    """

    def __init__(
        self,
        client: ControlClient,
        instance: dg.DagsterInstance,
        jobs: Mapping[str, JobAssets],
        cursor: Cursor | None,
        limits: TickLimits,
        log: logging.Logger,
    ) -> None:
        self._client, self._instance, self._jobs, self._limits, self._log = client, instance, jobs, limits, log
        self._deadline = time.monotonic() + limits.seconds
        self._given = cursor
        self._runs = OwnRuns(instance)
        self._pages = Pages(client, changes=limits.changes, subtasks=limits.subtasks, is_over=self._is_over)
        self._is_careful = cursor is None  #: look up every event
        self._trusted_since: datetime | None = None  #: Dagster has no events of changes since then

    def run(self) -> TickResult:
        """Return the events to report, and the next cursor.

        Raises:
            DatabaseError: the control database cannot be read; nothing was done.
            TimeoutError: the control database does not answer.
        """
        newest = within(_ANSWER_SECONDS, self._client.newest_change)
        fleet = self._client.fleet(self._jobs)
        overviews = {overview.job.name: overview for overview in fleet.jobs}
        cursor = self._begin(newest, fleet)
        decided, cursor, is_all = self._changes(cursor, newest)
        events = self._events(decided, overviews)
        observed, cursor = observe_queries(self._jobs, overviews, cursor, self._limits.observations)
        written, cursor = materialize_queries(
            self._instance, self._jobs, overviews, cursor, fleet.now, self._limits.materializations
        )
        checked, cursor = check_jobs(
            self._jobs,
            overviews,
            cursor,
            fleet.now,
            materialized=decided.materialized,
            reported=decided.reported,
            most=self._limits.repeats,
        )
        return TickResult([*events, *observed, *written, *checked], replace(cursor, at=fleet.now), is_all)

    def _begin(self, newest: int, fleet: Fleet) -> Cursor:
        """Return the cursor to continue from, with the current jobs."""
        cursor, floor = self._given, fleet.now - _HISTORY
        if cursor is not None and newest < cursor.sequence:
            self._log.warning(
                f"the control database has {newest} changes, but {cursor.sequence} were already read: it is another "
                "one, or an older copy; starting over without repeating what Dagster already has"
            )
            self._is_careful = True
            cursor = Cursor(sequence=0, at=fleet.now, floor=floor, jobs=cursor.jobs)
        cursor = cursor or Cursor(sequence=0, at=fleet.now, floor=floor)
        known = {overview.job.name: overview.job for overview in fleet.jobs}
        marks = {name: replace(cursor.jobs.get(name, JobMark()), is_there=name in known) for name in self._jobs}
        joined = [
            name
            for name, job in known.items()
            if not cursor.jobs.get(name, JobMark()).is_there or job.created_at >= cursor.at
        ]
        # A waiting checkpoint of an added job is read again with the job's other changes.
        waiting = tuple(each for each in cursor.waiting if each.job in marks and each.job not in joined)
        cursor = replace(cursor, jobs=marks, waiting=waiting)
        self._is_careful = self._is_careful or bool(joined)
        if cursor.sequence == 0 or not joined:
            return cursor
        before = cursor.catch_up.jobs if cursor.catch_up is not None else ()
        names = tuple(sorted({*joined, *before} & known.keys()))
        return replace(cursor, catch_up=CatchUp(names, 0, cursor.sequence, floor))

    # --- changes: decide, report

    def _changes(self, cursor: Cursor, newest: int) -> tuple[_Decided, Cursor, bool]:
        decided = _Decided()
        released = self._released(cursor, decided)
        late = Page((), 0, True) if cursor.catch_up is None else self._pages.late(cursor.catch_up, self._jobs)
        page = Page((), cursor.sequence, False)
        if late.is_last:  # otherwise the newest of a job would come before its older ones
            page = self._pages.after(cursor.sequence, self._jobs, floor=cursor.floor, newest=newest)
        asked = [*released, *late.changes]
        seen = Seen(self._instance, [fact for change in (*asked, *page.changes) for fact in self._facts(change)])
        self._trust(page.changes, seen, cursor.at)
        for change in released:
            self._decide(change, decided, seen, may_trust=False)
        late = self._decide_page(late, decided, seen, may_trust=False)
        page = self._decide_page(page, decided, seen, may_trust=True)
        catch_up = cursor.catch_up
        if catch_up is not None:
            catch_up = None if late.is_last else replace(catch_up, after=max(catch_up.after, late.through))
        sequence = max(cursor.sequence, page.through)
        cursor = replace(cursor, sequence=sequence, waiting=tuple(decided.waiting), catch_up=catch_up)
        return decided, cursor, late.is_last and page.is_last

    def _released(self, cursor: Cursor, decided: _Decided) -> list[Change]:
        """Return the checkpoints whose runs have finished; the others keep waiting."""
        over: list[Waiting] = []
        for each in cursor.waiting:
            (over if self._runs.are_over(each.actor) else decided.waiting).append(each)
        return self._pages.of(over)

    def _trust(self, changes: Sequence[Change], seen: Seen, since: datetime) -> None:
        """Find out whether Dagster has no events of the changes since the last tick."""
        if not self._is_careful:
            fresh = (each for each in changes if happened_at(each) >= since and not _is_of_own_run(each))
            first = next((fact for each in fresh for fact in self._facts(each)), None)
            self._is_careful = first is not None and seen.has(first)
        if self._is_careful:
            seen.skip_new_assets()
        else:
            self._trusted_since = since

    def _is_trusted(self, change: Change) -> bool:
        return self._trusted_since is not None and happened_at(change) >= self._trusted_since

    def _decide_page(self, page: Page, decided: _Decided, seen: Seen, *, may_trust: bool) -> Page:
        for place, change in enumerate(page.changes):
            if self._is_over():
                through = page.changes[place - 1].sequence if place else change.sequence - 1
                return Page(page.changes[:place], through, False)
            self._decide(change, decided, seen, may_trust=may_trust)
        return page

    def _decide(self, change: Change, decided: _Decided, seen: Seen, *, may_trust: bool) -> None:
        # Check first whether the run has finished: one that ends between the two checks has reported by then.
        record, is_own_run = change.checkpoint, _is_of_own_run(change)
        actor = record.requested_by if record is not None and record.requested_by is not None else ""
        is_over = not is_own_run or self._runs.are_over(actor)
        is_trusted = may_trust and not is_own_run and self._is_trusted(change)
        new = [fact for fact in self._facts(change) if is_trusted or not seen.has(fact)]
        if new and not is_over:
            decided.waiting.append(Waiting(change.sequence, change.job, actor))
            return
        decided.facts.extend(new)
        if _is_completed(change) and record is not None and record.kind is CheckpointKind.CHECKPOINT:
            (decided.materialized if new else decided.reported).add(change.job)

    def _events(self, decided: _Decided, overviews: Mapping[str, JobOverview]) -> Iterator[AssetEvent]:
        wanted = {(found.job, found.id) for fact in decided.facts if (found := fact.change.checkpoint) is not None}
        subtasks = self._client.subtasks_of(sorted(wanted)) if wanted else {}
        for fact in sorted(decided.facts, key=lambda each: each.change.sequence):
            yield fact.event(subtasks, overviews.get(fact.change.job))

    def _facts(self, change: Change) -> tuple[AssetFact, ...]:
        return facts_of(change, self._jobs[change.job])

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline


def _is_completed(change: Change) -> bool:
    return change.checkpoint is not None and change.checkpoint.state is not CheckpointState.FAILED


def _is_of_own_run(change: Change) -> bool:
    return change.checkpoint is not None and _is_completed(change) and is_own(change.checkpoint.requested_by)
