"""Checkpoints under way: boundaries, several operators and queries, several at once."""

from __future__ import annotations

from coord_control.ids import Generation
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.cut import seed
from coord_control.protocol.messages import (
    AskSnapshot,
    CheckpointComplete,
    DeliverEvents,
    QueryCaptured,
    ResetCoordinator,
    Welcome,
)
from coord_control.protocol.records import Begin
from coord_control.protocol.recovery import Outbox
from tests.core_kit import OP, QUERY, Stage, answer_to, events, names, of_type
from tests.unit.protocol.checkpoint_kit import (
    C1,
    OTHER,
    S0,
    S1,
    A,
    B,
    begun,
    captured,
    cut,
    ended,
    mailboxes,
    started,
    trigger,
    with_another_query,
)

# Boundaries.


def test_without_an_epoch_the_boundary_is_the_last_commit() -> None:
    stage = started()
    begun(stage, 0)
    ended(stage, 0)
    stage.trigger_checkpoint(1)
    notice = captured(stage.snapshot(b"SC"))
    assert (notice.checkpoint, notice.query, notice.boundary) == (C1, QUERY, 0)
    assert notice.cuts[0].states == {S0: b"s0"}
    assert notice.barrier == stage.asked[OP].barrier


def test_an_epoch_whose_begin_is_still_asked_for_is_the_boundary() -> None:
    stage = started()
    stage.hello(0, 0, 0)
    assert not stage.trigger_checkpoint(1), "one question at a time"
    assert [ask.operator for ask in of_type(AskSnapshot, stage.snapshot(b"S0"))] == [OP]
    assert not stage.snapshot(b"SC")
    assert captured(ended(stage, 0)).boundary == 0


def test_an_epoch_that_spark_has_planned_before_a_restart_is_the_boundary() -> None:
    stage = started(parallelism=2)
    stage.send(0, "a")
    stage.send(1, "b")
    begun(stage, 0)
    stage.new_driver()
    stage.start()
    stage.trigger_checkpoint(1)
    stage.send(0, "c")
    assert not of_type(QueryCaptured, stage.snapshot(b"SC"))
    stage.hello(0, 0, 5)
    stage.ack(0, 0, 5, b"s0")
    batch = stage.commit(0)
    assert captured(batch).boundary == 0
    assert {subtask: names(batches) for subtask, batches in cut(batch).down.items()} == {S0: "c", S1: "b"}, (
        "0 has consumed a; the frozen input of 1 is still on its way"
    )


def test_an_epoch_that_is_run_again_without_a_begin_record_is_a_boundary_like_any_other() -> None:
    stage = started()
    stage.hello(0, 0, 0)
    stage.new_driver()
    stage.start()
    stage.send(0, "a")
    stage.trigger_checkpoint(1)
    stage.snapshot(b"SC")
    stage.send(0, "b")
    stage.hello(0, 0, 5)
    stage.ack(0, 0, 5, b"s0", "x")
    batch = stage.commit(0)
    assert names(cut(batch).down[S0]) == "a"
    assert cut(batch).up == (Outbox(S0, 5, events("x")),)
    assert mailboxes(stage) == ["a b"]


def test_an_epoch_that_spark_commits_without_running_it_again_is_in_the_cut_as_it_was_acknowledged() -> None:
    stage = started(parallelism=2)
    begun(stage, 0)
    stage.ack(0, 0, 0, b"s0", "x")
    stage.end_run()
    stage.start()
    stage.trigger_checkpoint(1)
    stage.snapshot(b"SC")
    batch = stage.commit(0)
    assert cut(batch).states == {S0: b"s0"}
    assert cut(batch).up == (Outbox(S0, 0, events("x")),)


def test_a_coordinator_that_takes_its_time_is_cut_after_its_boundary_as_if_it_had_not() -> None:
    stage = started()
    begun(stage, 0)
    stage.trigger_checkpoint(1)
    batch = ended(stage, 0, outbox="x")
    assert of_type(DeliverEvents, batch) == [], "what it is told between question and answer could be part of it"
    stage.send(0, "a")
    batch = stage.snapshot(b"SC")
    assert cut(batch).states == {S0: b"s0"}
    assert names(cut(batch).down[S0]) == "a"
    assert cut(batch).up == (Outbox(S0, 0, events("x")),)
    kinds = [type(notice) for notice in batch.notices]
    assert kinds == [DeliverEvents, CheckpointComplete, QueryCaptured], "and now it is told"


