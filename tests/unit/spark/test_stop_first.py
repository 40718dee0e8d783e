"""Stop first, then save: no savepoint before every query pauses, and no epoch behind it before the pause ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from coord_control.errors import CheckpointNotCompleted
from coord_control.ids import CheckpointId, CheckpointKind, Epoch, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.query_state import QueryState, RunEnd, Wish, WishInput
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest
from coord_control.spark.checkpoints import stop_first
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.queries.query_spec import QueryDefinition
from coord_control.spark.queries.restart_policy import RestartPolicy
from tests.mutations.mutation import Mutation, is_noticed

#: Within this something happens; and for so long it is seen that nothing does.
SOON: Final = 5.0
WHILE: Final = 0.1


class Query(ManagedQuery):
    """One without Spark: its runs are counted, and end when the test says so."""

    def __init__(self, name: str = "q", *, ends: bool = True) -> None:
        self.events: list[str] = []
        nothing: Any = SimpleNamespace(query_failed=lambda *_: None, query_changed=lambda: None)
        spec = QueryDefinition(QueryName(name), nothing, nothing, (), None, RestartPolicy(initial_seconds=0.0))
        super().__init__(spec, nothing, files=nothing, runtime=nothing, recoveries=nothing)
        self._query = SimpleNamespace()  # type: ignore[assignment]
        self._ends = ends

    def _end_after_epoch(self) -> bool:
        self.events.append("told to end")
        if self._ends:
            self._ending = self._query
            self.state = QueryState.PAUSED
        return True

    def _settle_run(self, failure: BaseException | None = None) -> None:
        pass

    def _start_spark(self) -> Any:
        self.events.append("runs again")
        return SimpleNamespace()

    def _begin(self) -> None:
        self.events.append("recovers")


def save(
    queries: list[Query],
    seconds: float = SOON,
    *,
    is_wanted: bool = True,
    is_complete: bool = True,
    is_end: bool = False,
) -> int:
    """Take a savepoint behind which nothing is processed."""

    def submit() -> CheckpointHandle:
        assert all(query.state is QueryState.PAUSED for query in queries), "something of the job still runs"
        handle = CheckpointHandle(CheckpointRequest(kind=CheckpointKind.SAVEPOINT), lambda _: None)
        handle.started(CheckpointId(7), lambda: None)
        if is_complete:
            handle.finish(CheckpointOutcome(path="/there"))
        else:
            handle.finish(CheckpointOutcome(reason=FailureReason.DISK_FULL))
        return handle

    if is_end:
        return stop_first.savepoint_at_end(queries, submit, seconds).id
    return stop_first.savepoint_and_pause(queries, submit, lambda: is_wanted, lambda _: None, seconds).id


def all_pause_before_the_savepoint() -> None:
    queries = [Query("a"), Query("b")]
    assert save(queries) == 7
    assert all(query._wish is Wish.PAUSE for query in queries), "they pause until the job ends"


def an_epoch_that_does_not_end_is_not_saved() -> None:
    queries = [Query("a"), Query("b", ends=False)]
    with pytest.raises(TimeoutError, match="query 'b' did not end its epoch"):
        save(queries, WHILE)
    assert all(query._wish is Wish.RUN for query in queries)


def a_savepoint_that_fails_ends_the_pause() -> None:
    query = Query()
    with pytest.raises(CheckpointNotCompleted):
        save([query], is_complete=False)
    assert query._wish is Wish.RUN


def what_is_not_wanted_is_not_saved() -> None:
    with pytest.raises(CheckpointNotCompleted):
        save([Query()], is_wanted=False)


def a_job_that_ends_in_any_case_does_not_resume() -> None:
    saved, late, failed = Query(), Query(ends=False), Query()
    assert save([saved], is_end=True) == 7
    with pytest.raises(TimeoutError, match="did not end its epoch") as caught:
        save([late], WHILE, is_end=True)
    assert "keeps running" not in str(caught.value)
    with pytest.raises(CheckpointNotCompleted):
        save([failed], is_complete=False, is_end=True)
    assert all(query._wish is Wish.PAUSE for query in (saved, late, failed))


def an_epoch_that_was_planned_before_is_committed_first() -> None:
    query = Query()
    query._planned_at_start = Epoch(5)
    query.last_committed = Epoch(4)
    assert not query.pause(time.monotonic() + WHILE, lambda: True)
    assert query.events == []
    query.last_committed = Epoch(5)
    assert query.pause(time.monotonic() + SOON, lambda: True)


def spark_does_not_run_in_a_pause() -> None:
    query = Query()
    query._wants(WishInput.PAUSE)
    query._ending = query._query
    thread = threading.Thread(target=query._has_gone_on, daemon=True)
    thread.start()
    thread.join(WHILE)
    assert (query.events, query.state) == ([], QueryState.PAUSED)
    query.resume()
    thread.join(SOON)
    assert (query.events, query.state) == (["runs again"], QueryState.RUNNING)


def a_failure_in_a_pause_is_recovered_behind_it() -> None:
    query = Query()
    query._wants(WishInput.PAUSE)
    query.state = QueryState.PAUSED
    thread = threading.Thread(
        target=query._conclude, args=(RunEnd.REQUESTED, OSError("a coordinator failed")), daemon=True
    )
    thread.start()
    thread.join(WHILE)
    assert query.events == []
    query.resume()
    thread.join(SOON)
    assert query.events == ["recovers"]


RULES: Final = (
    all_pause_before_the_savepoint,
    an_epoch_that_does_not_end_is_not_saved,
    a_savepoint_that_fails_ends_the_pause,
    what_is_not_wanted_is_not_saved,
    a_job_that_ends_in_any_case_does_not_resume,
    an_epoch_that_was_planned_before_is_committed_first,
    spark_does_not_run_in_a_pause,
    a_failure_in_a_pause_is_recovered_behind_it,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_job_stops_first_and_saves_then(rule: Callable[[], None]) -> None:
    rule()


BUGS: Final = (
    Mutation(
        "save first, then stop",
        stop_first.savepoint_and_pause,
        "_pause(queries, deadline, is_wanted, timeout_seconds)\n        handle = submit()",
        "handle = submit()\n        _pause(queries, deadline, is_wanted, timeout_seconds)",
    ),
    Mutation("save although an epoch has not ended", stop_first._pause, "if not is_paused]:", "if False]:"),
    Mutation("save what is not wanted", stop_first._pause, "if not is_wanted():", "if False:"),
    Mutation("stay in the pause without a savepoint", stop_first.savepoint_and_pause, "query.resume()", "pass"),
    Mutation(
        "let the queries go on behind their savepoint",
        stop_first.savepoint_and_pause,
        "return completed\n",
        "[query.resume() for query in queries]\n        return completed\n",
    ),
    Mutation(
        "save first, and then end in any case",
        stop_first.savepoint_at_end,
        "_pause(queries, deadline, lambda: True, timeout_seconds)",
        "pass",
    ),
    Mutation(
        "end a run before it has committed what was planned before it",
        ManagedQuery.pause,
        "self.last_committed >= self._planned_at_start",
        "True",
    ),
    Mutation(
        "start Spark again in the pause",
        ManagedQuery._has_gone_on,
        "self._wishes.wait_for(lambda: self._must_end() or not shall_wait(self._wish, has_paused=True))",
        "pass",
    ),
    Mutation(
        "recover in the pause",
        ManagedQuery._conclude,
        "self._wishes.wait_for(lambda: not shall_wait(self._wish, has_paused=has_paused))",
        "pass",
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_these_rules_is_noticed(bug: Mutation) -> None:
    assert is_noticed(bug, RULES)
