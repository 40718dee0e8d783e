"""The core of one driver: the door for staleness, runs of queries, failing once, and who is current."""

from __future__ import annotations

import pytest

from coord_control.errors import (
    CoordinatorFailed,
    CoordinatorTimeout,
    NoSuchSubtask,
    OutputNotConsumed,
    StoreUnavailable,
    SubtaskFailed,
)
from coord_control.ids import (
    NO_CHECKPOINT,
    NO_EPOCH,
    AttemptId,
    BarrierId,
    CheckpointId,
    Epoch,
    OperatorUid,
    QueryName,
    RunId,
    SubtaskIndex,
)
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import (
    Accepted,
    Acknowledge,
    AskSnapshot,
    AttemptEnded,
    AttemptFailed,
    Batch,
    DeliverEvents,
    EpochSettled,
    FailQuery,
    Hello,
    QueryCaptured,
    Refused,
    ResetCoordinator,
    Welcome,
)
from coord_control.protocol.recovery import Facts
from tests.core_kit import (
    OP,
    QUERY,
    QUERY_ID,
    Stage,
    answer_to,
    attempt,
    event,
    events,
    names,
    of_type,
    run_started,
    spec,
)

BROKEN = CoordinatorFailed(OP, "handle_event_from_operator", "Traceback: boom")


@pytest.fixture
def stage() -> Stage:
    """A query that runs."""
    stage = Stage()
    stage.start()
    return stage


def refusal(batch: Batch, token: object) -> str:
    answer = answer_to(batch, token)
    assert isinstance(answer, Refused), answer
    return answer.reason


def failure(batch: Batch) -> FailQuery | None:
    found = of_type(FailQuery, batch)
    assert len(found) <= 1
    return found[0] if found else None


# Batches.


def test_output_is_handed_out_once(stage: Stage) -> None:
    stage.core.hello(Hello(attempt()), "token", 0.0)
    had_output = stage.core.has_output
    assert had_output
    assert stage.core.take().notices == [AskSnapshot(OP, 1, BarrierId((1 << 32) + 1))]
    assert not stage.core.has_output
    assert not stage.core.take()


def test_the_same_calls_give_the_same_batches() -> None:
    def play() -> list[Batch]:
        stage = Stage()
        batches = [stage.start(), stage.hello(0, 0, task=1), stage.send(0, "a"), stage.snapshot()]
        return [
            *batches,
            stage.ack(0, 0, task=1, state=b"s", outbox="x"),
            stage.commit(0),
            stage.end_run(),
            stage.start(),
        ]

    assert play() == play()


def test_barriers_grow_over_queries_and_generations() -> None:
    asked = []
    for generation in (1, 2):
        core = JobCore(attempt(generation=generation).generation)
        for name in ("a", "b"):
            core.add_query(QueryName(name), name, [spec(name)])
            core.start_run(QueryName(name), Facts((), Epoch(-1), Epoch(-1)), 0.0)
            core.hello(Hello(attempt(operator=name, query_id=name, generation=generation)), name, 0.0)
        asked += [notice.barrier for notice in of_type(AskSnapshot, core.take())]
    assert asked == sorted(set(asked))
    assert len(asked) == 4


# The door.


@pytest.mark.parametrize(
    ("stale", "reason"),
    [
        (attempt(task=9, generation=2), "it belongs to generation 2 of the driver; this is generation 1"),
        (attempt(task=9, operator="unknown"), "its operator belongs to no query that was started with job.start()"),
        (attempt(task=9, query_id="elsewhere"), "Spark runs it in another one (id elsewhere)"),
        (attempt(subtask=2, task=9), "operator 'op' has no subtask 2"),
        (attempt(subtask=-1, task=9), "operator 'op' has no subtask -1"),
        (attempt(task=9, run="run-0"), "it belongs to a run of the query that has ended"),
        (attempt(task=3), "it belongs to a run of the query that has ended"),
        (attempt(task=9, epoch=0, run="run-2"), "epoch 0 is over; epoch 0 is committed"),
    ],
    ids=["generation", "operator", "query", "subtask", "negative subtask", "run", "task attempt", "epoch"],
)
def test_one_door_refuses_what_is_stale_or_does_not_belong_here(stale: AttemptId, reason: str) -> None:
    stage = Stage(run=RunId("run-0"))
    stage.start()
    stage.hello(0, 0, task=3)
    stage.snapshot()
    stage.ack(0, 0, task=3)
    stage.commit(0)
    stage.end_run()
    stage.start()
    batch = stage.hello(0, 0, task=9, stale=stale)
    assert reason in refusal(batch, 9)
    assert batch == Batch(answers=batch.answers)
    assert reason in refusal(stage.ack(0, 0, task=9, stale=stale), 9)
    if stale.operator == OP:
        assert stage.core.totals()[OP].stale_refused == 2


def test_before_the_query_runs_its_attempts_are_refused() -> None:
    stage = Stage()
    assert "being restarted" in refusal(stage.hello(0, 0, task=1), 1)


def test_the_end_of_a_stale_attempt_is_late_news(stage: Stage) -> None:
    stage.core.attempt_ended(AttemptEnded(attempt(generation=2), "killed", fatal=True))
    assert not stage.core.has_output


def test_a_refused_ack_is_counted_like_a_refused_hello(stage: Stage) -> None:
    assert refusal(stage.ack(0, 0, task=1), 1) == "epoch 0 is not running"
    assert stage.core.totals()[OP].stale_refused == 1


