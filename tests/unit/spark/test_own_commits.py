"""Whose commits count: what Spark says of its own run, where it says anything."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from coord_control.ids import Epoch
from coord_control.spark.own_commits import OwnCommits


def spark_query(run: str = "run-1") -> Any:
    """Without any progress in its memory."""
    return SimpleNamespace(runId=run, _jsq=SimpleNamespace(recentProgress=list))


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
    assert time.monotonic() - began < 1
