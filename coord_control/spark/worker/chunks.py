"""The chunks in which Spark hands rows to a task and takes them back: Arrow record batches or pandas DataFrames.

An attempt is the same for both (:mod:`.subtask`); here is what it does with a chunk: count its rows, read the subtask
id from its last column, check and drop that column, and look at what the user's function yields. What can be seen to be
wrong there is refused at once and for good; whether values fit their types is left to Spark, which converts them.

Threads: that of a task.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from coord_control.errors import OutputInvalid

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["ArrowChunks", "Chunks", "PandasChunks", "items_of", "kind_of", "wrong_item"]

#: The form of an operator for what its function yields.
_METHODS: Final = {
    "RecordBatch": "apply",
    "DataFrame": "apply_in_pandas",
    "Row": "apply_rows",
    "tuple": "apply_rows",
    "dict": "apply_rows",
}


#: Arrow types of the columns of each type. Spark does not compare them: its code that reads a column of another type
#: fails with the name of one of its methods. Types that are not listed are left to it.
_ARROW: Final[dict[type[DataType], tuple[str, ...]]] = {
    BooleanType: ("bool",),
    ByteType: ("int8",),
    ShortType: ("int16",),
    IntegerType: ("int32",),
    LongType: ("int64",),
    FloatType: ("float",),
    DoubleType: ("double",),
    StringType: ("string", "large_string", "string_view"),
    BinaryType: ("binary", "large_binary", "binary_view"),
    DateType: ("date32[day]",),
}


class Chunks(Protocol):
    """One kind of chunks.

    Attributes:
        schema: of the output.
        item: name of the class of a chunk, for messages.
    """

    @property
    def schema(self) -> StructType: ...

    @property
    def item(self) -> str: ...

    def rows(self, chunk: Any) -> int:
        """Return the number of rows."""

    def subtask(self, chunk: Any) -> int:
        """Return the subtask id of the first row."""

    def own_rows(self, chunk: Any, subtask: int, waking: int | None = None) -> Any:
        """Return the chunk without the column of subtask ids; None if it has rows of another subtask.

        Args:
            chunk: with at least one row; not to be used afterwards.
            waking: what rows have there that only wake the subtask: they are left out, so no row may be left.
        """

    def is_chunk(self, item: Any) -> bool:
        """Return whether ``item`` is a chunk of this kind."""

    def misfit(self, chunk: Any) -> str | None:
        """Return in which way the columns of a chunk of output cannot be those of the schema, or None."""


@dataclass(frozen=True, slots=True)
class ArrowChunks:
    """Record batches: columns of the output count by their position."""

    schema: StructType
    item: str = "pyarrow.RecordBatch"

    def rows(self, chunk: pa.RecordBatch) -> int:
        return int(chunk.num_rows)

    def subtask(self, chunk: pa.RecordBatch) -> int:
        return int(chunk.column(chunk.num_columns - 1)[0].as_py())

    def own_rows(self, chunk: pa.RecordBatch, subtask: int, waking: int | None = None) -> pa.RecordBatch | None:
        compute = importlib.import_module("pyarrow.compute")
        last = chunk.num_columns - 1
        column, rows = chunk.column(last), chunk.select(list(range(last)))
        # Arrow values are compared: for a Python int, pyarrow imports pandas. That takes longer than an epoch, and
        # PySpark's collection of garbage after each task then takes half as long again.
        is_first = compute.equal(column, column[0])
        if (first := column[0].as_py()) not in (subtask, waking):
            return None
        if compute.all(is_first).as_py():
            return rows if first == subtask else rows.slice(0, 0)
        others = column.filter(compute.invert(is_first))
        if {first, others[0].as_py()} != {subtask, waking} or not compute.all(compute.equal(others, others[0])).as_py():
            return None
        return rows.filter(is_first if first == subtask else compute.invert(is_first))

    def is_chunk(self, item: Any) -> bool:
        return isinstance(item, importlib.import_module("pyarrow").RecordBatch)

    def misfit(self, chunk: pa.RecordBatch) -> str | None:
        fields = self.schema.fields
        if chunk.num_columns != len(fields):
            return f"{chunk.num_columns} columns {list(chunk.schema.names)} instead of {self.schema.names}"
        for field, found in zip(fields, chunk.schema.types, strict=True):
            accepted = _ARROW.get(type(field.dataType))
            # Nothing but nulls fits every column.
            if accepted is not None and str(found) not in (*accepted, "null"):
                return f"{found} in column {field.name!r} instead of {accepted[0]}"
        return None


@dataclass(frozen=True, slots=True)
class PandasChunks:
    """DataFrames: columns of the output count by their name if any is a string, as in Spark's ``mapInPandas``."""

    schema: StructType
    item: str = "pandas.DataFrame"

    def rows(self, chunk: pd.DataFrame) -> int:
        return len(chunk)

    def subtask(self, chunk: pd.DataFrame) -> int:
        return int(chunk.iloc[0, -1])

    def own_rows(self, chunk: pd.DataFrame, subtask: int, waking: int | None = None) -> pd.DataFrame | None:
        # In place: of a slice of a DataFrame pandas would warn when the user's function sets a column.
        subtasks = chunk.pop(chunk.columns[-1])
        is_own = subtasks == subtask
        if bool(is_own.all()):
            return chunk
        return chunk[is_own].reset_index(drop=True) if bool((is_own | (subtasks == waking)).all()) else None

    def is_chunk(self, item: Any) -> bool:
        return isinstance(item, importlib.import_module("pandas").DataFrame)

    def misfit(self, chunk: pd.DataFrame) -> str | None:
        names, wanted = list(chunk.columns), self.schema.names
        if not names and not len(chunk):
            return None  # Spark takes a DataFrame without anything for no rows
        # As Spark checks it: further columns behind those of the schema are dropped.
        first = names[: len(wanted)]
        is_named = any(isinstance(name, str) for name in names)
        fits = set(first) == set(wanted) if is_named else len(first) == len(wanted)
        return None if fits else f"the columns {names} instead of {wanted}"


def kind_of(value: Any) -> str:
    """Return the class of a value, for messages."""
    if value is None:
        return "None"
    package, name = type(value).__module__.partition(".")[0], type(value).__name__
    full = name if package == "builtins" else f"{package}.{name}"
    return f"{'an' if full[0].lower() in 'aeiou' else 'a'} {full}"


def items_of(operator: str, result: Any, item: str) -> Iterator[Any]:
    """Return an iterator of what the user's function has returned.

    Args:
        item: what it should yield, for the message.

    Raises:
        OutputInvalid: it has returned something else.
    """
    if isinstance(result, Iterator | list):
        return iter(result)
    raise OutputInvalid(
        operator,
        f"the function returned {kind_of(result)} instead of an iterator",
        f"write it as a generator: yield each {item}",
    )


def wrong_item(operator: str, item: Any, wanted: str) -> OutputInvalid:
    """Return the error of a function that has yielded something of another kind."""
    kind = type(item).__name__
    if kind == "Table":
        advice = "yield from table.to_batches()"
    elif kind in _METHODS:
        advice = f"yield {wanted}, or use operator.{_METHODS[kind]}, whose function yields this"
    else:
        advice = f"yield {wanted}"
    return OutputInvalid(operator, f"the function yielded {kind_of(item)}, not {wanted}", advice)
