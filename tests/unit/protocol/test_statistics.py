"""Statistics of checkpoints: what is summed up, what a cut becomes, and the plain values of it all."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from coord_control.ids import CheckpointId, CheckpointKind, Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.control_events import Seal
from coord_control.protocol.cut import OperatorCut, SubtaskCut
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.records import EventBatch
from coord_control.protocol.recovery import Outbox
from coord_control.protocol.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    CheckpointTotals,
    OperatorStatistics,
    QueryStatistics,
    SubtaskStatistics,
    offsets_within_limit,
    operator_statistics,
    to_json,
)

ZERO, ONE, TWO = map(SubtaskIndex, range(3))
OPERATOR = OperatorStatistics(
    OperatorUid("op"),
    asked_seconds=0.1,
    snapshot_seconds=0.4,
    coordinator_bytes=1000,
    subtasks=(
        SubtaskStatistics(
            ZERO, passed_seconds=2.0, state_bytes=10, blocked_events=3, blocked_seconds=1.5, down_bytes=5, up_bytes=2
        ),
        SubtaskStatistics(ONE, passed_seconds=None, state_bytes=20, blocked_events=4, blocked_seconds=0.5),
    ),
)
QUERY = QueryStatistics(
    QueryName("q"),
    boundary=Epoch(7),
    boundary_seconds=2.0,
    pin_seconds=0.01,
    files=3,
    file_bytes=50_000,
    linked_bytes=20_000,
    copied_bytes=10_000,
    operators=(OPERATOR,),
)
PLAIN = QueryStatistics(QueryName("plain"), files=1, file_bytes=7, copied_bytes=7)
CHECKPOINT = CheckpointStatistics(
    checkpoint=CheckpointId(3),
    kind=CheckpointKind.SAVEPOINT,
    triggered_at_seconds=1e9,
    metadata_bytes=100_000,
    queries=(QUERY, PLAIN),
)


def batch(payload: bytes) -> EventBatch:
    return EventBatch(0, 1, payload)


# Sums.


def test_what_an_operator_has_in_all() -> None:
    assert (OPERATOR.passed_subtasks, OPERATOR.latest_passed_seconds) == (1, 2.0)
    assert OPERATOR.channel_bytes == 5 + 2
    assert OPERATOR.state_bytes == 1000 + 10 + 20 + 7
    assert (OPERATOR.blocked_events, OPERATOR.blocked_seconds) == (7, 1.5)


def test_an_operator_that_nothing_is_known_of() -> None:
    unknown = OperatorStatistics(OperatorUid("op"))
    assert (unknown.passed_subtasks, unknown.latest_passed_seconds, unknown.blocked_seconds) == (0, None, 0.0)


def test_a_query_has_its_files_and_its_operators_and_part_of_them_was_there_already() -> None:
    assert QUERY.state_bytes == 50_000 + 1037
    assert QUERY.new_bytes == 20_000 + 10_000 + 1037


def test_a_checkpoint_has_its_metadata_and_its_queries() -> None:
    assert CHECKPOINT.state_bytes == 100_000 + 51_037 + 7
    assert replace(CHECKPOINT, kind=CheckpointKind.CHECKPOINT).new_bytes == 100_000 + 31_037 + 7
    assert CHECKPOINT.new_bytes == CHECKPOINT.state_bytes  # a savepoint shares nothing
    assert (CHECKPOINT.linked_bytes, CHECKPOINT.copied_bytes, CHECKPOINT.channel_bytes) == (20_000, 10_007, 7)
    assert (CHECKPOINT.subtasks, CHECKPOINT.passed_subtasks, CHECKPOINT.latest_passed_seconds) == (2, 1, 2.0)
    assert (CHECKPOINT.blocked_events, CHECKPOINT.blocked_seconds, CHECKPOINT.snapshot_seconds) == (7, 1.5, 0.4)


def test_a_job_without_operators_waits_for_nobody() -> None:
    statistics = replace(CHECKPOINT, queries=(PLAIN,))
    assert (statistics.subtasks, statistics.latest_passed_seconds) == (0, None)
    assert (statistics.snapshot_seconds, statistics.blocked_seconds) == (0.0, 0.0)


def test_a_coordinator_that_has_not_answered_has_taken_no_time_yet() -> None:
    query = replace(QUERY, operators=(OperatorStatistics(OperatorUid("op")),))
    assert replace(CHECKPOINT, queries=(query,)).snapshot_seconds == 0.0


def test_without_its_subtasks_a_checkpoint_has_the_same_totals() -> None:
    light = replace(CHECKPOINT, queries=tuple(query.without_subtasks() for query in CHECKPOINT.queries))
    assert not any(operator.subtasks for operator in light.operators)
    assert light.totals() == CHECKPOINT.totals()
    assert light.latest_passed_seconds == CHECKPOINT.latest_passed_seconds
    totals = CheckpointTotals(**CHECKPOINT.totals())
    assert (totals.label, totals.state_bytes, totals.passed_subtasks) == (CHECKPOINT.label, CHECKPOINT.state_bytes, 1)


# Cuts.


def test_a_cut_says_what_each_subtask_left_and_waited_for() -> None:
    cut = OperatorCut(
        operator=OperatorUid("op"),
        coordinator_state=Seal("job", {"job": 7}).seal(b"12345"),
        states={ZERO: b"abc", ONE: None},
        down={ONE: (batch(b"12"), batch(b"3"))},
        up=(Outbox(ONE, 4, (batch(b"1"),)), Outbox(ZERO, 5, (batch(b"12"),)), Outbox(ONE, 6, (batch(b"1234"),))),
        subtasks=(SubtaskCut(ZERO, 2.0, 3, 1.5, 1.25), SubtaskCut(ONE, 1.0), SubtaskCut(TWO, 0.5)),
        asked_seconds=0.1,
        snapshot_seconds=0.4,
    )
    assert operator_statistics(cut) == OperatorStatistics(
        OperatorUid("op"),
        asked_seconds=0.1,
        snapshot_seconds=0.4,
        coordinator_bytes=28,
        applied_events={"job": 7},
        subtasks=(
            SubtaskStatistics(ZERO, 2.0, 3, 3, 1.5, down_bytes=0, up_bytes=2, ack_seconds=1.25),
            SubtaskStatistics(ONE, 1.0, 0, 0, 0.0, down_bytes=3, up_bytes=5),
            SubtaskStatistics(TWO, 0.5),
        ),
    )


def test_a_cut_of_a_query_that_does_not_run_is_at_its_boundary_already() -> None:
    statistics = operator_statistics(OperatorCut(OperatorUid("op"), None, {TWO: b"ab"}, {ZERO: (batch(b"1"),)}, ()))
    assert statistics.subtasks == (
        SubtaskStatistics(ZERO, 0.0, down_bytes=1),
        SubtaskStatistics(TWO, 0.0, state_bytes=2),
    )
    assert (statistics.passed_subtasks, statistics.coordinator_bytes) == (2, 0)


# Plain values.


def test_a_subtask_in_json() -> None:
    assert to_json(OPERATOR.subtasks[1]) == {
        "subtask": 1,
        "passed_seconds": None,
        "state_bytes": 20,
        "blocked_events": 4,
        "blocked_seconds": 0.5,
        "down_bytes": 0,
        "up_bytes": 0,
        "ack_seconds": None,
    }


def test_derived_values_stand_beside_the_others() -> None:
    [query, _] = to_json(CHECKPOINT)["queries"]
    assert (query["state_bytes"], query["new_bytes"], query["copied_bytes"]) == (51_037, 31_037, 10_000)
    assert query["operators"][0]["channel_bytes"] == 7
    assert to_json(CHECKPOINT)["passed_subtasks"] == 1


def test_operators_are_shown_once_below_their_query() -> None:
    assert "operators" not in to_json(CHECKPOINT)


def test_enums_are_shown_by_their_codes_and_all_of_it_is_json() -> None:
    failed = replace(CHECKPOINT, status=CheckpointStatus.FAILED, reason=FailureReason.DISK_FULL)
    plain = to_json(failed)
    assert (plain["kind"], plain["status"], plain["reason"]) == ("savepoint", "failed", "disk_full")
    assert json.loads(json.dumps(plain)) == plain


def test_every_size_and_duration_has_its_unit_in_its_name() -> None:
    for statistics in (CHECKPOINT, QUERY, OPERATOR, OPERATOR.subtasks[0]):
        for name, value in to_json(statistics).items():
            if isinstance(value, float):
                assert name.endswith("seconds")


def test_offsets_that_are_short_are_kept_whole() -> None:
    offsets: dict[str, dict[str, Any]] = {"q": {"kafka": {"topic": {"0": 12}}}, "plain": {}, "late": {"rate": None}}
    assert offsets_within_limit(offsets) == offsets


def test_of_offsets_that_are_long_together_the_longest_are_left_out() -> None:
    partitions = {"kafka": {"topic": {str(number): number for number in range(1000)}}}
    wide = {"kafka": {"topic": {str(number): number for number in range(2000)}}}
    kept = offsets_within_limit({"wide": wide, "q": partitions, "plain": {"rate": 3}})
    assert kept == {"wide": {"omitted": len(json.dumps(wide))}, "q": partitions, "plain": {"rate": 3}}
    assert len(json.dumps(kept)) < 17_000
