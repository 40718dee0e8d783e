"""What a failed query reports of a commit that none of its runs has reported."""

from __future__ import annotations

from coord_control.errors import CommittedElsewhere, EpochNotRun
from coord_control.ids import Epoch, QueryName
from coord_control.spark.queries.restart_policy import not_reported

QUERY = QueryName("q")


class Captured(Exception):
    """As PySpark keeps what the JVM threw."""

    def __init__(self, said: str, cause: Exception | None = None) -> None:
        super().__init__(said)
        self._cause = cause


def sparks(innermost: str) -> Exception:
    return Captured("Exception thrown in awaitResult: \nmore", Captured("in between", Captured(f"{innermost}\nmore")))


def test_the_innermost_cause_in_the_jvm_is_named() -> None:
    why = not_reported(QUERY, Epoch(4), sparks("the disk is full"), is_again=False)
    assert isinstance(why, CommittedElsewhere)
    assert why.why == "Exception thrown in awaitResult:  (the disk is full)"
    other = not_reported(QUERY, Epoch(4), ValueError("a failure\nof two lines"), is_again=True)
    assert "failed with: a failure. Either" in str(other)
    assert "which failed" not in str(not_reported(QUERY, Epoch(4), None, is_again=False))


def test_a_sink_that_has_not_run_an_epoch_is_told_from_another_driver() -> None:
    """Fault: a function that skipped an epoch of a query with state was reported as another driver's commit."""
    why = sparks("[STATE_STORE_COMMIT_VALIDATION_FAILED] failed for batch 4.")
    found = not_reported(QUERY, Epoch(4), why, is_again=False)
    assert isinstance(found, EpochNotRun)
    assert (found.query, found.epoch, found.retry) == (QUERY, 4, False)
    assert "restore the newest checkpoint before epoch 4" in str(found)
    again = not_reported(QUERY, Epoch(4), why, is_again=True)
    assert (type(again), again.retry) == (EpochNotRun, True)
    assert "the query is restarted" in str(again)
