"""The current state of jobs as events: the results of their checks, and the progress of their queries.

Unlike changes, these may be reported more than once; the cursor prevents needless repetition in Dagster's event log. A
check result is reported when it has changed, when the checkpoint asset has a newer materialization (otherwise Dagster
would show the result as missing), and every five minutes. A query is observed when its epoch has advanced, or when
events have been blocked at its operators since then. With very many jobs and queries, each tick handles only some of
them, in turn, because Dagster needs milliseconds per event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import dagster as dg

from coord_control.dagster.asset_checks import CHECKS, CheckOutcome, evaluate
from coord_control.dagster.feed.blocked import blocked_entries, blocked_marks
from coord_control.dagster.feed.cursor import Cursor, JobMark
from coord_control.dagster.feed.dagster_events import AssetEvent, JobAssets
from coord_control.dagster.links import link_entries
from coord_control.dagster.metadata import entries, query_metadata
from coord_control.storage.records import JobOverview, JobRecord, OperatorRecord, QueryRecord

__all__ = ["check_jobs", "observe_queries"]

_AGAIN_SECONDS: Final = 300
_OFF: Final = "-"
_PASSED: Final = "p"
_FAILED: Final = {dg.AssetCheckSeverity.WARN: "w", dg.AssetCheckSeverity.ERROR: "e"}

_Overviews = Mapping[str, JobOverview]


def check_jobs(
    jobs: Mapping[str, JobAssets],
    overviews: _Overviews,
    cursor: Cursor,
    now: datetime,
    *,
    materialized: Collection[str],
    reported: Collection[str],
    most: int,
) -> tuple[list[AssetEvent], Cursor]:
    """Return the check results to report, and the cursor after that.

    Args:
        now: the time by the clock of the control database.
        materialized: jobs whose checkpoint asset gets a new materialization just before these results.
        reported: jobs whose checkpoint asset has a new one from a run. Dagster compares the two times, and SQLite keeps
            that of a result only to the second, so their results are reported now and again with the next tick.
        most: how many jobs' unchanged results to repeat at most.
    """
    events: list[AssetEvent] = []
    marks: dict[str, JobMark] = {}
    seconds = int(now.timestamp())
    again = _longest_ago(jobs, cursor, seconds, most)
    for name, assets in jobs.items():
        mark = cursor.jobs.get(name, JobMark())
        outcomes = {each.name: each for each in evaluate(overviews.get(name), assets.spec.checks, now)}
        letters = "".join(_letter(outcomes.get(check)) for check in CHECKS)
        is_new = name in materialized or name in reported
        is_due = is_new or name in again
        before = _OFF * len(CHECKS) if is_due else mark.checks.ljust(len(CHECKS), _OFF)
        news = [check for check, was, is_ in zip(CHECKS, before, letters, strict=True) if is_ not in (was, _OFF)]
        events.extend(_evaluation(assets.checkpoint, outcomes[check]) for check in news)
        checked_at = 0 if name in reported else seconds if is_due else mark.checked_at
        marks[name] = replace(mark, checks=letters, checked_at=checked_at)
    return events, replace(cursor, jobs=marks)


def observe_queries(
    jobs: Mapping[str, JobAssets], overviews: _Overviews, cursor: Cursor, most: int
) -> tuple[list[AssetEvent], Cursor]:
    """Return observations of the queries that have moved or whose operators have blocked events, and the cursor after
    that.

    Args:
        most: how many queries to observe at most.
    """
    moved = {
        f"{name}/{query.name}": (name, query)
        for name, assets in jobs.items()
        if name in overviews
        for query in overviews[name].job.queries
        if query.name in assets.queries and _has_moved(overviews[name].job, query, cursor.jobs.get(name, JobMark()))
    }
    chosen = _in_turn(sorted(moved), cursor.observed)[:most]
    marks = dict(cursor.jobs)
    events: list[AssetEvent] = []
    for each in chosen:
        name, query = moved[each]
        job, mark = overviews[name].job, marks.get(name, JobMark())
        operators = _operators_of(job, query)
        metadata = query_metadata(query, job.live_values) | entries(
            blocked_entries(operators, job.generation, mark.blocked) | link_entries(name, job, page=jobs[name].page)
        )
        events.append(dg.AssetObservation(jobs[name].queries[query.name], metadata=metadata))
        epochs = mark.epochs if query.epoch is None else {**mark.epochs, query.name: query.epoch}
        blocked = {**mark.blocked, **blocked_marks(operators, job.generation)}
        marks[name] = replace(mark, epochs=epochs, blocked=blocked)
    return events, replace(cursor, jobs=marks, observed=chosen[-1] if chosen else cursor.observed)


def _longest_ago(jobs: Collection[str], cursor: Cursor, seconds: int, most: int) -> Collection[str]:
    checked_at_by_job = {name: cursor.jobs.get(name, JobMark()).checked_at for name in jobs}
    due = [name for name, at in checked_at_by_job.items() if not 0 <= seconds - at < _AGAIN_SECONDS]
    return set(sorted(due, key=lambda name: checked_at_by_job[name])[:most])


def _has_moved(job: JobRecord, query: QueryRecord, mark: JobMark) -> bool:
    if query.epoch not in (None, mark.epochs.get(query.name)):
        return True
    now = blocked_marks(_operators_of(job, query), job.generation)
    return any(
        not each.is_idle if (before := mark.blocked.get(uid)) is None else each.by != before.by
        for uid, each in now.items()
    )


def _operators_of(job: JobRecord, query: QueryRecord) -> list[OperatorRecord]:
    return [operator for operator in job.operators if operator.query == query.name]


def _in_turn(names: Sequence[str], last: str) -> list[str]:
    return [*(name for name in names if name > last), *(name for name in names if name <= last)]


def _letter(outcome: CheckOutcome | None) -> str:
    if outcome is None:
        return _OFF
    return _PASSED if outcome.passed else _FAILED[outcome.severity]


def _evaluation(asset: dg.AssetKey, outcome: CheckOutcome) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=outcome.name,
        passed=outcome.passed,
        severity=outcome.severity,
        description=outcome.description,
        metadata=outcome.metadata,
    )
