"""The table of measures: complete, consistent with what is stored, and readable."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from coord_control.control.measure import Measure, Place, Unit, shown
from coord_control.control.measures import CHECKPOINT, OPERATOR, QUERY, SUBTASK, OperatorPart, QueryPart
from coord_control.protocol.statistics import (
    CheckpointFacts,
    CheckpointTotals,
    OperatorStatistics,
    QueryStatistics,
    SubtaskStatistics,
)
from coord_control.storage.records import CheckpointSummary
from tests import records_kit as records
from tests.records_kit import operator_part, query_part, subtask_part

TABLES: dict[str, tuple[Measure[Any], ...]] = {
    "checkpoint": CHECKPOINT,
    "query": QUERY,
    "operator": OPERATOR,
    "subtask": SUBTASK,
}


def attributes(measures: tuple[Measure[Any], ...]) -> set[str]:
    """The attributes that the measures show by themselves."""
    return {(each.pick or each.name).rpartition(".")[2] for each in measures if not callable(each.pick)}


def test_every_statistics_field_is_shown() -> None:
    identity = {each.name for each in fields(CheckpointFacts)} - {"duration_seconds", "metadata_bytes"}
    assert {each.name for each in fields(CheckpointTotals)} - identity <= attributes(CHECKPOINT)
    shown_otherwise = {"operators", "offsets"}
    assert {each.name for each in fields(QueryStatistics)} - shown_otherwise <= attributes(QUERY)
    shown_otherwise = {"subtasks", "totals", "applied_events"}
    assert {each.name for each in fields(OperatorStatistics)} - shown_otherwise <= attributes(OPERATOR)
    assert {each.name for each in fields(SubtaskStatistics)} <= attributes(SUBTASK)


def test_a_metric_is_a_stored_total_and_a_summary_is_one_that_the_database_computes() -> None:
    totals = {each.name for each in fields(CheckpointTotals)}
    assert {each.name for each in shown(CHECKPOINT, Place.METRIC)} <= totals
    summaries = {each.summary or each.name for each in shown(CHECKPOINT, Place.SUMMARY)}
    assert summaries == {each.name for each in fields(CheckpointSummary)} - {"counts", "window"}


@pytest.mark.parametrize("table", TABLES)
def test_names_and_titles_are_used_once_in_a_place_and_meanings_are_sentences(table: str) -> None:
    for place in Place:
        measures = shown(TABLES[table], place)
        assert len({each.name for each in measures}) == len({each.title for each in measures}) == len(measures)
    for each in TABLES[table]:
        assert each.meaning[0].isupper()
        assert each.meaning.endswith(".")
        assert ("{}" in each.meaning) == (table == "checkpoint")


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.SECONDS, 0.25, "250 ms"),
        (Unit.BYTES, 1234.4, "1.2 kB"),
        (Unit.COUNT, 1234, "1,234"),
        (Unit.ORDINAL, 1234, "1234"),
        (Unit.TEXT, "q", "q"),
        (Unit.COUNT, "1 of 2", "1 of 2"),
        (Unit.SECONDS, None, ""),
    ],
)
def test_values_are_written_by_their_unit(unit: Unit, value: Any, text: str) -> None:
    assert unit.text(value) == text


def test_the_largest_is_first_after_what_should_be_known_and_is_not() -> None:
    parts = [subtask_part(0, passed_seconds=1.0, ack_seconds=1.0), subtask_part(1), subtask_part(2, passed_seconds=2.0)]
    by = {each.name: each for each in SUBTASK}
    assert [each.subtask for each in sorted(parts, key=by["passed_seconds"].rank)] == [1, 2, 0]
    assert [each.subtask for each in sorted(parts, key=by["ack_seconds"].rank)] == [0, 1, 2]
    assert by["passed_seconds"].text(parts[1]) == "not passed"
    assert by["closed_after"].text(subtask_part(passed_seconds=3.0, blocked_seconds=1.0)) == "2.0 s"


@pytest.mark.parametrize(("reason", "unreached", "unasked"), [(None, "", ""), ("expired", "not reached", "not asked")])
def test_only_a_checkpoint_that_failed_lacks_something(reason: str | None, unreached: str, unasked: str) -> None:
    record = records.checkpoint(reason=reason)
    boundary = next(each for each in QUERY if each.name == "boundary_seconds")
    assert boundary.text(QueryPart(record, query_part())) == unreached
    answer = next(each for each in OPERATOR if each.name == "snapshot_seconds")
    assert answer.text(OperatorPart(record, query_part(), operator_part())) == unasked


def test_sums_over_parts_are_unknown_without_the_parts() -> None:
    values = {each.name: each.value for each in CHECKPOINT}
    alone = records.checkpoint(state_bytes=7)
    assert (values["state_bytes"](alone), values["pin_seconds"](alone), values["coordinator_bytes"](alone)) == (
        7,
        None,
        None,
    )
    parts = (query_part(operators=(operator_part(coordinator_bytes=3),), pin_seconds=1.0), query_part("p"))
    whole = records.checkpoint(queries=parts)
    assert (values["pin_seconds"](whole), values["coordinator_bytes"](whole)) == (1.0, 3)
