"""Where the parts of a checkpoint lie in its drawing."""

from __future__ import annotations

from typing import Any

from coord_control.storage.records import (
    CheckpointRecord,
    CheckpointState,
    SubtaskRecord,
)
from coord_control.ui.timeline import MOST_SUBTASKS, Lane, Timeline, timeline_of
from tests import records_kit as records
from tests.records_kit import operator_part, query_part, subtask_part

QUERY = query_part(
    query="q",
    boundary=7,
    boundary_seconds=3.0,
    pin_seconds=0.5,
    operators=(operator_part(operator="op", asked_seconds=0.5, snapshot_seconds=0.5),),
)


def checkpoint(**changes: Any) -> CheckpointRecord:
    values: dict[str, Any] = {"duration_seconds": 4.0, "queries": (QUERY,)}
    return records.checkpoint(**values | changes)


def subtask(number: int = 0, **changes: Any) -> SubtaskRecord:
    values: dict[str, Any] = {"passed_seconds": 3.0, "blocked_seconds": 2.0, "ack_seconds": 3.0}
    return subtask_part(operator="op", subtask=number, **{**values, **changes})


def drawn(*subtasks: SubtaskRecord, **changes: Any) -> Timeline:
    found = timeline_of(checkpoint(**changes), subtasks)
    assert found is not None
    return found


def lane(*subtasks: SubtaskRecord, **changes: Any) -> Lane:
    [found] = [each for each in drawn(*subtasks, **changes).lanes if each.kind == "subtask"]
    return found


def test_a_gateway_closes_with_the_coordinators_answer_and_opens_when_its_subtask_has_passed() -> None:
    timeline = drawn(subtask(blocked_events=5))
    found = timeline.lanes[-1]
    assert found.bar is not None
    assert (found.bar.kind, found.bar.label) == ("blocked", "5")
    assert (found.bar.x, found.bar.x + found.bar.width) == (timeline.scale.at(1.0), timeline.scale.at(3.0))
    assert (found.acknowledged, found.opened) == (timeline.scale.at(3.0), timeline.scale.at(3.0))
    assert found.text == (
        "subtask 0: gateway closed after 1.0 s, acknowledged after 3.0 s, opened after 3.0 s, 5 events waited"
    )


def test_a_subtask_that_was_quicker_than_the_coordinator_never_had_its_gateway_closed() -> None:
    timeline = drawn(subtask(passed_seconds=1.0, blocked_seconds=0.0, ack_seconds=0.4))
    found = timeline.lanes[-1]
    assert found.bar is None
    assert (found.acknowledged, found.opened) == (timeline.scale.at(0.4), timeline.scale.at(1.0))


def test_a_subtask_without_an_ack_opens_with_the_commit() -> None:
    found = lane(subtask(ack_seconds=None))
    assert found.acknowledged is None
    assert found.opened is not None
    assert "acknowledged" not in found.text


def failed(*subtasks: SubtaskRecord, asked: float | None = 0.5, took: float | None = 0.5) -> Timeline:
    part = operator_part(operator="op", asked_seconds=asked, snapshot_seconds=took)
    query = query_part(query="q", boundary=7, operators=(part,))
    return drawn(*subtasks, state=CheckpointState.FAILED, queries=(query,))


def test_a_subtask_that_has_not_passed_says_so_and_its_gateway_is_closed_until_the_end() -> None:
    timeline = failed(
        subtask(0), subtask(1, passed_seconds=None, ack_seconds=None, blocked_seconds=3.0, blocked_events=7)
    )
    query, _, passed, missing = timeline.lanes
    assert query.text == "query q: its boundary, the end of epoch 7, was not reached"
    assert (passed.label, passed.is_missing) == ("0", False)
    assert (missing.label, missing.is_missing, missing.opened) == ("1, not passed", True, None)
    assert missing.bar is not None
    assert (missing.bar.kind, missing.bar.label) == ("blocked", "7")
    assert (missing.waits, missing.bar.x) == (timeline.scale.at(1.0), timeline.scale.at(1.0))
    assert missing.bar.x + missing.bar.width == timeline.finished
    assert missing.text == ("subtask 1: gateway closed after 1.0 s, has not passed the boundary, 7 events waited")
    assert timeline.description == (
        "1 of 2 subtasks passed the boundary, the last one subtask 0 of op after 3.0 s. Not passed: subtask 1 of op. "
        "7 events waited behind closed gateways; that of subtask 1 of op was closed longest, for 3.0 s."
    )


