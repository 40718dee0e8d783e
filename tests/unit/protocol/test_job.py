"""The core of one driver: batches, the door for staleness, and which incarnation is current."""

from __future__ import annotations

import pytest

from coord_control.errors import NoSuchSubtask
from coord_control.ids import AttemptId, BarrierId, CheckpointId, Epoch, OperatorUid, QueryName, RunId, SubtaskIndex
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import AskSnapshot, AttemptEnded, Batch, Hello
from coord_control.protocol.recovery import Facts
from tests.core_kit import OP, QUERY, QUERY_ID, Stage, attempt, event, of_type, spec
from tests.unit.protocol.job_kit import BROKEN, refusal

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