def test_a_subtask_that_acknowledged_before_the_answer_passes_with_it() -> None:
    stage = started(parallelism=2)
    begun(stage, 0)
    stage.trigger_checkpoint(1)
    stage.ack(0, 0, 0)
    stage.send(0, "a")
    stage.send(1, "b")
    stage.snapshot(b"SC")
    assert mailboxes(stage) == ["a", ""], "1 has not passed"
    assert stage.core.checkpoint_progress(C1) == Progress(2, 1, ())
    stage.send(0, "late")
    assert {subtask: names(batches) for subtask, batches in cut(stage.commit(0)).down.items()} == {S0: "a", S1: "b"}


def test_the_last_ack_before_the_commit_counts() -> None:
    stage = started()
    begun(stage, 0)
    stage.trigger_checkpoint(1)
    stage.snapshot(b"SC")
    stage.ack(0, 0, 0, b"first", "x")
    stage.hello(0, 0, 1)
    stage.ack(0, 0, 1, b"second", "y")
    batch = stage.commit(0)
    assert cut(batch).states == {S0: b"second"}
    assert cut(batch).up == (Outbox(S0, 1, events("y")),)


# Several operators of one query.


def test_a_query_is_captured_when_all_its_operators_are() -> None:
    stage = started("a", "b")
    assert [ask.operator for ask in of_type(AskSnapshot, stage.trigger_checkpoint(1))] == [A, B]
    assert stage.core.checkpoint_progress(C1) == Progress(2, 0, (A, B))
    assert not stage.snapshot(b"SA", "a")
    assert stage.core.checkpoint_progress(C1) == Progress(2, 1, (B,))
    assert [each.coordinator_state for each in captured(stage.snapshot(b"SB", "b")).cuts] == [b"SA", b"SB"]
    assert stage.core.checkpoint_progress(C1) == Progress(2, 2, ())


def one_has_begun_and_the_other_has_not() -> Stage:
    """Operator a runs epoch 0 when checkpoint 1 is triggered; b begins it afterwards.

    The channel of b: ``1`` is before the checkpoint, ``2`` between it and the epoch, ``3`` after both.
    """
    stage = started("a", "b", parallelism=2)
    begun(stage, 0, "a")
    stage.trigger_checkpoint(1)
    for subtask in (0, 1):
        stage.send(subtask, "1", "b")
    stage.snapshot(b"CA", "a")
    stage.snapshot(b"CB", "b")
    stage.hello(0, 0, 1, "b")
    for subtask in (0, 1):
        stage.send(subtask, "2", "b")
    batch = stage.snapshot(b"S0", "b")
    assert answer_to(batch, 1) == Welcome(None, events("1"))
    for subtask in (0, 1):
        stage.send(subtask, "3", "b")
    return stage


def test_all_operators_of_a_query_are_cut_at_the_same_epoch_whoever_has_begun_it() -> None:
    stage = one_has_begun_and_the_other_has_not()
    stage.ack(0, 0, 0, b"sa", "x", "a")
    stage.ack(0, 0, 1, b"sb", "y", "b")
    batch = stage.commit(0)
    assert captured(batch).boundary == 0
    assert cut(batch, "a").states == {S0: b"sa"}
    assert cut(batch, "a").up == (Outbox(S0, 0, events("x")),)
    assert cut(batch, "b").states == {S0: b"sb"}, "it has consumed 1"
    assert {subtask: names(sent) for subtask, sent in cut(batch, "b").down.items()} == {S1: "1"}
    assert cut(batch, "b").up == (Outbox(S0, 1, events("y")),)
    assert mailboxes(stage, "b") == ["2 3", "1 2 3"]


def test_what_a_checkpoint_holds_back_from_an_epoch_is_in_its_begin_record_and_survives_a_crash_in_it() -> None:
    stage = one_has_begun_and_the_other_has_not()
    stage.new_driver()
    stage.start()
    batch = stage.hello(0, 0, 2, "b")
    assert answer_to(batch, 2) == Welcome(None, events("1"))
    stage.ack(0, 0, 2, b"sb", operator="b")
    stage.commit(0)
    assert mailboxes(stage, "b") == ["2", "1 2"], "S0 has sent them; 3 has not happened"


def test_what_a_checkpoint_holds_back_from_an_epoch_survives_a_crash_after_its_commit() -> None:
    stage = one_has_begun_and_the_other_has_not()
    stage.ack(0, 0, 1, b"sb", operator="b")
    stage.spark_commits(0)
    stage.new_driver()
    stage.start()
    assert mailboxes(stage, "b") == ["2", "1 2"]


def test_a_begin_that_only_a_checkpoint_holds_something_back_from_is_recorded() -> None:
    stage = started("a", "b")
    begun(stage, 0, "a", "b")
    ended(stage, 0, "a", "b")
    begun(stage, 1, "a")
    stage.trigger_checkpoint(1)
    stage.snapshot(b"S0", "b")
    stage.hello(0, 1, 11, "b")
    stage.send(0, "x", "b")
    batch = stage.snapshot(b"S0", "b")
    [record] = [persist.record for persist in batch.persist]
    assert isinstance(record, Begin)
    assert [names(held) for held in record.held.values()] == ["x"]


