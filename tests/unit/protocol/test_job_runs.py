"""Runs of a query start and end: what a restart voids, redelivers and resets."""

from __future__ import annotations

from coord_control.ids import NO_CHECKPOINT, NO_EPOCH, BarrierId, Epoch, QueryName, RunId, SubtaskIndex
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import AttemptFailed, DeliverEvents, EpochSettled, Hello, ResetCoordinator, Welcome
from coord_control.protocol.recovery import Facts
from tests.core_kit import OP, QUERY, Stage, answer_to, attempt, events, names, run_started, spec
from tests.unit.protocol.job_kit import refusal


def test_the_first_start_of_an_empty_query_resets_nobody() -> None:
    assert not Stage().start()


def test_a_new_driver_resets_the_coordinator_to_its_snapshot(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot(b"S0")
    stage.new_driver()
    batch = stage.start()
    assert batch.notices == [ResetCoordinator(OP, 2, BarrierId((1 << 32) + 1), b"S0")]
    assert answer_to(stage.hello(0, 0, task=1), 1) == Welcome(None, ())


def test_a_restart_in_place_resets_the_coordinator_even_without_a_snapshot(stage: Stage) -> None:
    stage.end_run()
    assert stage.start().notices == [ResetCoordinator(OP, 2, NO_CHECKPOINT, None)]


def test_recovered_outboxes_are_delivered_after_the_reset(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot(b"S0")
    stage.ack(0, 0, task=1, outbox="x")
    stage.spark_commits(0)
    stage.new_driver()
    barrier = BarrierId((1 << 32) + 1)
    assert stage.start().notices == [
        ResetCoordinator(OP, 2, barrier, b"S0"),
        DeliverEvents(OP, SubtaskIndex(0), 1, events("x")),
    ]


def test_an_epoch_that_runs_again_voids_its_durable_acks_before_anybody_is_answered(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1, state=b"s")
    stage.end_run()
    assert stage.start().persist == []
    batch = stage.hello(0, 0, task=2)
    assert [persist.record for persist in batch.persist] == [run_started(-1, 0, generation=1)]
    assert len(batch.answers) == 1
    assert stage.hello(1, 0, task=3).persist == [], "once is enough"


def test_a_restart_voids_at_once_what_belongs_to_an_epoch_that_spark_has_not_planned(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1, state=b"s")
    stage.end_run()
    stage.planned = NO_EPOCH
    batch = stage.start()
    assert [persist.record for persist in batch.persist] == [run_started(-1, -1, generation=1)]
    assert stage.commit(0).notices == []


def test_an_epoch_that_spark_commits_without_running_it_again_counts_as_it_was_acknowledged(stage: Stage) -> None:
    """Its sink had it already: the file sink skips such an epoch, and so does an idempotent foreachBatch."""
    stage.send(0, "a")
    stage.send(1, "b")
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1, state=b"s", outbox="x")
    stage.end_run()
    stage.start()
    batch = stage.commit(0)
    assert [(n.subtask, n.attempt) for n in batch.notices if isinstance(n, DeliverEvents)] == [(0, 1)]
    [settled] = [n for n in batch.notices if isinstance(n, EpochSettled)]
    assert (settled.ran, settled.events_down, settled.events_up) == (1, 1, 1)
    [operator] = stage.core.operators()
    assert operator.states == {0: b"s"}
    assert [names(gateway.mailbox) for gateway in operator.channel.gateways] == ["", "b"], "1 had no rows"


def test_acks_of_an_epoch_that_runs_again_do_not_count_any_more(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1, state=b"old", outbox="x")
    stage.end_run()
    stage.start()
    stage.hello(1, 0, task=2)
    stage.ack(1, 0, task=2, state=b"new")
    stage.commit(0)
    [operator] = stage.core.operators()
    assert operator.states == {1: b"new"}


def test_the_end_of_a_run_refuses_who_waits_and_forgets_its_connections(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    batch = stage.end_run()
    assert "being restarted" in refusal(batch, 1)
    stage.start()
    assert not stage.disconnect(1), "late news"


def test_the_end_of_a_run_is_reported_once(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.end_run()
    assert not stage.end_run()


def test_a_run_without_an_id_can_end(stage: Stage) -> None:
    """It failed before Spark gave it one."""
    stage.core.end_run(QUERY, None, 0.0)
    assert "being restarted" in refusal(stage.hello(0, 0, task=1), 1)
    stage.start()
    assert answer_to(stage.hello(0, 0, task=2), 2) == Welcome(None, ())


def test_a_lingering_attempt_of_the_ended_run_is_refused_in_the_new_one(stage: Stage) -> None:
    stage.hello(0, 0, task=5)
    stage.snapshot()
    lingering = stage.attempt(0, 0, task=5)
    never_seen = stage.attempt(1, 0, task=6)
    stage.end_run()
    stage.start()
    assert "run of the query that has ended" in refusal(stage.ack(0, 0, task=5, stale=lingering), 5)
    assert "run of the query that has ended" in refusal(stage.hello(1, 0, task=6, stale=never_seen), 6)
    assert answer_to(stage.hello(0, 0, task=7), 7) == Welcome(None, ())


def test_the_newest_ended_runs_are_known_by_name_and_older_ones_by_their_task_attempts(stage: Stage) -> None:
    oldest = stage.run
    stage.hello(0, 0, task=5)
    stage.snapshot()
    for _ in range(101):
        newest = stage.run
        stage.end_run()
        stage.start()
    runs = {oldest: 5, newest: 6}
    for run, task in runs.items():
        stale = attempt(0, 0, task, run=run)
        assert "run of the query that has ended" in refusal(stage.hello(0, 0, task=task, stale=stale), task)
    # What is remembered is bounded: the oldest run's name alone does not say any more that it has ended.
    forgotten = attempt(0, 0, 7, run=oldest)
    assert answer_to(stage.hello(0, 0, task=7, stale=forgotten), 7) == Welcome(None, ())


def test_the_end_of_one_query_leaves_the_other_alone() -> None:
    core = JobCore(attempt().generation)
    for name in ("a", "b"):
        core.add_query(QueryName(name), name, [spec(name, observes_attempts=True)])
        core.start_run(QueryName(name), Facts((), Epoch(-1), Epoch(-1)), 0.0)
        core.hello(Hello(attempt(operator=name, query_id=name)), name, 0.0)
    core.take()
    core.end_run(QueryName("a"), RunId("run-a"), 0.0)
    assert answer_to(core.take(), "a") is not None
    assert [operator.spec.uid for operator in core.operators()] == ["b"]
    core.disconnected("b")
    [failed, _] = core.take().notices
    assert isinstance(failed, AttemptFailed)
    assert failed.operator == "b"
