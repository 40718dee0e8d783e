"""What a checkpoint that fails says of the queries that were not captured: which subtask, which coordinator."""

from __future__ import annotations

from coord_control.ids import Epoch
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.messages import CheckpointFailed
from coord_control.protocol.statistics import OperatorStatistics, QueryStatistics, SubtaskStatistics
from tests.core_kit import OP, QUERY, Stage, of_type
from tests.unit.protocol.checkpoint_kit import (
    C1,
    LOST,
    OTHER,
    S0,
    S1,
    A,
    B,
    begun,
    captured,
    failed,
    started,
    trigger,
    with_another_query,
)


def aborted(stage: Stage, now: float) -> tuple[QueryStatistics, ...]:
    return stage.core.abort_checkpoint(C1, now)


def half_way() -> Stage:
    """Triggered at 10 in epoch 0, answered at 12; subtask 0 has passed at 15, subtask 1 has two events waiting."""
    stage = started(parallelism=2)
    stage.hello(0, 0, 0)
    stage.hello(1, 0, 1)
    stage.snapshot(b"S0")
    stage.now = 10.0
    stage.trigger_checkpoint(1)
    stage.now = 12.0
    stage.snapshot(b"C1")
    stage.send(1, "a")
    stage.send(1, "b")
    stage.now = 15.0
    stage.ack(0, 0, 0, b"s0")
    return stage


HALF_WAY = OperatorStatistics(
    OP,
    asked_seconds=0.0,
    snapshot_seconds=2.0,
    coordinator_bytes=2,
    subtasks=(
        SubtaskStatistics(S0, passed_seconds=5.0, blocked_seconds=3.0, ack_seconds=5.0),
        SubtaskStatistics(S1, passed_seconds=None, blocked_events=2, blocked_seconds=8.0),
    ),
)


def test_an_abort_says_which_subtask_has_not_passed_and_what_waits_for_it() -> None:
    stage = half_way()
    assert aborted(stage, 20.0) == (QueryStatistics(QUERY, boundary=Epoch(0), operators=(HALF_WAY,)),)
    assert aborted(stage, 21.0) == (), "it is over"


def test_the_end_of_its_run_leaves_the_same_with_the_failure() -> None:
    stage = half_way()
    stage.now = 20.0
    [query] = failed(stage.end_run()).queries
    assert query.operators == (HALF_WAY,)


def test_the_loss_of_the_store_leaves_the_same_with_the_failure() -> None:
    stage = half_way()
    stage.core.fail_all(LOST, 20.0)
    [query] = failed(stage.execute()).queries
    assert query.operators == (HALF_WAY,)


def test_a_coordinator_that_has_not_answered_was_asked_and_nothing_was_blocked() -> None:
    stage = started(parallelism=2)
    begun(stage, 0)
    stage.now = 10.0
    stage.trigger_checkpoint(1)
    stage.send(0, "a")
    stage.now = 13.0
    stage.ack(0, 0, 0, b"s0")
    stage.now = 71.0
    stage.core.tick(stage.now)
    notice = failed(stage.execute())
    assert notice.reason is FailureReason.COORDINATOR_TIMEOUT
    [operator] = notice.queries[0].operators
    assert operator == OperatorStatistics(
        OP,
        asked_seconds=0.0,
        snapshot_seconds=None,
        subtasks=(SubtaskStatistics(S0, None, ack_seconds=3.0), SubtaskStatistics(S1, None)),
    )


def test_a_coordinator_that_owes_the_state_for_an_earlier_one_was_not_asked() -> None:
    stage = started()
    stage.trigger_checkpoint(2)
    stage.trigger_checkpoint(1)
    [query] = aborted(stage, 1.0)
    assert query.operators == (OperatorStatistics(OP, subtasks=(SubtaskStatistics(S0, None),)),)


def test_an_operator_that_is_cut_says_everything_while_another_one_of_its_query_is_not() -> None:
    stage = started("a", "b")
    stage.trigger_checkpoint(1)
    stage.now = 1.0
    stage.snapshot(b"CA", "a")
    stage.send(0, "x", "a")
    [query] = aborted(stage, 3.0)
    first, second = query.operators
    assert (first.operator, first.snapshot_seconds, first.coordinator_bytes) == (A, 1.0, 2)
    assert [(each.passed_seconds, each.blocked_events) for each in first.subtasks] == [(1.0, 0)], (
        "it has passed long ago"
    )
    assert (second.operator, second.snapshot_seconds) == (B, None)
    assert [each.passed_seconds for each in second.subtasks] == [None]


def test_a_query_that_was_captured_is_not_told_again() -> None:
    stage = with_another_query()
    trigger(stage)
    stage.execute()
    assert captured(stage.snapshot(b"CA", "a")).query == QUERY
    assert [query.query for query in aborted(stage, 1.0)] == [OTHER]


def test_of_a_checkpoint_that_never_began_nothing_was_measured() -> None:
    stage = started()
    stage.end_run()
    trigger(stage, queries=[QUERY])
    [notice] = of_type(CheckpointFailed, stage.execute())
    assert (notice.reason, notice.queries) == (FailureReason.QUERY_RESTARTING, ())