def test_an_aborted_checkpoint_gives_what_it_held_to_the_epoch_that_has_not_begun() -> None:
    stage = started("a", "b")
    begun(stage, 0, "a")
    stage.trigger_checkpoint(1)
    stage.snapshot(b"CB", "b")
    stage.hello(0, 0, 1, "b")
    stage.send(0, "x", "b")
    stage.abort_checkpoint(1)
    assert answer_to(stage.snapshot(b"S0", "b"), 1) == Welcome(None, events("x"))


def test_an_operator_without_rows_in_the_boundary_epoch_passes_with_the_commit() -> None:
    stage = started("a", "b")
    begun(stage, 0, "a")
    stage.trigger_checkpoint(1)
    stage.send(0, "x", "b")
    for operator in ("a", "b"):
        stage.snapshot(b"C", operator)
    assert mailboxes(stage, "b") == ["x"]
    stage.send(0, "y", "b")
    assert mailboxes(stage, "b") == ["x"], "the boundary is not reached"
    batch = ended(stage, 0, "a")
    assert names(cut(batch, "b").down[S0]) == "x"
    assert mailboxes(stage, "b") == ["x y"]


def test_an_operator_goes_on_when_it_has_been_cut_although_another_one_has_not() -> None:
    stage = started("a", "b")
    stage.trigger_checkpoint(1)
    stage.snapshot(b"CA", "a")
    begun(stage, 0, "a")
    ended(stage, 0, "a")
    batch = stage.snapshot(b"CB", "b")
    assert captured(batch).boundary == -1
    assert cut(batch, "a").states == {}, "epoch 0 came after its cut"


# Several queries of one job.


def test_each_query_has_a_boundary_of_its_own_and_is_announced_when_it_is_captured() -> None:
    stage = with_another_query()
    begun(stage, 0, "a")
    trigger(stage)
    stage.execute()
    notice = captured(stage.snapshot(b"CB", "b"))
    assert (notice.query, notice.boundary) == (OTHER, -1)
    stage.snapshot(b"CA", "a")
    notice = captured(ended(stage, 0, "a"))
    assert (notice.query, notice.boundary) == (QUERY, 0)


def test_only_the_queries_that_were_named_have_a_part() -> None:
    stage = with_another_query()
    trigger(stage, queries=[OTHER])
    assert [ask.operator for ask in of_type(AskSnapshot, stage.execute())] == [B]


def test_a_stored_checkpoint_is_told_to_all_coordinators_once() -> None:
    stage = with_another_query()
    barrier = trigger(stage)
    stage.execute()
    for operator in ("a", "b"):
        stage.snapshot(b"C", operator)
    assert stage.checkpoint_stored(1).notices == [CheckpointComplete(A, barrier), CheckpointComplete(B, barrier)]
    assert not stage.checkpoint_stored(1)
    assert stage.core.checkpoint_progress(C1) is None


def test_queries_without_operators_have_no_part_and_do_not_have_to_run() -> None:
    stage = started()
    stage.core.add_query(OTHER, "id-of-other", [])
    trigger(stage)
    assert [type(notice) for notice in stage.execute().notices] == [AskSnapshot]
    assert captured(stage.snapshot(b"C")).query == QUERY
    trigger(stage, 2, [OTHER])
    assert not stage.execute()
    assert not stage.checkpoint_stored(2)


# A restored lineage.


def test_a_job_that_begins_with_the_seed_goes_on_from_the_cut() -> None:
    stage = one_has_begun_and_the_other_has_not()
    stage.ack(0, 0, 0, b"sa", "x", "a")
    stage.ack(0, 0, 1, b"sb", "y", "b")
    notice = captured(stage.commit(0))

    restored = Stage(specs=stage.specs, generation=Generation(2))
    restored.log = [record for each in notice.cuts for record in seed(each, notice.boundary, notice.barrier)]
    restored.spark_commits(notice.boundary)
    assert restored.start().notices == [
        ResetCoordinator(A, 2, notice.barrier, b"CA"),
        DeliverEvents(A, S0, 0, events("x")),
        ResetCoordinator(B, 2, notice.barrier, b"CB"),
        DeliverEvents(B, S0, 1, events("y")),
    ]
    assert mailboxes(restored, "b") == ["", "1"]
    assert {run.spec.uid: run.states for run in restored.core.operators()} == {A: {S0: b"sa"}, B: {S0: b"sb"}}
    restored.hello(1, 1, 10, "b")
    assert restored.asked[B].barrier > notice.barrier, "ids grow across generations (C9)"
    assert answer_to(restored.snapshot(b"S1", "b"), 10) == Welcome(None, events("1"))
