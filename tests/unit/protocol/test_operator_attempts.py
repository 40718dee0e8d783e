"""What a coordinator that watches attempts is told of those of its operator, and in which order."""

from __future__ import annotations

import pytest

from coord_control.ids import NO_CHECKPOINT, BarrierId
from coord_control.protocol.messages import AttemptFailed, AttemptReady, Batch, SubtaskReset, Welcome
from tests.core_kit import OP, answer_to, of_type, spec
from tests.unit.protocol.checkpoint_kit import S0, S1
from tests.unit.protocol.operator_kit import Runner


@pytest.fixture
def watched() -> Runner:
    return Runner(operator_spec=spec(observes_attempts=True))


def test_attempts_are_not_reported_unless_the_coordinator_watches_them(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    assert not operator.ended(0, 0, task=1)
    assert operator.totals.attempts_failed == 1


def test_a_failed_attempt_is_ready_then_failed_then_reset_then_ready_again(watched: Runner) -> None:
    notices = watched.hello(0, 0, task=1).notices[-1:]
    watched.snapshot()
    notices += watched.ended(0, 0, task=1, reason="boom").notices
    notices += watched.hello(0, 0, task=2).notices
    assert notices == [
        AttemptReady(OP, S0, 1),
        AttemptFailed(OP, S0, 1, "boom"),
        SubtaskReset(OP, S0, NO_CHECKPOINT),
        AttemptReady(OP, S0, 2),
    ]


def test_the_subtask_is_reset_to_the_newest_complete_barrier(watched: Runner) -> None:
    watched.epoch(0)
    watched.hello(0, 1, task=1)
    watched.snapshot()
    [reset] = of_type(SubtaskReset, watched.ended(0, 1, task=1))
    assert reset.barrier == 1


def test_a_subtask_is_not_reset_while_another_attempt_of_it_is_alive(watched: Runner) -> None:
    watched.hello(0, 0, task=1)
    watched.hello(0, 0, task=2)
    watched.snapshot()
    assert watched.ended(0, 0, task=1).notices == [AttemptFailed(OP, S0, 1, "it raised")]
    assert len(of_type(SubtaskReset, watched.ended(0, 0, task=2))) == 1


def test_a_subtask_is_not_reset_when_a_copy_fails_after_another_one_has_acknowledged(watched: Runner) -> None:
    """Spark kills the slower one of two speculative copies: the subtask is through, and is not run again."""
    watched.hello(0, 0, task=1)
    watched.hello(0, 0, task=2)
    watched.snapshot()
    watched.ack(0, 0, task=1)
    assert watched.ended(0, 0, task=2).notices == [AttemptFailed(OP, S0, 2, "it raised")]


def test_attempts_that_end_with_the_run_are_reported_as_failed_without_a_subtask_reset(watched: Runner) -> None:
    for subtask in (1, 0):
        watched.hello(subtask, 0, task=subtask)
    watched.hello(0, 0, task=7)
    watched.snapshot()
    watched.ack(0, 0, task=0)
    batch = Batch()
    watched.run.fail(batch)
    assert batch.notices == [
        AttemptFailed(OP, S0, 7, "the query is being restarted"),
        AttemptFailed(OP, S1, 1, "the query is being restarted"),
    ]


@pytest.mark.parametrize(("subtask", "epoch", "task"), [(0, 0, 99), (1, 0, 1), (0, 1, 1)])
def test_the_end_of_an_attempt_that_is_not_alive_is_late_news(
    watched: Runner, subtask: int, epoch: int, task: int
) -> None:
    watched.hello(0, 0, task=1)
    watched.snapshot()
    assert not watched.ended(subtask, epoch, task)
    assert watched.totals.attempts_failed == 0


def test_the_end_of_an_attempt_without_any_epoch_is_late_news(watched: Runner) -> None:
    assert not watched.ended(0, 0, task=1)


def test_an_attempt_that_ends_while_it_waits_is_not_answered(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.hello(0, 0, task=2)
    operator.ended(0, 0, task=1)
    batch = operator.snapshot()
    assert answer_to(batch, 1) is None
    assert answer_to(batch, 2) == Welcome(None, ())


def test_a_subtask_that_fails_is_reset_to_the_newest_stored_checkpoint() -> None:
    operator = Runner(operator_spec=spec(observes_attempts=True))
    operator.epoch(0)
    operator.run.stored(BarrierId(9), Batch())
    operator.run.stored(BarrierId(8), Batch())
    operator.hello(0, 1, task=1)
    operator.snapshot()
    assert operator.ended(0, 1, task=1).notices[-1] == SubtaskReset(OP, S0, BarrierId(9))
