"""What an attempt does with a chunk of rows, and what it refuses of what a function yields."""

from __future__ import annotations

import warnings
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructType

from coord_control.errors import OutputInvalid
from coord_control.spark.worker.chunks import ArrowChunks, Chunks, PandasChunks, items_of, wrong_item

SCHEMA: Final = StructType().add("key", StringType()).add("value", LongType())
KINDS: Final[list[Chunks]] = [ArrowChunks(SCHEMA), PandasChunks(SCHEMA)]
TABLE: Final[dict[str, list[Any]]] = {"key": ["a", "b"], "value": [1, None]}


def chunk_of(kind: Chunks, **columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict(columns) if isinstance(kind, ArrowChunks) else pd.DataFrame(columns)


@pytest.mark.parametrize("kind", KINDS)
def test_the_subtask_is_read_from_the_last_column_which_is_dropped(kind: Chunks) -> None:
    chunk = chunk_of(kind, key=["a", "b"], subtask=[3, 3])
    assert (kind.rows(chunk), kind.subtask(chunk)) == (2, 3)
    rest = kind.own_rows(chunk, 3)
    assert pa.table(rest).to_pydict() == {"key": ["a", "b"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subtasks", [[3, 4], [4, 3], [4, 4]])
def test_rows_of_another_subtask_are_noticed(kind: Chunks, subtasks: list[int]) -> None:
    assert kind.own_rows(chunk_of(kind, key=["a", "b"], subtask=subtasks), 3) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("subtasks", "keys"), [([3, 3], "ab"), ([7, 7], ""), ([3, 7], "a"), ([7, 3], "b"), ([3, 7, 3, 7], "ac")]
)
def test_rows_that_only_wake_the_subtask_are_left_out(kind: Chunks, subtasks: list[int], keys: str) -> None:
    chunk = chunk_of(kind, key=list("abcd")[: len(subtasks)], subtask=subtasks)
    rest = kind.own_rows(chunk, 3, waking=7)
    assert pa.table(rest).to_pydict() == {"key": list(keys)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subtasks", [[3, 4], [7, 4], [4, 7], [4, 4], [3, 7, 4], [7, 3, 4], [8, 8]])
def test_rows_of_another_subtask_are_noticed_among_those_that_wake(kind: Chunks, subtasks: list[int]) -> None:
    chunk = chunk_of(kind, key=list("abc")[: len(subtasks)], subtask=subtasks)
    assert kind.own_rows(chunk, 3, waking=7) is None


def test_of_a_part_of_a_chunk_pandas_does_not_warn() -> None:
    rest = PandasChunks(SCHEMA).own_rows(pd.DataFrame({"value": [1, 0], "subtask": [3, 7]}), 3, waking=7)
    assert rest is not None
    with warnings.catch_warnings(action="error"):
        rest["value"] = 2
    assert (list(rest.index), str(rest["value"].dtype)) == ([0], "int64")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_knows_its_chunks(kind: Chunks) -> None:
    for other in KINDS:
        chunk = chunk_of(other, **TABLE)
        assert kind.is_chunk(chunk) == (kind is other)
    assert not kind.is_chunk(pa.table(TABLE))


@pytest.mark.parametrize(
    ("columns", "misfit"),
    [
        (TABLE, None),
        ({"other": ["a"], "names": [1]}, None),  # by position
        ({"key": pa.array(["a"], pa.large_string()), "value": [1]}, None),
        ({"key": [None], "value": [None]}, None),
        ({"key": ["a"]}, "1 columns ['key'] instead of ['key', 'value']"),
        ({"value": [1], "key": ["a"]}, "int64 in column 'key' instead of string"),
        ({"key": ["a"], "value": [1.5]}, "double in column 'value' instead of int64"),
    ],
)
def test_a_record_batch_needs_the_columns_and_types_of_the_schema(columns: dict[str, Any], misfit: str | None) -> None:
    assert ArrowChunks(SCHEMA).misfit(pa.RecordBatch.from_pydict(columns)) == misfit


@pytest.mark.parametrize(
    ("frame", "misfit"),
    [
        (pd.DataFrame(TABLE), None),
        (pd.DataFrame({"value": [1], "key": ["a"]}), None),  # by name
        (pd.DataFrame([["a", 1]]), None),  # without names by position
        (pd.DataFrame(), None),
        (pd.DataFrame({"key": ["a"], "value": [1], "more": [2]}), None),
        (
            pd.DataFrame({"more": [2], "key": ["a"], "value": [1]}),
            "['more', 'key', 'value'] instead of ['key', 'value']",
        ),
        (pd.DataFrame({"key": ["a"]}), "['key'] instead of ['key', 'value']"),
        (pd.DataFrame([["a"]]), "[0] instead of ['key', 'value']"),
    ],
)
def test_a_data_frame_needs_the_columns_of_the_schema(frame: pd.DataFrame, misfit: str | None) -> None:
    assert PandasChunks(SCHEMA).misfit(frame) == (misfit and f"the columns {misfit}")


def test_a_function_returns_an_iterator_or_a_list() -> None:
    assert list(items_of("op", iter("ab"), "x")) == list(items_of("op", ["a", "b"], "x")) == ["a", "b"]
    for result, name in ((None, "None"), (pd.DataFrame(), "a pandas.DataFrame"), ({}, "a dict"), ("ab", "a str")):
        with pytest.raises(OutputInvalid, match=rf"'op': the function returned {name} instead of .*: yield each x"):
            items_of("op", result, "x")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (pd.DataFrame(), "yielded a pandas.DataFrame, not X; yield X, or use operator.apply_in_pandas, whose"),
        (pa.RecordBatch.from_pydict({}), "yielded a pyarrow.RecordBatch, not X; yield X, or use operator.apply, whose"),
        (pa.table({}), r"yielded a pyarrow.Table, not X; yield from table.to_batches\(\)"),
        (Row(a=1), "yielded a pyspark.Row, not X; yield X, or use operator.apply_rows, whose"),
        (None, "yielded None, not X; yield X$"),
        (3, "yielded an int, not X; yield X$"),
    ],
)
def test_an_item_of_another_kind_leads_to_the_form_that_takes_it(item: Any, message: str) -> None:
    with pytest.raises(OutputInvalid, match=message):
        raise wrong_item("op", item, "X")
