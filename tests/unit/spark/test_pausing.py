"""A query that fails while it pauses for a savepoint: none of its epochs may follow, and nobody waits for it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from coord_control.errors import CheckpointNotCompleted, SparkLost
from coord_control.ids import CheckpointId, CheckpointKind, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.query_state import QueryState, RunEnd, Wish, WishInput
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
from coord_control.spark.checkpoints.stop_first import savepoint_and_pause
from coord_control.spark.queries import query as module
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.queries.query_spec import QueryDefinition
from coord_control.spark.queries.restart_policy import RestartPolicy
from tests.patience import SECONDS


class Query(ManagedQuery):
    """One whose runs are only counted."""

    def __init__(self) -> None:
        nothing: Any = SimpleNamespace(query_failed=lambda *_: None, query_changed=lambda: None)
        spec = QueryDefinition(QueryName("q"), nothing, nothing, (), None, RestartPolicy(initial_seconds=0.0))
        super().__init__(spec, nothing, files=nothing, runtime=nothing, recoveries=nothing)
        self.runs = 0
        self.has_restarted = threading.Event()

    def _begin(self) -> None:
        self.runs += 1
        self.has_restarted.set()

    def pause(self, deadline: float, is_wanted: Any) -> bool:
        self._wants(WishInput.PAUSE)
        self.state = QueryState.PAUSED
        return True

    def fails(self) -> threading.Thread:
        thread = threading.Thread(
            target=self._conclude, args=(RunEnd.REQUESTED, OSError("a coordinator failed")), daemon=True
        )
        thread.start()
        return thread


def test_a_query_that_fails_in_its_pause_runs_again_only_after_it() -> None:
    query = Query()
    query.pause(0.0, lambda: True)
    thread = query.fails()
    assert not query.has_restarted.wait(0.3)
    assert query.state is QueryState.RESTARTING
    query.resume()
    thread.join(SECONDS)
    assert (query.runs, query.state) == (1, QueryState.RUNNING)


def test_a_query_that_failed_in_its_pause_can_be_stopped() -> None:
    query = Query()
    query.pause(0.0, lambda: True)
    thread = query.fails()
    query.request_stop(0.0)
    thread.join(SECONDS)
    assert (query.runs, query.state) == (0, QueryState.STOPPED)


def test_a_query_that_fails_before_it_pauses_runs_its_epoch_again_first() -> None:
    query = Query()
    query._wants(WishInput.PAUSE)
    query.fails().join(SECONDS)
    assert query.runs == 1


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_savepoint_that_waits_for_a_query_that_waits_for_the_savepoint_is_given_up(is_complete: bool) -> None:
    query, handles = Query(), list[CheckpointHandle]()

    def given_up(handle: CheckpointHandle) -> None:
        outcome = CheckpointOutcome(path="/there") if is_complete else CheckpointOutcome(FailureReason.ABORTED)
        handle.finish(outcome, CheckpointId(1))

    def submit() -> CheckpointHandle:
        query.fails()
        handles.append(CheckpointHandle(CheckpointRequest(kind=CheckpointKind.SAVEPOINT), given_up))
        handles[0].started(CheckpointId(1), lambda: None)
        return handles[0]

    if is_complete:  # it was being written down, and nothing has run since
        assert savepoint_and_pause([query], submit, lambda: True, lambda _: None, SECONDS).path == "/there"
        assert query.runs == 0
        return
    with pytest.raises(CheckpointNotCompleted, match="query 'q' failed while it paused"):
        savepoint_and_pause([query], submit, lambda: True, lambda _: None, SECONDS)
    assert query.has_restarted.wait(SECONDS)


@pytest.mark.parametrize("moved", [None, QueryName("q")])
def test_the_savepoint_of_an_earlier_request_is_the_last_one_only_if_nothing_has_moved_since(
    moved: QueryName | None,
) -> None:
    """Bug: a stop with the key of an earlier savepoint ended the job behind it, as if it held everything."""
    query = Query()
    earlier = CheckpointHandle(CheckpointRequest(kind=CheckpointKind.SAVEPOINT, key="k"), lambda _: None)
    earlier.finish(CheckpointOutcome(path="/there"), CheckpointId(3))

    def stop() -> CompletedCheckpoint:
        return savepoint_and_pause([query], lambda: earlier, lambda: True, lambda _: moved, SECONDS)

    if moved is None:
        assert stop().id == 3
    else:
        with pytest.raises(
            CheckpointNotCompleted, match=r"take a new key.*savepoint 3.*'q' has processed epochs, or was rest"
        ):
            stop()
        assert query._wish is Wish.RUN


def test_what_a_spark_that_is_gone_has_committed_last_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the job ended for good (CommittedElsewhere) when the JVM was killed between a commit and its report."""
    query = Query()
    gone: Any = SimpleNamespace(awaitTermination=lambda: 1 / 0)
    query._query = gone
    query._writer = SimpleNamespace(_df=SimpleNamespace(sparkSession=None))  # type: ignore[assignment]
    monkeypatch.setattr(module, "explained", lambda error, *_: SparkLost(error))
    assert isinstance(query._await_end(), SparkLost)
    assert query._own.is_interrupted


def test_a_query_that_is_just_being_started_is_waited_for_without_haste() -> None:
    """Bug: one thread asked without a pause, and took a processor from the start that it waited for."""
    query, asked = Query(), list[bool]()

    def is_wanted() -> bool:
        asked.append(True)
        return True

    assert not ManagedQuery.pause(query, time.monotonic() + 0.3, is_wanted)
    assert len(asked) < 30