# Starting and ending runs.


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


# Commits.


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


# Connections.


def test_a_broken_connection_gives_its_attempt_up(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.disconnect(1)
    assert stage.core.totals()[OP].attempts_failed == 1
    assert "given up" in refusal(stage.ack(0, 0, task=1), 1)


def test_a_connection_that_breaks_after_the_ack_gives_nobody_up(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1)
    stage.disconnect(1)
    assert stage.core.totals()[OP].attempts_failed == 0


def test_a_refused_ack_leaves_the_connection_to_its_attempt(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.core.acknowledge(Acknowledge(attempt(task=1), None), 1, 0.0)
    assert refusal(stage.execute(), 1) == "epoch 0 is not running"
    stage.disconnect(1)
    assert stage.core.totals()[OP].attempts_failed == 1


# Failing.


def test_a_failure_that_no_retry_repairs_fails_the_query_with_its_reason(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    failed = failure(stage.attempt_ended(0, 0, task=1, reason="StateTooLarge: 2 MiB", fatal=True))
    assert failed is not None
    assert isinstance(failed.error, SubtaskFailed)
    assert "StateTooLarge: 2 MiB" in str(failed.error)


def test_a_coordinator_that_fails_is_counted_once_until_the_next_start(stage: Stage) -> None:
    stage.core.coordinator_failed(OP, 1, BROKEN)
    assert failure(stage.execute()) == FailQuery(QUERY, BROKEN)
    stage.core.coordinator_failed(OP, 1, BROKEN)
    assert not stage.execute()
    assert "being restarted" in refusal(stage.hello(0, 0, task=1), 1)
    stage.end_run()
    stage.start()
    stage.core.coordinator_failed(OP, 2, BROKEN)
    assert failure(stage.execute()) == FailQuery(QUERY, BROKEN)


def test_a_failed_query_commits_nothing_more(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1, outbox="x")
    stage.core.coordinator_failed(OP, 1, BROKEN)
    stage.execute()
    assert not stage.commit(0)


def test_a_coordinator_that_owes_its_state_fails_its_query_once(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.core.tick(60.0)
    assert not stage.execute()
    for now, fails in ((61.0, True), (62.0, False)):
        stage.core.tick(now)
        failed = failure(stage.execute())
        assert (failed is not None) is fails
        assert failed is None or isinstance(failed.error, CoordinatorTimeout)


def test_when_the_store_is_lost_every_started_query_ends_its_run_and_fails() -> None:
    stage = Stage()
    stage.core.add_query(QueryName("never started"), "x", [spec("idle")])
    stage.start()
    stage.hello(0, 0, task=1)
    lost = StoreUnavailable("/store", "write", "disk full")
    stage.core.fail_all(lost, 0.0)
    batch = stage.execute()
    assert "being restarted" in refusal(batch, 1)
    assert failure(batch) == FailQuery(QUERY, lost)
    assert stage.core.operators() == []


def test_when_the_store_is_lost_nothing_that_rests_on_the_lost_records_is_answered(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.core.snapshot_completed(OP, 1, stage.asked[OP].barrier, b"S0", 0.0)
    lost = stage.core.take()  # its begin record is on its way to the storage
    assert lost.persist
    stage.core.hello(Hello(attempt(1, 0, 2)), 2, 0.0)
    stage.core.fail_all(StoreUnavailable("/store", "write", "disk full"), 0.0)
    assert "could not make it durable" in refusal(stage.core.take(), 2)


# Coordinators: an earlier incarnation has not happened.


def test_what_an_earlier_incarnation_says_has_not_happened(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    asked = stage.asked[OP]
    stage.end_run()
    stage.start()
    stage.hello(0, 0, task=2)
    stage.core.send(OP, 1, SubtaskIndex(0), event("a"), 0.0)
    stage.core.snapshot_completed(OP, 1, asked.barrier, b"late", 0.0)
    stage.core.coordinator_failed(OP, 1, BROKEN)
    assert not stage.core.has_output
    assert stage.core.totals()[OP].events_down == 0


def test_what_a_coordinator_says_while_its_query_does_not_run_has_not_happened(stage: Stage) -> None:
    stage.end_run()
    stage.core.send(OP, 1, SubtaskIndex(0), event("a"), 0.0)
    stage.core.send(OperatorUid("unknown"), 1, SubtaskIndex(0), event("a"), 0.0)
    assert not stage.core.has_output


def test_an_event_to_no_subtask_is_an_error_of_the_sender(stage: Stage) -> None:
    with pytest.raises(NoSuchSubtask):
        stage.send(7, "a")


# Holding a query at the end of its epoch.


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


def test_what_is_known_for_people(stage: Stage) -> None:
    assert stage.core._query_of[OP].query_id == QUERY_ID
    [operator] = stage.core.operators()
    assert operator.spec == spec()
    assert list(stage.core.totals()) == [OP]


def test_barriers_of_epochs_and_checkpoints_are_one_sequence(stage: Stage) -> None:
    first = stage.core.trigger_checkpoint(CheckpointId(7), [QUERY], 0.0)
    stage.execute()
    stage.snapshot()
    stage.hello(0, 0, task=1)
    stage.snapshot()
    second = stage.asked[OP].barrier
    third = stage.core.trigger_checkpoint(CheckpointId(3), [QUERY], 0.0)
    assert (second - first, third - second) == (1, 1)
    assert first >> 32 == stage.generation


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
