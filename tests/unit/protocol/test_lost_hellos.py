"""An attempt whose connection breaks is over, wherever its hello stands: its coordinator is told of the reset."""

from __future__ import annotations

from typing import Final

import pytest

from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import AttemptFailed, Batch, SubtaskReset
from coord_control.protocol.operator import OperatorRun
from tests.core_kit import Stage, of_type, spec
from tests.mutations.mutation import Mutation, is_noticed


def observed() -> Stage:
    stage = Stage(specs=[spec(parallelism=2, observes_attempts=True)])
    stage.start()
    return stage


def told(batch: Batch) -> tuple[list[int], list[int]]:
    """The attempts that have failed, and the subtasks that were reset."""
    failed = [notice.attempt for notice in of_type(AttemptFailed, batch)]
    return failed, [notice.subtask for notice in of_type(SubtaskReset, batch)]


def test_a_hello_that_waits_for_the_coordinators_state_and_whose_connection_breaks_is_not_alive() -> None:
    stage = observed()
    stage.hello(0, 0, 7)
    assert told(stage.disconnect(7)) == ([7], [0])
    stage.snapshot()
    # The next attempt is the only one that is alive.
    stage.hello(0, 0, 8)
    assert told(stage.disconnect(8)) == ([8], [0])


def test_a_hello_that_is_answered_while_its_connection_breaks_is_not_alive() -> None:
    stage = observed()
    stage.hello(0, 0, 7)
    [asked] = stage.asked.values()
    stage.core.snapshot_completed(asked.operator, asked.incarnation, asked.barrier, b"S", stage.now)
    batch = stage.disconnect(7)  # before the answer was sent: it is in the same batch
    assert told(batch) == ([7], [0])


def test_a_hello_behind_another_one_on_the_same_connection_ends_that_one() -> None:
    """One task runs several subtasks in turn; the first one's output was not read to its end."""
    stage = observed()
    stage.hello(0, 0, 7)
    stage.snapshot()
    batch = stage.hello(1, 0, 7)
    assert told(batch) == ([7], [0])
    assert told(stage.disconnect(7)) == ([7], [1])


def test_a_hello_that_is_said_twice_is_one_attempt() -> None:
    stage = observed()
    stage.hello(0, 0, 7)
    stage.snapshot()
    assert told(stage.hello(0, 0, 7)) == ([], [])


def test_a_hello_after_an_acknowledged_one_on_the_same_connection_ends_nothing() -> None:
    stage = observed()
    stage.hello(0, 0, 7)
    stage.snapshot()
    stage.ack(0, 0, 7, b"a")
    assert told(stage.hello(1, 0, 7)) == ([], [])


RULES: Final = (
    test_a_hello_that_waits_for_the_coordinators_state_and_whose_connection_breaks_is_not_alive,
    test_a_hello_that_is_answered_while_its_connection_breaks_is_not_alive,
    test_a_hello_behind_another_one_on_the_same_connection_ends_that_one,
    test_a_hello_that_is_said_twice_is_one_attempt,
    test_a_hello_after_an_acknowledged_one_on_the_same_connection_ends_nothing,
)

BUGS: Final = (
    Mutation("a broken connection ends nothing", JobCore._gone, "is not None:", "is None and False:"),
    Mutation("an attempt is known once it is answered", JobCore.hello, "self._open_attempts[token] = attempt", "pass"),
    Mutation("a hello ends nothing", JobCore.hello, "if before != attempt and ", "if False and "),
    Mutation("a hello ends itself", JobCore.hello, "if before != attempt and ", "if "),
    Mutation("what has ended is alive", OperatorRun.attempt_ended, "participant.alive.discard(", "("),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_these_rules_is_noticed(bug: Mutation) -> None:
    assert is_noticed(bug, RULES)
