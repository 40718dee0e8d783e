"""Durations and gateways as drawings."""

from __future__ import annotations

from typing import Any

from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    GatewayRecord,
    Percentiles,
)
from coord_control.ui.charts import MOST_GATEWAYS, DurationChart, durations_of, gateways_of
from tests import records_kit as records


def checkpoint(number: int, seconds: float | None, **changes: Any) -> CheckpointRecord:
    return records.checkpoint(number, duration_seconds=seconds, **changes)


def drawn(*checkpoints: CheckpointRecord, spread: Percentiles | None = None) -> DurationChart:
    found = durations_of(checkpoints, spread or Percentiles())
    assert found is not None
    return found


def test_the_oldest_stands_left_and_those_under_way_are_left_out() -> None:
    under_way = checkpoint(9, None, state=CheckpointState.IN_PROGRESS)
    chart = drawn(under_way, checkpoint(8, 2.0), checkpoint(7, 1.0))
    assert [column.checkpoint for column in chart.columns] == [7, 8]
    first, second = chart.columns
    assert first.x < second.x
    assert second.height == 2 * first.height
    assert first.y + first.height == second.y + second.height == chart.foot


def test_kinds_and_failures_look_different() -> None:
    chart = drawn(
        checkpoint(3, 1.0, state=CheckpointState.FAILED, kind=CheckpointKind.SAVEPOINT),
        checkpoint(2, 1.0, kind=CheckpointKind.SAVEPOINT),
        checkpoint(1, 1.0, state=CheckpointState.DISCARDED),
    )
    assert [column.kind for column in chart.columns] == ["completed", "savepoint", "failed"]
    assert chart.columns[0].text == "checkpoint 1: discarded, 1.0 s"
    assert chart.description.startswith("3 checkpoints, from 1 to 3; 1 failed")


def test_percentiles_are_lines_that_do_not_cover_each_other() -> None:
    one = checkpoint(1, 4.0)
    far = drawn(one, spread=Percentiles(count=9, p50=1.0, p99=4.0))
    near = drawn(one, spread=Percentiles(count=9, p50=3.9, p99=4.0))
    beyond = drawn(one, spread=Percentiles(count=9, p50=1.0, p99=400.0))
    assert [mark.label for mark in far.marks] == ["p50", "p99"]
    assert [mark.label for mark in near.marks] == ["p50, p99"]
    assert [mark.label for mark in beyond.marks] == ["p50"]


def test_nothing_is_drawn_before_the_first_end() -> None:
    assert durations_of([], Percentiles()) is None
    assert durations_of([checkpoint(1, None)], Percentiles()) is None


def test_gateways_are_squares_of_three_kinds() -> None:
    gateways = gateways_of(
        [GatewayRecord(subtask=0), GatewayRecord(subtask=1, is_open=False), GatewayRecord(subtask=2, blocked=4)]
    )
    assert [cell.kind for cell in gateways.cells] == ["open", "closed", "blocked"]
    assert [gateway.subtask for gateway in gateways.notable] == [1, 2]
    assert gateways.cells[2].text == "subtask 2: open, 4 events blocked"
    assert len({(cell.x, cell.y) for cell in gateways.cells}) == 3


def test_the_first_gateways_are_drawn_and_all_are_looked_at() -> None:
    gateways = gateways_of([GatewayRecord(subtask=index, blocked=index // 299) for index in range(300)])
    assert (len(gateways.cells), gateways.left_out) == (MOST_GATEWAYS, 100)
    assert [gateway.subtask for gateway in gateways.notable] == [299]
    assert max(cell.y for cell in gateways.cells) < gateways.height
    assert max(cell.x for cell in gateways.cells) < gateways.width


def test_an_operator_without_gateways_has_no_drawing() -> None:
    assert gateways_of([]).cells == ()
