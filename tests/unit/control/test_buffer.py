"""What waits to be written is bounded, each kind as its worth demands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coord_control.control.agent.buffer import Buffer, CheckpointEnded, CommandEnded, Fact, Sampled
from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.storage.records import CommandState, Outcome
from tests import records_kit as records
from tests.records_kit import subtask_part, with_subtasks


def ended(number: int) -> CheckpointEnded:
    return CheckpointEnded(with_subtasks(records.checkpoint(number), [subtask_part()]))


def outcome(name: str) -> CommandEnded:
    return CommandEnded(name, 1, Outcome(state=CommandState.COMPLETED))


def under_way(number: int, label: str = "") -> CheckpointStatistics:
    return CheckpointStatistics(
        checkpoint=CheckpointId(number), kind=CheckpointKind.CHECKPOINT, triggered_at_seconds=0.0, label=label
    )


def drained(buffer: Buffer) -> list[Fact]:
    facts: list[Fact] = []
    while found := buffer.facts(1):
        buffer.written(found[0])
        facts += found
    return facts


def test_facts_come_out_in_order() -> None:
    buffer = Buffer()
    facts: list[Fact] = [ended(1), outcome("a"), ended(2)]
    for fact in facts:
        buffer.add(fact)
    assert drained(buffer) == facts
    assert len(buffer) == 0


def test_the_oldest_lose_their_detail_first() -> None:
    buffer = Buffer(detailed=1)
    for number in (1, 2, 3):
        buffer.add(ended(number))
    records = [fact.record for fact in drained(buffer) if isinstance(fact, CheckpointEnded)]
    operators = [record.queries[0].operators[0] for record in records]
    assert [len(operator.subtasks) for operator in operators] == [0, 0, 1]
    assert [operator.totals.subtasks for operator in operators] == [1, 1, 1]
    assert (buffer.trimmed, buffer.dropped) == (2, 0)


def test_outcomes_are_never_given_up() -> None:
    buffer = Buffer(facts=2)
    for name in "abc":
        buffer.add(outcome(name))
    buffer.add(ended(1))
    assert [fact.id for fact in drained(buffer) if isinstance(fact, CommandEnded)] == ["a", "b", "c"]
    assert buffer.dropped == 1


def test_of_what_is_under_way_only_the_newest_waits_and_nothing_when_it_has_ended() -> None:
    buffer = Buffer()
    buffer.set_current(under_way(1, "old"))
    buffer.set_current(under_way(1, "new"))
    taken = buffer.take_current()
    assert [each.label for each in taken] == ["new"]
    buffer.set_current(under_way(1, "newer"))
    buffer.put_back(taken)
    assert [each.label for each in buffer.take_current()] == ["newer"]
    buffer.add(ended(1))
    buffer.put_back(taken)
    assert buffer.take_current() == ()


def test_samples_are_given_up_oldest_first_and_counted() -> None:
    buffer = Buffer(samples=2)
    samples = [Sampled((), ()) for _ in range(3)]
    for sample in samples:
        buffer.sample(sample)
    assert buffer.first_sample() is samples[1]
    assert buffer.dropped == 1
    buffer.sample_written(samples[0])  # it was dropped while it was being written
    assert buffer.first_sample() is samples[1]


def test_a_fact_that_was_trimmed_or_dropped_while_it_was_written_takes_no_other_with_it() -> None:
    buffer = Buffer(detailed=1, facts=2)
    buffer.add(ended(1))
    (first,) = buffer.facts(1)
    buffer.add(ended(2))  # trims the first
    buffer.written(first)
    assert [fact.record.id for fact in buffer.facts(10) if isinstance(fact, CheckpointEnded)] == [2]
    (second,) = buffer.facts(1)
    buffer.add(ended(3))
    buffer.add(ended(4))  # drops the second
    buffer.written(second)
    assert [fact.record.id for fact in buffer.facts(10) if isinstance(fact, CheckpointEnded)] == [3, 4]


@given(st.lists(st.sampled_from(["checkpoint", "outcome", "write"]), max_size=60))
def test_it_stays_within_its_bounds_and_counts_what_it_gives_up(steps: list[str]) -> None:
    buffer = Buffer(detailed=3, facts=6)
    added = written = outcomes = 0
    for number, step in enumerate(steps):
        if step == "write":
            if facts := buffer.facts(1):
                outcomes -= isinstance(facts[0], CommandEnded)
                buffer.written(facts[0])
                written += 1
            continue
        added += 1
        outcomes += step == "outcome"
        buffer.add(ended(number) if step == "checkpoint" else outcome(str(number)))
        facts = buffer.facts(100)
        assert sum(fact.without_detail() is not None for fact in facts) <= 3
        assert len(facts) <= max(6, outcomes)
        assert added == written + len(facts) + buffer.dropped
