"""When a fork is ready to take the place of its parent."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from coord_control.launch.promotion_check import Readiness, is_expected, readiness_of
from coord_control.storage.records import JobRecord, JobState, QueryRecord
from tests import records_kit as records

_LIMIT: Final = 100


def _job(name: str, *queries: QueryRecord) -> JobRecord:
    return records.job(name, queries=queries)


def _query(name: str = "q", state: str = "running", backlog: int | None = 0) -> QueryRecord:
    return QueryRecord(name=name, state=state, backlog=backlog)


def _judged(fork: JobRecord, *before: QueryRecord, is_saved: bool = True) -> Readiness:
    return readiness_of(fork, _job("flights", *(before or (_query(),))), is_saved=is_saved, max_backlog=_LIMIT)


def test_a_fork_that_runs_is_saved_and_has_caught_up_is_ready() -> None:
    assert _judged(_job("b", _query())) == Readiness()


@pytest.mark.parametrize("state", ["restarting", "paused", "failed", "lost", "finished"])
def test_each_query_must_run(state: str) -> None:
    found = _judged(_job("b", _query(), _query("other", state)))
    assert found.problems == (f"query other is {state}",)


def test_a_query_that_this_driver_has_not_started_does_not_count() -> None:
    assert _judged(_job("b", _query(), _query("left-behind", ""))).problems == ()


def test_a_fork_whose_queries_have_not_started_is_not_ready() -> None:
    assert _judged(_job("b", _query(state=""))).problems == ("none of its queries has started",)


def test_a_fork_whose_driver_starts_or_is_restarted_is_not_ready() -> None:
    fork = _job("b", _query())
    assert _judged(replace(fork, state=JobState.STARTING)).problems == ("its driver is starting",)
    gone = replace(fork, is_alive=False, is_restarting=True)
    assert _judged(gone).problems == ("it has no driver",)
    assert is_expected(gone)
    assert not is_expected(replace(gone, is_restarting=False))


def test_a_fork_that_has_saved_nothing_is_told_how() -> None:
    [problem] = _judged(_job("b", _query()), is_saved=False).problems
    assert problem.endswith("since it was restored: coordctl checkpoint trigger b")


@pytest.mark.parametrize(
    ("own", "before", "is_ready"),
    [(100, 0, True), (101, 0, False), (101, None, False), (1000, 900, True), (1000, 800, False), (5, None, True)],
)
def test_a_backlog_may_be_small_or_about_that_of_the_parent(own: int, before: int | None, is_ready: bool) -> None:
    found = _judged(_job("b", _query(backlog=own)), _query(backlog=before))
    assert (found.problems == ()) is is_ready
    assert not found.unknown


def test_a_backlog_names_both_sides() -> None:
    found = _judged(_job("b", _query(backlog=12_000)), _query(backlog=7))
    assert found.problems == ("12,000 records wait for query q, and 7 for that of job flights",)


def test_what_is_not_known_is_no_reason_against_it() -> None:
    found = _judged(_job("b", _query(backlog=None), _query("new", backlog=10_000)), _query(), _query("old"))
    assert found.problems == ()
    assert found.unknown == (
        "the backlog of query q, because its sources report none",
        "whether it replaces query old of job flights: it runs none of that name",
    )
