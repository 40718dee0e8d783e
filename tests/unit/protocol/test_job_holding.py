"""Holding a query at the end of its epoch, and releasing it."""

from __future__ import annotations

from coord_control.ids import Epoch
from coord_control.protocol.messages import Accepted, AskSnapshot, QueryCaptured, Welcome
from tests.core_kit import QUERY, Stage, answer_to, of_type, spec
from tests.unit.protocol.job_kit import refusal


def test_a_held_query_ends_its_epoch_and_begins_no_other(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.core.hold(QUERY)
    assert answer_to(stage.hello(1, 0, task=2), 2) == Welcome(None, ()), "the running epoch goes on"
    assert not stage.core.is_quiet(QUERY)
    for subtask, task in ((0, 1), (1, 2)):
        assert answer_to(stage.ack(subtask, 0, task), task) == Accepted()
    parked = stage.hello(0, 1, task=3)
    assert answer_to(parked, 3) is None
    assert of_type(AskSnapshot, parked) == []
    assert stage.core.is_quiet(QUERY)
    assert refusal(stage.end_run(), 3) == "the query is being stopped"
    assert not stage.core.is_quiet(QUERY)


def test_a_held_query_that_runs_an_epoch_is_not_quiet_even_when_another_operator_waits() -> None:
    """An epoch that one operator has begun must end in all of them."""
    stage = Stage(specs=[spec("first"), spec("second")])
    stage.start()
    stage.hello(0, 0, 1, "first")
    stage.snapshot(operator="first")
    stage.core.hold(QUERY)
    assert of_type(AskSnapshot, stage.hello(0, 0, 2, "second"))
    assert not stage.core.is_quiet(QUERY)
    stage.snapshot(operator="second")
    stage.ack(0, 0, 1, operator="first")
    stage.ack(0, 0, 2, operator="second")
    stage.hello(0, 1, 3, "second")
    assert stage.core.is_quiet(QUERY)


def test_a_held_query_stays_held_over_a_restart_until_it_is_released(stage: Stage) -> None:
    stage.core.hold(QUERY)
    stage.end_run()
    stage.planned = stage.committed = Epoch(0)
    stage.start()
    assert stage.hello(0, 1, task=2).answers == []
    assert stage.core.is_quiet(QUERY)
    stage.core.release(QUERY, 0.0)
    stage.execute()
    assert answer_to(stage.snapshot(), 2) == Welcome(None, ())


def test_a_held_query_can_be_checkpointed_at_its_last_commit(stage: Stage) -> None:
    """A job that stops with a savepoint: nothing is processed after it."""
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.core.hold(QUERY)
    stage.ack(0, 0, task=1, state=b"s")
    stage.spark_commits(0)
    assert stage.hello(0, 1, task=2).answers == []
    stage.trigger_checkpoint(1)
    [captured] = of_type(QueryCaptured, stage.snapshot(b"SC"))
    assert captured.boundary == 0
    assert captured.cuts[0].states == {0: b"s"}
    assert stage.core.is_quiet(QUERY)


def test_a_released_query_begins_its_next_epoch_for_all_who_waited(stage: Stage) -> None:
    stage.core.hold(QUERY)
    stage.hello(0, 0, task=1)
    stage.hello(1, 0, task=2)
    assert stage.core.is_quiet(QUERY)
    stage.core.release(QUERY, 0.0)
    assert len(of_type(AskSnapshot, stage.execute())) == 1
    assert not stage.core.is_quiet(QUERY)
    batch = stage.snapshot()
    assert [answer_to(batch, task) for task in (1, 2)] == [Welcome(None, ())] * 2
    assert answer_to(stage.hello(0, 0, task=3), 3) == Welcome(None, ()), "nobody waits any more"


def test_whoever_waited_in_a_run_that_has_ended_is_not_greeted_by_a_release(stage: Stage) -> None:
    stage.core.hold(QUERY)
    stage.hello(0, 0, task=1)
    assert "stopped" in refusal(stage.end_run(), 1)
    stage.start()
    stage.core.release(QUERY, 0.0)
    assert not stage.execute()