def test_a_subtask_that_waits_for_the_coordinator_has_its_ack_and_no_closed_gateway() -> None:
    timeline = failed(subtask(passed_seconds=None, ack_seconds=2.0, blocked_seconds=0.0), took=None)
    _, operator, missing = timeline.lanes
    assert (operator.label, operator.is_missing, operator.bar) == ("op, no answer", True, None)
    assert operator.text == "operator op: its coordinator was asked for its state after 500 ms, no answer"
    assert (missing.bar, missing.waits, missing.opened) == (None, None, None)
    assert missing.acknowledged == timeline.scale.at(2.0)
    assert missing.text == "subtask 0: acknowledged after 2.0 s, has not passed the boundary, 0 events waited"
    assert timeline.description == "None of 1 subtasks has passed its boundary."


def test_a_coordinator_that_was_not_asked_has_not_failed_to_answer() -> None:
    [_, operator, _] = failed(subtask(passed_seconds=None, blocked_seconds=0.0), asked=None, took=None).lanes
    assert (operator.label, operator.text) == ("op", "operator op: its coordinator was not asked for its state")


def test_of_many_that_have_not_passed_the_first_are_named() -> None:
    late = [subtask(number, passed_seconds=None, blocked_seconds=3.0) for number in range(1, 9)]
    assert "subtask 5 of op and 3 more." in failed(subtask(0), *late).description


def test_a_query_at_its_boundary_whose_files_were_not_durable_says_so() -> None:
    query = query_part(query="q", boundary=7, boundary_seconds=3.0, operators=QUERY.operators)
    assert drawn(subtask(), queries=(query,)).lanes[0].text == "query q: at its boundary, epoch 7, after 3.0 s"


def test_queries_and_operators_have_rows_of_their_own_above_their_subtasks() -> None:
    timeline = drawn(subtask(0), subtask(1))
    assert [(each.kind, each.label) for each in timeline.lanes] == [
        ("query", "q"),
        ("operator", "op"),
        ("subtask", "0"),
        ("subtask", "1"),
    ]
    files, state = timeline.lanes[0].bar, timeline.lanes[1].bar
    assert files is not None
    assert state is not None
    assert (files.x, files.x + files.width) == (timeline.scale.at(3.0), timeline.scale.at(3.5))
    assert (state.x, state.x + state.width) == (timeline.scale.at(0.5), timeline.scale.at(1.0))
    tops = [each.y for each in timeline.lanes]
    assert tops == sorted(set(tops))
    assert timeline.finished == timeline.scale.at(4.0)


def test_subtasks_whose_query_is_not_known_stand_at_the_end() -> None:
    timeline = drawn(subtask(0), queries=())
    assert [each.kind for each in timeline.lanes] == ["operator", "subtask"]


def test_the_first_subtasks_are_drawn_and_the_others_counted() -> None:
    many = [subtask(number, passed_seconds=1.0 + number / 100) for number in range(MOST_SUBTASKS + 50)]
    timeline = drawn(*many)
    assert (timeline.shown, timeline.left_out) == (MOST_SUBTASKS, 50)
    assert sum(each.kind == "subtask" for each in timeline.lanes) == MOST_SUBTASKS
    assert f"the last one subtask {MOST_SUBTASKS + 49} of op" in timeline.description
    assert timeline.height < MOST_SUBTASKS * 15  # rows are lower when there are many


def test_nothing_is_drawn_of_a_checkpoint_of_which_nothing_is_known() -> None:
    assert timeline_of(checkpoint(queries=()), ()) is None
    assert timeline_of(checkpoint(queries=(query_part(query="q"),)), ()) is None


def test_a_query_without_operators_has_its_files() -> None:
    query = query_part(query="q", boundary=1, boundary_seconds=0.1, pin_seconds=0.2)
    assert [each.kind for each in drawn(queries=(query,)).lanes] == ["query"]


def test_a_short_stretch_can_still_be_seen() -> None:
    found = lane(subtask(blocked_seconds=0.000_1))
    assert found.bar is not None
    assert found.bar.width == 2.0
