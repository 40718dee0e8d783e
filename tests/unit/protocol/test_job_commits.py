"""Commits, as a query learns of them: told, implied by the next hello, late or twice."""

from __future__ import annotations

from coord_control.errors import OutputNotConsumed
from coord_control.ids import SubtaskIndex
from coord_control.protocol.messages import AskSnapshot, DeliverEvents
from tests.core_kit import OP, Stage, events, of_type, spec
from tests.unit.protocol.job_kit import failure, refusal


def test_a_hello_implies_the_commits_before_it(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1, outbox="x")
    stage.spark_commits(0)
    notices = stage.hello(0, 1, task=2).notices
    assert notices[0] == DeliverEvents(OP, SubtaskIndex(0), 1, events("x"))
    assert isinstance(notices[-1], AskSnapshot), "the coordinator sees the outbox before it is asked"


def test_a_commit_can_be_told_twice_or_late(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1)
    assert stage.commit(0).notices
    assert not stage.commit(0)
    assert not stage.commit(-1)


def test_a_commit_of_a_query_that_does_not_run_is_left_to_recovery(stage: Stage) -> None:
    stage.end_run()
    assert not stage.commit(0)


def test_output_that_was_not_consumed_fails_the_query_at_the_commit(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    failed = failure(stage.commit(0))
    assert failed is not None
    assert isinstance(failed.error, OutputNotConsumed)


def test_output_that_was_not_consumed_fails_the_query_at_the_next_hello_and_settles_nobody() -> None:
    stage = Stage(specs=[spec("first"), spec("second")])
    stage.start()
    for task, uid in enumerate(("first", "second")):
        stage.hello(0, 0, task, uid)
        stage.snapshot(operator=uid)
    stage.ack(0, 0, task=0, outbox="x", operator="first")
    batch = stage.hello(0, 1, 9, "first")
    assert refusal(batch, 9) == "the epoch before it failed"
    assert len(batch.notices) == 1
    failed = failure(batch)
    assert failed is not None
    assert isinstance(failed.error, OutputNotConsumed)
    assert failed.error.operator == "second"


def test_all_operators_of_a_query_settle_together() -> None:
    stage = Stage(specs=[spec("first"), spec("second")])
    stage.start()
    for task, uid in enumerate(("first", "second")):
        stage.hello(0, 0, task, uid)
        stage.snapshot(operator=uid)
        stage.ack(0, 0, task, outbox=uid, operator=uid)
    delivered = of_type(DeliverEvents, stage.hello(0, 1, 9, "second"))
    assert [notice.operator for notice in delivered] == ["first", "second"]
