"""A commit that this driver's own run has not made never means "these subtasks had no rows" (rule 3)."""

from __future__ import annotations

from typing import Final

import pytest

from coord_control.errors import CommittedElsewhere, StoreUnavailable
from coord_control.ids import Epoch, RunId
from coord_control.protocol.epoch import OperatorEpoch
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import FailQuery, Refused, Welcome
from coord_control.protocol.operator import OperatorRun
from tests.core_kit import QUERY, Stage, answer_to, of_type, spec
from tests.mutations.mutation import Mutation, is_noticed


def begun(acked: int | None = 0) -> Stage:
    """Two subtasks; the first one has said hello in epoch 0, and acknowledged."""
    stage = Stage(specs=[spec(parallelism=2)])
    stage.start()
    stage.hello(0, 0, 1)
    stage.snapshot()
    if acked is not None:
        stage.ack(acked, 0, 1, b"after epoch 0")
    return stage


def test_a_commit_that_was_only_seen_settles_nothing_and_fails_the_query() -> None:
    """The second subtask's rows are in the other driver's sink; here it has not said hello yet."""
    stage = begun()
    stage.core.committed(QUERY, Epoch(0), stage.now)
    batch = stage.execute()
    [failed] = of_type(FailQuery, batch)
    assert isinstance(failed.error, CommittedElsewhere)
    assert (failed.error.query, failed.error.epoch, failed.error.retry) == (QUERY, 0, False)
    assert "epoch 0 is committed" in str(failed.error)
    [operator] = stage.core.operators()
    assert (operator.states, operator.committed) == ({}, -1)
    assert isinstance(answer_to(stage.hello(1, 0, 2), 2), Refused)


def test_a_commit_of_an_epoch_that_nothing_has_run_needs_evidence_too() -> None:
    stage = Stage()
    stage.start()
    stage.core.committed(QUERY, Epoch(0), stage.now)
    assert len(of_type(FailQuery, stage.execute())) == 1


def test_a_commit_that_the_run_itself_reports_settles_epochs_without_rows() -> None:
    stage = begun()
    assert of_type(FailQuery, stage.commit(0)) == []
    assert of_type(FailQuery, stage.commit(1)) == []  # nobody has said hello in it
    assert stage.core.operators()[0].committed == 1


def test_the_next_epochs_hello_is_evidence_of_its_own_run() -> None:
    stage = begun()
    stage.spark_commits(0)
    stage.hello(0, 1, 2)
    assert isinstance(answer_to(stage.snapshot(), 2), Welcome)


def test_another_run_is_no_evidence_for_an_epoch_that_this_one_has_begun() -> None:
    """A run that begins behind the epoch has found its commit; nobody knows whose that was."""
    stage = begun()
    stage.run = RunId("run-2")
    batch = stage.hello(0, 1, 2)
    assert isinstance(answer_to(batch, 2), Refused)
    [failed] = of_type(FailQuery, batch)
    assert isinstance(failed.error, CommittedElsewhere)


def test_a_run_that_was_interrupted_in_the_middle_of_an_epoch_has_not_committed_it() -> None:
    """Bug: a restart took such a commit for a fact, and settled what the subtasks had not acknowledged."""
    assert not begun(acked=None).core.may_have_finished(QUERY, Epoch(0))
    assert begun(acked=None).core.may_have_finished(QUERY, Epoch(-1))
    assert begun().core.may_have_finished(QUERY, Epoch(0))


def test_what_was_in_the_middle_is_known_when_the_records_were_lost() -> None:
    """Bug: the operators were gone by then, and the query's thread ended with a KeyError."""
    for acked, may_have_finished in ((None, False), (0, True)):
        stage = begun(acked)
        stage.core.fail_all(StoreUnavailable("/log", "write", "it is full"), stage.now)
        assert stage.core.may_have_finished(QUERY, Epoch(0)) is may_have_finished
        stage.start()
        assert stage.core.may_have_finished(QUERY, Epoch(0)), "another run is in the middle of nothing"


def test_what_is_known_already_needs_no_evidence() -> None:
    stage = begun()
    stage.commit(0)
    stage.core.committed(QUERY, Epoch(0), stage.now)
    assert of_type(FailQuery, stage.execute()) == []


def test_a_query_that_has_ended_has_nothing_to_settle() -> None:
    stage = begun()
    stage.end_run()
    stage.core.committed(QUERY, Epoch(0), stage.now)
    assert of_type(FailQuery, stage.execute()) == []


RULES: Final = (
    test_a_commit_that_was_only_seen_settles_nothing_and_fails_the_query,
    test_a_commit_of_an_epoch_that_nothing_has_run_needs_evidence_too,
    test_a_commit_that_the_run_itself_reports_settles_epochs_without_rows,
    test_the_next_epochs_hello_is_evidence_of_its_own_run,
    test_another_run_is_no_evidence_for_an_epoch_that_this_one_has_begun,
    test_a_run_that_was_interrupted_in_the_middle_of_an_epoch_has_not_committed_it,
    test_what_was_in_the_middle_is_known_when_the_records_were_lost,
)

BUGS: Final = (
    Mutation("what was only seen counts", JobCore._settle, "run is None or any(", "any("),
    Mutation("another run vouches", OperatorRun.is_run_by_another, "epoch.run not in (None, run)", "False"),
    Mutation("no run vouches", OperatorRun.is_run_by_another, "epoch.run not in (None, run)", "True"),
    Mutation("an interrupted run has finished", OperatorEpoch.is_unfinished, "participant.ack is None", "False"),
    Mutation("what is not committed is unfinished", JobCore.may_have_finished, " and epoch <= committed", ""),
    Mutation(
        "a run that has ended was in the middle of nothing", JobCore.may_have_finished, "{query.unfinished}", "set()"
    ),
    Mutation(
        "a new run is where the last one was",
        JobCore.start_run,
        "facts.committed, None",
        "facts.committed, query.unfinished",
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_these_rules_is_noticed(bug: Mutation) -> None:
    assert is_noticed(bug, RULES)
