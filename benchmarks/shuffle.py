"""What the shuffle of an operator costs, and its forms: the same epoch in five ways, in turns, in one session.

*without*: mapInArrow where the rows are read. *shuffled*: repartitionById before it, as an operator does. *operator*:
an operator that has nothing to do. *pandas* and *rows*: the same by apply_in_pandas and apply_rows, with the same work.
Each runs in short segments, one after the other, in reverse order every other time; so what disturbs the machine
disturbs all of them. The first three run with few and with many rows in an epoch.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Final

import pandas as pd
from pyspark.sql import Row, SparkSession

import coord_control as cc
from benchmarks import query
from benchmarks.report import Goal, at_most, main, median
from benchmarks.session import session

_WARM_UP: Final = 3  #: epochs of each segment that do not count
_SEGMENT: Final = 12  #: epochs of each segment that count
_SEGMENTS: Final = 6
_FEW: Final = query.ROWS
_MANY: Final = 10 * query.ROWS
_FORMS: Final = {"operator": "apply", "pandas": "apply_in_pandas", "rows": "apply_rows"}
_VARIANTS: Final = (
    *itertools.product(("without", "shuffled", "operator"), (_FEW, _MANY)),
    *itertools.product(("pandas", "rows"), (_FEW,)),
)


def shuffle(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Epochs with and without the shuffle of an operator, and in its three forms."""
    segments, epochs, warm_up = (1, 3, 1) if quick else (_SEGMENTS, _SEGMENT, _WARM_UP)
    seconds: dict[tuple[str, int], list[float]] = {variant: [] for variant in _VARIANTS}
    rounds: dict[tuple[str, int], list[float]] = {variant: [] for variant in _VARIANTS}
    with session() as spark, tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
        for variant in _VARIANTS:
            _segment(spark, root, *variant, 1, 1)  # compiles, forks workers, imports
        for number in range(segments):
            found = {
                variant: _segment(spark, root, *variant, warm_up, epochs)
                for variant in _VARIANTS[:: -1 if number % 2 else 1]
            }
            for (name, count), durations in found.items():
                seconds[name, count] += durations
                rounds[name, count].append(median(durations) / median(found["without", count]))
    ratios = {variant: median(those) for variant, those in rounds.items()}
    goals = [
        at_most(f"operator, {count:,} rows, median epoch", ratios["operator", count], goal, "x without a shuffle")
        for count, goal in ((_FEW, 2.0), (_MANY, 2.0))
    ]
    return goals, {
        "subtasks": query.SUBTASKS,
        "epochs": {_label(variant): len(durations) for variant, durations in seconds.items()},
        "median_epoch_ms": {_label(variant): round(1000 * median(those), 1) for variant, those in seconds.items()},
        "ratio_to_without": {_label(variant): round(ratio, 3) for variant, ratio in ratios.items()},
        "ratio_of_each_round": {
            _label(variant): [round(each, 3) for each in those] for variant, those in rounds.items()
        },
    }


def _label(variant: tuple[str, int]) -> str:
    name, count = variant
    return f"{name}, {count:,} rows"


def _segment(spark: SparkSession, root: str, name: str, count: int, warm_up: int, epochs: int) -> list[float]:
    """Run one variant for some epochs, from where its last segment stopped; return the seconds of each."""
    place = f"{name}-{count}"
    if name in _FORMS:
        function: Any = {"operator": query.idle, "pandas": _frames, "rows": _rows}[name]
        with cc.Job(place, spark, root=root) as job:
            started = query.start_coordinated(spark, job, query.Silent(), function, form=_FORMS[name], count=count)
            return query.epoch_seconds(started, warm_up, epochs, count)
    start = query.start_plain if name == "shuffled" else query.start_without_shuffle
    started = start(spark, f"{root}/{place}", count=count)
    try:
        return query.epoch_seconds(started, warm_up, epochs, count)
    finally:
        started.stop()


def _frames(subtask: cc.Subtask[query.Memory], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        frame["value"].sum()
        yield frame


def _rows(subtask: cc.Subtask[query.Memory], rows: Iterator[Row]) -> Iterator[Row]:
    total = 0
    for row in rows:
        total += row.value
        yield row


if __name__ == "__main__":
    sys.exit(main("shuffle", shuffle))
