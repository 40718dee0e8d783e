"""The row form of an operator: a function over rows, made a function over Arrow record batches.

Values are converted by what PySpark itself uses for Arrow and rows, so they are what ``DataFrame.collect`` returns and
``SparkSession.createDataFrame`` takes.

Threads: that of a task.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.types import StructField, StructType

from coord_control.errors import OutputInvalid
from coord_control.spark.worker.chunks import items_of, kind_of, wrong_item

if TYPE_CHECKING:
    import pyarrow as pa

    from coord_control.spark.worker.subtask import Subtask

__all__ = ["RowFunction"]

_ITEM: Final = "Row, tuple or dict"
#: Rows of one record batch of the output; Spark's own default (spark.sql.execution.arrow.maxRecordsPerBatch).
_ROWS_AT_ONCE: Final = 10_000
_VALUE_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class RowFunction:
    """Call it with a subtask and its record batches; what it returns are record batches again.

    Attributes:
        operator: for messages.
        function: of the user: ``(subtask, Iterator[Row]) -> Iterator[Row | tuple | dict]``.
        given: schema of the rows that it gets.
        wanted: schema of those that it yields.
    """

    operator: str
    function: Callable[[Subtask[Any], Iterator[Row]], Iterator[Any]]
    given: StructType
    wanted: StructType

    def __call__(self, subtask: Subtask[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yielded = items_of(self.operator, self.function(subtask, self._rows(batches)), _ITEM)
        # Values are taken out of an item at once: a function may fill the same dict again and again.
        values = map(self._values, yielded)
        while rows := list(itertools.islice(values, _ROWS_AT_ONCE)):
            yield from self._batches(rows)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
        arrow, conversion = importlib.import_module("pyarrow"), importlib.import_module("pyspark.sql.conversion")
        for batch in batches:
            table = arrow.Table.from_batches([batch])
            yield from conversion.ArrowTableToRowsConversion.convert(table, self.given)

    def _values(self, item: Any) -> tuple[Any, ...]:
        names = self.wanted.names
        if isinstance(item, tuple):  # a Row is one too, and counts by position, as everywhere in Spark
            if len(item) == len(names):
                return tuple(item)
            problem = f"the function yielded a {type(item).__name__} of {len(item)} values for the columns {names}"
            raise OutputInvalid(self.operator, problem, "yield one value for each column, None for null")
        if isinstance(item, dict):
            if item.keys() <= set(names):
                return tuple([item.get(name) for name in names])
            unknown = [key for key in item if key not in names]
            problem = f"the function yielded a dict with {unknown}, which are not among the columns {names}"
            raise OutputInvalid(self.operator, problem, "correct the keys, or add columns to schema=")
        raise wrong_item(self.operator, item, _ITEM)

    def _batches(self, rows: list[tuple[Any, ...]]) -> list[pa.RecordBatch]:
        try:
            return list(_to_arrow(rows, self.wanted).to_batches())
        except Exception as error:
            raise self._refusal(rows, error) from error

    def _refusal(self, rows: list[tuple[Any, ...]], error: Exception) -> OutputInvalid:
        """Look for the value that does not fit; PySpark and pyarrow do not say which it was."""
        for position, field in enumerate(self.wanted.fields):
            of_field = StructType([field])
            column = [(row[position],) for row in rows]
            if _why_not(column, of_field) is None:
                continue
            for value in column:
                if (why := _why_not([value], of_field)) is not None:
                    return self._value_refused(field, value[0], why)
        return OutputInvalid(self.operator, f"the rows do not fit the schema: {error}", "correct them, or schema=")

    def _value_refused(self, field: StructField, value: Any, why: Exception) -> OutputInvalid:
        shown = repr(value)
        if len(shown) > _VALUE_CHARACTERS:
            shown = f"{shown[:_VALUE_CHARACTERS]}..."
        kind = field.dataType.simpleString() + ("" if field.nullable else " not null")
        because = f": {why}" if str(why) else ""
        which = "" if value is None else f", {kind_of(value)}"
        problem = f"column {field.name!r} ({kind}) cannot hold {shown}{which}{because}"
        return OutputInvalid(self.operator, problem, "convert it in the function, or correct schema=")


def _to_arrow(rows: list[tuple[Any, ...]], schema: StructType) -> pa.Table:
    conversion = importlib.import_module("pyspark.sql.conversion")
    return conversion.LocalDataToArrowConversion.convert(rows, schema, False)


def _why_not(rows: list[tuple[Any, ...]], schema: StructType) -> Exception | None:
    try:
        _to_arrow(rows, schema)
    except Exception as error:
        return error
    return None
