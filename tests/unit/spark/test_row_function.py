"""Rows in, rows out: what is taken, in which portions, and which value is named when one does not fit."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import DateType, DecimalType, LongType, StringType, StructType, TimestampType

from coord_control.errors import OutputInvalid
from coord_control.spark.worker.row_function import RowFunction
from coord_control.spark.worker.subtask import Subtask

GIVEN: Final = StructType().add("value", LongType())
WANTED: Final = StructType().add("key", StringType(), nullable=False).add("value", LongType())


def made(yielded: list[Any], wanted: StructType = WANTED) -> list[pa.RecordBatch]:
    """What a function makes that yields these items."""

    def function(subtask: Subtask[Any], rows: Iterator[Row]) -> Iterator[Any]:
        list(rows)
        yield from yielded

    return list(called(function, wanted))


def called(function: Any, wanted: StructType = WANTED, *, batches: int = 2) -> Iterator[pa.RecordBatch]:
    subtask: Any = None  # it is only passed on
    given = (pa.RecordBatch.from_pydict({"value": [2 * n, 2 * n + 1]}) for n in range(batches))
    return RowFunction("op", function, GIVEN, wanted)(subtask, given)


def test_the_function_gets_rows_and_reads_batches_as_it_needs_them() -> None:
    def first(subtask: Subtask[Any], rows: Iterator[Row]) -> Iterator[Row]:
        row = next(rows)
        assert row == Row(value=0)
        yield Row(key="first", value=row.value)
        yield from (Row(key="rest", value=row.value) for row in rows)

    (batch,) = called(first)
    assert batch.to_pydict() == {"key": ["first", "rest", "rest", "rest"], "value": [0, 1, 2, 3]}


def test_rows_tuples_and_dicts_are_taken() -> None:
    (batch,) = made([Row(key="a", value=1), ("b", 2), {"value": 3, "key": "c"}, {"key": "d"}])
    assert batch.to_pydict() == {"key": ["a", "b", "c", "d"], "value": [1, 2, 3, None]}


def test_many_rows_leave_in_portions() -> None:
    read: list[int] = []

    def many(subtask: Subtask[Any], rows: Iterator[Row]) -> Iterator[tuple[str, int]]:
        for number in range(25_000):
            read.append(number)
            yield "k", number

    batches = called(many)
    assert next(batches).num_rows == len(read) == 10_000
    assert [batch.num_rows for batch in batches] == [10_000, 5_000]


def test_nothing_yielded_is_no_batch() -> None:
    assert made([]) == []


def test_a_dict_that_is_filled_again_is_another_row_each_time() -> None:
    def same(subtask: Subtask[Any], rows: Iterator[Row]) -> Iterator[dict[str, Any]]:
        out: dict[str, Any] = {"key": "k"}
        for row in rows:
            out["value"] = row.value
            yield out

    (batch,) = called(same)
    assert batch.to_pydict()["value"] == [0, 1, 2, 3]


@pytest.fixture
def lord_howe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine in a time zone that repeats half an hour at the end of its summer."""
    monkeypatch.setenv("TZ", "Australia/Lord_Howe")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("lord_howe")
def test_the_second_of_two_repeated_hours_is_taken_for_the_first_as_everywhere_in_pyspark() -> None:
    schema = StructType().add("moment", TimestampType())
    times = [dt.datetime(2024, 4, 6, 14, minute, tzinfo=dt.UTC) for minute in (40, 59)]
    times += [dt.datetime(2024, 4, 6, 15, minute, tzinfo=dt.UTC) for minute in (10, 29)]
    seen: list[str] = []

    def passed(subtask: Subtask[Any], rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            seen.append(row.moment.isoformat())
            yield row

    given = pa.RecordBatch.from_arrays([pa.array(times, pa.timestamp("us", "UTC"))], ["moment"])
    subtask: Any = None
    (batch,) = RowFunction("op", passed, schema, schema)(subtask, iter([given]))
    assert batch.column(0).to_pylist() == [*times[:2], *(time - dt.timedelta(minutes=30) for time in times[2:])]
    assert seen == ["2024-04-07T01:40:00", "2024-04-07T01:59:00", "2024-04-07T01:40:00", "2024-04-07T01:59:00"]


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (("a",), r"yielded a tuple of 1 values for the columns \['key', 'value'\]; yield one value for each column"),
        (Row(key="a", value=1, more=2), "yielded a Row of 3 values for the columns"),
        (
            {"key": "a", "valeu": 1},
            r"yielded a dict with \['valeu'\], which are not among the columns .*; correct the key",
        ),
        (["a", 1], "yielded a list, not Row, tuple or dict; yield Row, tuple or dict"),
        (None, "yielded None, not Row, tuple or dict"),
        (
            ("a", "x" * 100),
            r"column 'value' \(bigint\) cannot hold 'x{79}\.\.\., a str: .*; convert it in the function",
        ),
        (("a", 2**63), r"column 'value' \(bigint\) cannot hold 9223372036854775808, an int"),
        ((None, 1), r"column 'key' \(string not null\) cannot hold None: .* must not be None"),
    ],
)
def test_an_item_that_does_not_fit_is_named(item: Any, problem: str) -> None:
    with pytest.raises(OutputInvalid, match=rf"operator 'op': .*{problem}"):
        made([("good", 1), item, ("good", 2)])


@pytest.mark.parametrize(
    ("type_", "value", "kind"),
    [
        (TimestampType(), dt.date(2024, 1, 1), "timestamp"),
        (DateType(), "2024-01-01", "date"),
        (DecimalType(4, 2), 1.5, "decimal"),
        (DecimalType(4, 2), Decimal("123.45"), "decimal"),
    ],
)
def test_a_value_of_another_type_is_named(type_: Any, value: Any, kind: str) -> None:
    with pytest.raises(
        OutputInvalid, match=rf"column 'it' \({kind}.*\) cannot hold .*; convert it .* or correct schema="
    ):
        made([(value,)], StructType().add("it", type_))


def test_a_function_without_yield_is_refused() -> None:
    with pytest.raises(OutputInvalid, match=r"returned None instead of an iterator; .* yield each Row, tuple or dict"):
        list(called(lambda subtask, rows: None))
