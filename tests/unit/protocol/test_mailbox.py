"""What waits for subtasks by the durable records, and what is left when it is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coord_control.ids import Epoch, SubtaskIndex
from coord_control.protocol.mailbox import drop, mailboxes
from coord_control.protocol.records import Begin, Record
from coord_control.protocol.recovery import Facts, Inputs, recover
from tests.core_kit import OP, ack, begin, events, names

S0, S1 = SubtaskIndex(0), SubtaskIndex(1)


def facts(*records: Record, committed: int, planned: int | None = None) -> Facts:
    return Facts(records, Epoch(committed), Epoch(committed if planned is None else planned))


def holding(record: Begin, **held: str) -> Begin:
    return replace(record, held={SubtaskIndex(int(key[1:])): events(words) for key, words in held.items()})


def words(inputs: Inputs) -> dict[int, str]:
    return {subtask: names(batches) for subtask, batches in inputs.items()}


def dropped(found: Facts, subtask: SubtaskIndex) -> tuple[Facts, str]:
    result = drop(found, OP, subtask)
    assert result is not None
    return replace(found, records=(*found.records, result[0])), names(result[1])


def test_an_operator_without_records_has_no_mailboxes() -> None:
    assert mailboxes(facts(committed=3), OP) == {}
    assert drop(facts(committed=3), OP, S0) is None


def test_what_was_not_consumed_and_what_was_held_waits_as_a_recovery_finds_it() -> None:
    found = facts(holding(begin(3, inputs={0: "a", 1: "b"}), s1="c"), ack(3, 0), committed=3)
    assert words(mailboxes(found, OP)) == {1: "b c"} == words(recover(found, OP).mailboxes)


@pytest.mark.parametrize("planned", [3, 4])
def test_a_dropped_mailbox_is_empty_for_each_recovery_and_the_others_are_as_they_were(planned: int) -> None:
    found = facts(holding(begin(3, inputs={0: "a", 1: "b"}), s0="d", s1="c"), committed=3, planned=planned)
    after, gone = dropped(found, S1)
    assert gone == "b c"
    recovered = recover(after, OP)
    assert words(recovered.mailboxes) == {0: "a d"} == words(mailboxes(after, OP))
    assert recovered.coordinator_state == recover(found, OP).coordinator_state
    assert drop(after, OP, S1) is None


def test_inputs_of_a_planned_epoch_are_dropped_when_no_attempt_has_completed_with_them() -> None:
    found = facts(begin(3), begin(4, inputs={0: "a", 1: "b"}), committed=3, planned=4)
    after, gone = dropped(found, S1)
    replay = recover(after, OP).replay
    assert gone == "b"
    assert replay is not None
    assert words(replay.inputs) == {0: "a"}


def test_inputs_that_an_ack_of_a_planned_epoch_has_consumed_stay_for_its_next_run() -> None:
    found = facts(holding(begin(4, inputs={0: "a"}), s0="b"), ack(4, 0), committed=3, planned=4)
    after, gone = dropped(found, S0)
    replay = recover(after, OP).replay
    assert gone == "b"
    assert replay is not None
    assert words(replay.inputs) == {0: "a"}
    assert drop(after, OP, S0) is None


def test_a_begin_of_an_epoch_that_spark_has_not_planned_does_not_count() -> None:
    found = facts(begin(3, inputs={1: "b"}), begin(4, inputs={1: "later"}), committed=3)
    assert words(mailboxes(found, OP)) == {1: "b"}
