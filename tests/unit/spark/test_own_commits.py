"""Whose commits count: what Spark says of its own run, where it says anything."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest

from coord_control.ids import Epoch
from coord_control.spark.queries import own_commits
from coord_control.spark.queries.own_commits import OwnCommits
from tests.mutations.mutation import Mutation, is_noticed


def spark_query(run: str = "run-1", kept: Sequence[Mapping[str, Any]] = ()) -> Any:
    """A query of Spark that has kept some progress."""
    recent = [SimpleNamespace(json=partial(json.dumps, each)) for each in kept]
    return SimpleNamespace(runId=run, _jsq=SimpleNamespace(recentProgress=lambda: recent))


def test_a_commit_counts_when_the_own_run_reports_it() -> None:
    own = OwnCommits()
    own.recovered(Epoch(2))
    own.started(spark_query())
    assert own.look(Epoch(3)) == 2
    own.hear({"runId": "another", "batchId": 3, "durationMs": {"commitOffsets": 1}})
    assert own.look(Epoch(3)) == 2
    own.hear({"runId": "run-1", "batchId": 3, "durationMs": {"commitOffsets": 1}})
    assert own.look(Epoch(3)) == 3


def test_an_idle_trigger_commits_nothing() -> None:
    own = OwnCommits()
    own.recovered(Epoch(2))
    own.started(spark_query())
    assert not own.hear({"runId": "run-1", "batchId": 3, "durationMs": {"triggerExecution": 1}})
    assert own.look(Epoch(3)) == 2


def test_continuous_processing_reports_no_commits_and_is_not_accused() -> None:
    """Bug: a query with a continuous trigger failed at its end: another driver was said to have made its commits."""
    own = OwnCommits()
    own.recovered(Epoch(2))
    own.started(spark_query(), is_reported=False)
    began = time.monotonic()
    assert own.look(Epoch(5)) == 5
    assert own.wait(Epoch(7)) == 7
    assert time.monotonic() - began < own_commits._REPORT_SECONDS


def test_a_commit_that_the_listener_was_not_told_counts_by_what_spark_keeps() -> None:
    """Spark's listener bus drops reports when it is full; the stream keeps its newest ones itself."""
    kept = [
        {"runId": "run-1", "batchId": 3, "durationMs": {"commitOffsets": 1}},
        {"runId": "run-1", "batchId": 4, "durationMs": {"triggerExecution": 1}},
    ]
    own = OwnCommits()
    own.recovered(Epoch(2))
    own.started(spark_query(kept=kept))
    assert own.look(Epoch(4)) == 3


def interrupted(epoch: int, *, is_planned: bool = True) -> OwnCommits:
    """A run that was interrupted, and what Spark's stream says of the epoch at which it was."""
    context = SimpleNamespace(batchId=lambda: epoch, isCurrentBatchConstructed=lambda: is_planned)
    query = spark_query()
    query._jsq.streamingQuery = lambda: SimpleNamespace(getLatestExecutionContext=lambda: context)
    own = OwnCommits()
    own.recovered(Epoch(2))
    own.started(query)
    own.is_interrupted = True
    return own


def test_an_interrupted_run_may_have_committed_what_it_has_planned_and_nothing_else() -> None:
    """Bug: any commit that appeared was taken for that of a run that was interrupted for another reason."""
    assert interrupted(3).may_have_committed(Epoch(3))
    assert interrupted(4, is_planned=False).may_have_committed(Epoch(3))
    assert not interrupted(3, is_planned=False).may_have_committed(Epoch(3))
    assert not interrupted(2).may_have_committed(Epoch(3))
    own = interrupted(3)
    own.is_interrupted = False
    assert not own.may_have_committed(Epoch(3))


def test_of_a_spark_that_does_not_tell_where_a_run_has_ended_any_commit_may_be_its_own() -> None:
    own = OwnCommits()
    own.started(spark_query())
    own.is_interrupted = True
    assert own.may_have_committed(Epoch(3))


RULES: Final = (
    test_a_commit_counts_when_the_own_run_reports_it,
    test_an_idle_trigger_commits_nothing,
    test_a_commit_that_the_listener_was_not_told_counts_by_what_spark_keeps,
    test_continuous_processing_reports_no_commits_and_is_not_accused,
    test_an_interrupted_run_may_have_committed_what_it_has_planned_and_nothing_else,
)

BUGS: Final = (
    Mutation("another run vouches", OwnCommits.hear, 'progress.get("runId") == self._spark_run', "True"),
    Mutation("an idle trigger vouches", OwnCommits.hear, "if _COMMITTED not in ", "if None in "),
    Mutation("only the listener vouches", OwnCommits.look, "self.newest < epoch and ", "False and "),
    Mutation(
        "only the newest report counts", OwnCommits.look, "range(len(recent))", "range(len(recent) - 1, len(recent))"
    ),
    Mutation("the file vouches", OwnCommits.look, "return min(self.newest, epoch)", "return epoch"),
    Mutation("nothing vouches where nothing is reported", OwnCommits.look, "if not self._is_reported:", "if False:"),
    Mutation(
        "an interrupt vouches",
        OwnCommits.may_have_committed,
        "epoch < newest or (epoch == newest and is_planned)",
        "True",
    ),
    Mutation("what is not planned vouches", OwnCommits.may_have_committed, "and is_planned", ""),
    Mutation("a run that fails itself vouches", OwnCommits.may_have_committed, "not self.is_interrupted or ", ""),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_these_rules_is_noticed(bug: Mutation) -> None:
    assert is_noticed(bug, RULES)
