"""The phases of an agent: every pair of the table, and what its passes do in each phase."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import pytest

from coord_control.control.agent.agent_run import TRANSITIONS, AgentRun, Input, Phase, Step
from coord_control.errors import InvalidTransition
from tests.mutations.mutation import Mutation, is_noticed

#: The shortest way to each phase.
WAYS: Final = {
    Phase.AWAY: (),
    Phase.REGISTERED: (Input.REGISTERED,),
    Phase.FENCED: (Input.SUPERSEDED,),
    Phase.ENDING_AWAY: (Input.CLOSE,),
    Phase.ENDING: (Input.REGISTERED, Input.CLOSE),
    Phase.CLOSED: (Input.CLOSE, Input.ENDED),
}
PAIRS: Final = list(itertools.product(Phase, Input))
FIRST: Final = [
    Step.LOOK,
    Step.SAMPLE,
    Step.REGISTER,
    Step.FLUSH,
    Step.TAKE_OLDER,
    Step.HEARTBEAT,
    Step.CLAIM,
    Step.SEND_EVENTS,
    Step.LOOK_AGAIN,
    Step.FLUSH_AGAIN,
    Step.PROGRESS,
    Step.UPKEEP,
]
QUIET: Final = [step for step in FIRST if step not in (Step.REGISTER, Step.TAKE_OLDER, Step.HEARTBEAT, Step.CLAIM)]


def run_in(phase: Phase) -> AgentRun:
    run = AgentRun(heartbeat_seconds=10.0)
    for input_ in WAYS[phase]:
        run.happened(input_)
    assert run.phase is phase
    return run


def passed(
    run: AgentRun,
    now: float,
    *,
    can_use_database: bool = True,
    not_done: tuple[Step, ...] = (),
    ends_at: Step | None = None,
) -> list[Step]:
    """Make a pass that does everything; return its steps."""
    steps = []
    for step in run.steps(now, can_use_database=can_use_database):
        steps.append(step)
        if step is ends_at:
            run.happened(Input.CLOSE)
        elif step is Step.REGISTER:
            run.happened(Input.REGISTERED)
        elif step not in not_done:
            run.done(step, now)
    return steps


@pytest.mark.parametrize(("phase", "input_"), [pair for pair in PAIRS if pair in TRANSITIONS])
def test_a_legal_pair_leads_where_the_table_says(phase: Phase, input_: Input) -> None:
    run = run_in(phase)
    assert run.happened(input_) is (TRANSITIONS[phase, input_] is not phase)
    assert run.phase is TRANSITIONS[phase, input_]


@pytest.mark.parametrize(("phase", "input_"), [pair for pair in PAIRS if pair not in TRANSITIONS])
def test_any_other_pair_is_refused_and_changes_nothing(phase: Phase, input_: Input) -> None:
    run = run_in(phase)
    with pytest.raises(InvalidTransition, match=f"agent: input {input_.name} is not allowed in state {phase.name}"):
        run.happened(input_)
    assert run.phase is phase


@pytest.mark.parametrize("input_", Input)
def test_what_is_closed_stays_so(input_: Input) -> None:
    assert TRANSITIONS[Phase.CLOSED, input_] is Phase.CLOSED


@pytest.mark.parametrize("phase", Phase)
def test_from_everywhere_a_close_leads_to_the_end(phase: Phase) -> None:
    run = run_in(phase)
    run.happened(Input.CLOSE)
    run.happened(Input.ENDED)
    assert run.phase is Phase.CLOSED


def test_after_a_newer_driver_has_taken_over_nothing_is_written() -> None:
    reached, todo = set[Phase](), [Phase.FENCED]
    while todo:
        phase = todo.pop()
        reached.add(phase)
        todo += {TRANSITIONS[phase, each] for each in Input if (phase, each) in TRANSITIONS} - reached
    assert reached == {Phase.FENCED, Phase.CLOSED}


def test_a_job_that_ends_begins_nothing_new() -> None:
    for phase in (Phase.FENCED, Phase.ENDING, Phase.ENDING_AWAY, Phase.CLOSED):
        assert passed(run_in(phase), 0.0) == [], phase


# Passes.


def the_first_pass_registers_and_does_everything() -> None:
    assert passed(AgentRun(10.0), 100.0) == FIRST


def the_next_one_does_what_is_due() -> None:
    run = AgentRun(10.0)
    passed(run, 100.0)
    assert run.seconds_until_due(101.0) == 9.0
    assert passed(run, 101.0) == QUIET


def commands_are_claimed_after_a_signal_and_with_each_heartbeat() -> None:
    run = AgentRun(10.0)
    passed(run, 100.0)
    run.signalled()
    assert [step for step in passed(run, 101.0) if step not in QUIET] == [Step.CLAIM]
    assert [step for step in passed(run, 110.0) if step not in QUIET] == [Step.HEARTBEAT, Step.CLAIM]


def what_was_not_done_is_due_again() -> None:
    run = AgentRun(10.0)
    passed(run, 100.0, not_done=(Step.TAKE_OLDER, Step.CLAIM))
    assert [step for step in passed(run, 101.0) if step not in QUIET] == [Step.TAKE_OLDER, Step.CLAIM]
    assert passed(run, 102.0) == QUIET


def a_signal_while_commands_are_claimed_is_not_lost() -> None:
    run = AgentRun(10.0)
    for step in run.steps(100.0, can_use_database=True):
        if step is Step.REGISTER:
            run.happened(Input.REGISTERED)
        if step is Step.CLAIM:
            run.signalled()
        run.done(step, 100.0)
    assert [step for step in passed(run, 101.0) if step not in QUIET] == [Step.CLAIM]


def after_an_outage_it_registers_again_and_does_everything() -> None:
    run = AgentRun(10.0)
    passed(run, 100.0)
    run.happened(Input.LOST)
    assert passed(run, 101.0, can_use_database=False) == [Step.LOOK, Step.SAMPLE]
    assert passed(run, 102.0) == FIRST


def a_pass_ends_with_the_job() -> None:
    assert passed(AgentRun(10.0), 100.0, ends_at=Step.HEARTBEAT) == FIRST[: FIRST.index(Step.HEARTBEAT) + 1]


def nothing_is_written_before_the_driver_is_registered() -> None:
    run = AgentRun(10.0)
    assert list(run.steps(100.0, can_use_database=True)) == [Step.LOOK, Step.SAMPLE, Step.REGISTER]


def only_a_database_that_was_never_used_may_be_created() -> None:
    run = AgentRun(10.0)
    run.happened(Input.LOST)
    assert run.may_create
    run.happened(Input.REGISTERED)
    run.happened(Input.LOST)
    assert not run.may_create


RULES: Final = (
    the_first_pass_registers_and_does_everything,
    the_next_one_does_what_is_due,
    commands_are_claimed_after_a_signal_and_with_each_heartbeat,
    what_was_not_done_is_due_again,
    a_signal_while_commands_are_claimed_is_not_lost,
    after_an_outage_it_registers_again_and_does_everything,
    a_pass_ends_with_the_job,
    nothing_is_written_before_the_driver_is_registered,
    only_a_database_that_was_never_used_may_be_created,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_pass(rule: Callable[[], None]) -> None:
    rule()


BUGS: Final = (
    Mutation("write without having registered", AgentRun.steps, "if self._phase is not Phase.REGISTERED:", "if False:"),
    Mutation("do not register", AgentRun.steps, "yield Step.REGISTER", "pass"),
    Mutation("use a database that is away", AgentRun.steps, "if not can_use_database:", "if False:"),
    Mutation("forget what was not done", AgentRun.steps, "self._due |= self._doing", "pass"),
    Mutation("do it again for ever", AgentRun.done, "self._doing.discard(step)", "pass"),
    Mutation(
        "take a signal for done",
        AgentRun.done,
        "self._doing.discard(step)",
        "self._doing.discard(step)\n    self._due.discard(step)",
    ),
    Mutation("rely on signals", AgentRun.done, "self._due.add(Step.CLAIM)", "pass"),
    Mutation("send heartbeats all the time", AgentRun.done, "now + self._heartbeat_seconds", "now"),
    Mutation("leave older commands after an outage", AgentRun.happened, "self._due = set(_WHEN_DUE)", "pass"),
    Mutation(
        "put off the heartbeat after an outage", AgentRun.happened, "self._next_heartbeat = 0.0", "self._due.clear()"
    ),
    Mutation("create a database that was moved away", AgentRun.happened, "self._has_registered = True", "pass"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_these_rules_is_noticed(bug: Mutation) -> None:
    assert is_noticed(bug, RULES)
