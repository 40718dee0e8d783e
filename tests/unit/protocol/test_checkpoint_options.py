"""The options of a job's checkpoints: defaults, ranges, and the interval that is kept."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coord_control.protocol.scheduler import checkpoint_options
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions


def test_by_default_nothing_is_periodic_and_a_failed_checkpoint_fails_no_job() -> None:
    options = CheckpointOptions()
    assert (options.interval_seconds, options.period_seconds) == (None, None)
    assert options.tolerable_consecutive_failures is None


def test_the_other_defaults_are_those_of_the_table() -> None:
    rows = [line for line in (checkpoint_options.__doc__ or "").splitlines() if line.startswith("| ``")]
    table = {cells[1].strip().strip("`"): cells[-2].strip() for cells in (row.split("|") for row in rows)}
    defaults = {field: getattr(CheckpointOptions(), field) for field in table}
    shown = {field: "off" if field == "interval_seconds" else f"{value}" for field, value in defaults.items()}
    assert table == {field: text.removesuffix(".0") for field, text in shown.items()}
    assert set(table) == set(CheckpointOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    "option",
    [
        {"interval_seconds": 0.009},
        {"interval_seconds": math.nan},
        {"timeout_seconds": 0},
        {"timeout_seconds": math.inf},
        {"min_pause_seconds": -1},
        {"max_concurrent": 0},
        {"tolerable_consecutive_failures": -1},
        {"retained": 0},
        {"history_size": 0},
        {"queue_limit": 0},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_its_name(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} is .*; it must be a number of at least"):
        CheckpointOptions(**option)


def test_the_smallest_values_are_accepted() -> None:
    CheckpointOptions(
        interval_seconds=0.01,
        timeout_seconds=0.01,
        tolerable_consecutive_failures=0,
        history_size=1,
        queue_limit=1,
    )


def test_an_interval_shorter_than_the_pause_is_raised_to_it() -> None:
    assert CheckpointOptions(interval_seconds=5, min_pause_seconds=8).period_seconds == 8
    assert CheckpointOptions(interval_seconds=9, min_pause_seconds=8).period_seconds == 9
