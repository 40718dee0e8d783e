"""One look of the sensor: what has changed in the jobs, as events that Dagster does not have yet.

Each change is told exactly once. The daemon writes the events of a tick one after the other and the cursor after the
last, so a cursor and what it stands for can disagree in every way: it may be lost, or be old because the daemon died
between two events. Dagster's own event log decides. To ask it about everything would be slow, so most of the time it is
asked about one event:

* The changes after the cursor come in the same order each time, and so are their events written. When Dagster does not
  have the first, the tick before was not cut short, and it has none of them.
* When it has the first, or there is no good cursor, or a job is new here, it is asked about each.
* It is asked about single ones whenever they may have been told by somebody else, or before: those of our own runs;
  those that had happened before the last tick but were recorded after it (a history that was written anew).

A checkpoint that one of our own runs has asked for is left to that run, which reports it with its own log. When the run
is over and has not (it was killed), the sensor does. Until then the checkpoint waits in the cursor; others do not wait.

How much is done in one tick is bounded in changes, in rows of subtasks and in time; the next tick goes on. What the
control database is asked takes as many statements for a thousand jobs as for ten. The daemon stores the events after
the tick, a few milliseconds each, and evaluates no other sensor meanwhile: that is what the bounds are for.

The events of changes come first and the outcomes of the checks last, because Dagster shows an outcome that is older
than the newest materialization as if there were none.

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
from coord_control.dagster.feed.cursor import CatchUp, Cursor, JobMark, Waiting
from coord_control.dagster.feed.dagster_events import AssetEvent, Fact, JobAssets, facts_of, happened_at
from coord_control.dagster.feed.pages import Page, Pages
from coord_control.dagster.feed.seen import Seen
from coord_control.dagster.feed.standing import check_jobs, observe_queries
from coord_control.dagster.runs.own_runs import OwnRuns, is_own
from coord_control.dagster.runs.patience import within
from coord_control.storage.records import Change, CheckpointKind, CheckpointState, Fleet, JobOverview

__all__ = ["Limits", "Tick", "Told"]

#: History from before the sensor was started for the first time, or lost its cursor, is told for so long back.
_HISTORY: Final = timedelta(hours=24)
_ANSWER_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one tick does.

    Attributes:
        changes: that are read at once.
        subtasks: rows in the tables of all checkpoints together; Dagster sends them between its processes.
        observations: of queries, besides those that recoveries lead to; the next tick goes on with the others.
        repeats: jobs whose checks are told again for no other reason than that it was five minutes ago.
        seconds: after which no further change is looked at; Dagster gives a tick up after 60.
    """

    changes: int = 1000
    subtasks: int = 20_000
    observations: int = 50
    repeats: int = 50
    seconds: float = 40.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a tick has come to.

    Attributes:
        is_all: no change was left for the next tick.
    """

    events: Sequence[AssetEvent]
    cursor: Cursor
    is_all: bool


@dataclass(slots=True)
class _Decided:
    """What is to be told.

    Attributes:
        told, reported: jobs whose checkpoint asset gets a new materialization by us, or has one by a run of ours.
    """

    facts: list[Fact] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)


class Tick:
    """One of them.

    Args:
        jobs: by name.
        cursor: of the last tick; None: there is none that can be used.
    """

    def __init__(
        self,
        client: ControlClient,
        instance: dg.DagsterInstance,
        jobs: Mapping[str, JobAssets],
        cursor: Cursor | None,
        limits: Limits,
        log: logging.Logger,
    ) -> None:
        self._client, self._instance, self._jobs, self._limits, self._log = client, instance, jobs, limits, log
        self._deadline = time.monotonic() + limits.seconds
        self._given = cursor
        self._runs = OwnRuns(instance)
        self._pages = Pages(client, changes=limits.changes, subtasks=limits.subtasks, is_over=self._is_over)
        self._is_careful = cursor is None  #: Dagster is asked about every event
        self._trusted_since: datetime | None = None  #: of what has happened since then Dagster has nothing

    def run(self) -> Told:
        """Look once.

        Raises:
            DatabaseError: the control database cannot be read; nothing was done.
            TimeoutError: it does not answer.
        """
        newest = within(_ANSWER_SECONDS, self._client.newest_change)
        fleet = self._client.fleet(self._jobs)
        overviews = {overview.job.name: overview for overview in fleet.jobs}
        cursor = self._begin(newest, fleet)
        decided, cursor, is_all = self._changes(cursor, newest)
        events = self._events(decided, overviews)
        observed, cursor = observe_queries(self._jobs, overviews, cursor, self._limits.observations)
        checked, cursor = check_jobs(
            self._jobs,
            overviews,
            cursor,
            fleet.now,
            told=decided.told,
            reported=decided.reported,
            most=self._limits.repeats,
        )
        return Told([*events, *observed, *checked], replace(cursor, at=fleet.now), is_all)

    def _begin(self, newest: int, fleet: Fleet) -> Cursor:
        """The cursor to go on from, with the jobs that there are."""
        cursor, floor = self._given, fleet.now - _HISTORY
        if cursor is not None and newest < cursor.sequence:
            self._log.warning(
                f"the control database has {newest} changes, and {cursor.sequence} were seen: it is another one, or an "
                "older copy; beginning anew, what Dagster has is not repeated"
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
        # Whatever of a job that has joined waits in the cursor comes again with all the rest of it.
        waiting = tuple(each for each in cursor.waiting if each.job in marks and each.job not in joined)
        cursor = replace(cursor, jobs=marks, waiting=waiting)
        self._is_careful = self._is_careful or bool(joined)
        if cursor.sequence == 0 or not joined:
            return cursor
        before = cursor.catch_up.jobs if cursor.catch_up is not None else ()
        names = tuple(sorted({*joined, *before} & known.keys()))
        return replace(cursor, catch_up=CatchUp(names, 0, cursor.sequence, floor))

    # --- changes: decide, tell

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
        """Checkpoints whose runs are over by now; the others wait on."""
        over: list[Waiting] = []
        for each in cursor.waiting:
            (over if self._runs.are_over(each.actor) else decided.waiting).append(each)
        return self._pages.of(over)

    def _trust(self, changes: Sequence[Change], seen: Seen, since: datetime) -> None:
        """Find out whether Dagster has none of these but those of before."""
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
        # Whether a run is over is asked first: one that ends between the two questions has reported by then.
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
            (decided.told if new else decided.reported).add(change.job)

    def _events(self, decided: _Decided, overviews: Mapping[str, JobOverview]) -> Iterator[AssetEvent]:
        wanted = {(found.job, found.id) for fact in decided.facts if (found := fact.change.checkpoint) is not None}
        subtasks = self._client.subtasks_of(sorted(wanted)) if wanted else {}
        for fact in sorted(decided.facts, key=lambda each: each.change.sequence):
            yield fact.event(subtasks, overviews.get(fact.change.job))

    def _facts(self, change: Change) -> tuple[Fact, ...]:
        return facts_of(change, self._jobs[change.job])

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline


def _is_completed(change: Change) -> bool:
    return change.checkpoint is not None and change.checkpoint.state is not CheckpointState.FAILED


def _is_of_own_run(change: Change) -> bool:
    return change.checkpoint is not None and _is_completed(change) and is_own(change.checkpoint.requested_by)
