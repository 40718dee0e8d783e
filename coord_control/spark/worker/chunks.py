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

from coord_control.errors import OutputInvalid

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["ArrowChunks", "Chunks", "PandasChunks", "items_of", "wrong_item"]

#: The form of an operator for what its function yields.
_METHODS: Final = {
    "RecordBatch": "apply",
    "DataFrame": "apply_in_pandas",
    "Row": "apply_rows",
    "tuple": "apply_rows",
    "dict": "apply_rows",
}


class Chunks(Protocol):
    """One kind of chunks.

    Attributes:
        columns: names of the columns of the output.
        item: name of the class of a chunk, for messages.
    """

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def item(self) -> str: ...

    def rows(self, chunk: Any) -> int:
        """Return the number of rows."""

    def subtask(self, chunk: Any) -> int:
        """Return the subtask id of the first row."""

    def own_rows(self, chunk: Any, subtask: int) -> Any:
        """Return the chunk without the column of subtask ids; None if it has rows of another subtask.

        Args:
            chunk: with at least one row; not to be used afterwards.
        """

    def is_chunk(self, item: Any) -> bool:
        """Return whether ``item`` is a chunk of this kind."""

    def misfit(self, chunk: Any) -> str | None:
        """Return in which way the columns of a chunk of output cannot be those of the schema, or None."""


@dataclass(frozen=True, slots=True)
class ArrowChunks:
    """Record batches: columns of the output count by their position."""

    columns: tuple[str, ...]
    item: str = "pyarrow.RecordBatch"

    def rows(self, chunk: pa.RecordBatch) -> int:
        return int(chunk.num_rows)

    def subtask(self, chunk: pa.RecordBatch) -> int:
        return int(chunk.column(chunk.num_columns - 1)[0].as_py())

    def own_rows(self, chunk: pa.RecordBatch, subtask: int) -> pa.RecordBatch | None:
        compute = importlib.import_module("pyarrow.compute")
        last = chunk.num_columns - 1
        column = chunk.column(last)
        # All with the first one, an Arrow value: to compare with a Python int, pyarrow imports pandas. That takes
        # longer than an epoch, and PySpark's collection of garbage after each task then takes half as long again.
        if self.subtask(chunk) != subtask or not compute.all(compute.equal(column, column[0])).as_py():
            return None
        return chunk.select(list(range(last)))

    def is_chunk(self, item: Any) -> bool:
        return isinstance(item, importlib.import_module("pyarrow").RecordBatch)

    def misfit(self, chunk: pa.RecordBatch) -> str | None:
        if chunk.num_columns == len(self.columns):
            return None
        return f"{chunk.num_columns} columns {list(chunk.schema.names)} instead of {list(self.columns)}"


@dataclass(frozen=True, slots=True)
class PandasChunks:
    """DataFrames: columns of the output count by their name if any is a string, as in Spark's ``mapInPandas``."""

    columns: tuple[str, ...]
    item: str = "pandas.DataFrame"

    def rows(self, chunk: pd.DataFrame) -> int:
        return len(chunk)

    def subtask(self, chunk: pd.DataFrame) -> int:
        return int(chunk.iloc[0, -1])

    def own_rows(self, chunk: pd.DataFrame, subtask: int) -> pd.DataFrame | None:
        # In place: of a slice of a DataFrame pandas would warn when the user's function sets a column.
        subtasks = chunk.pop(chunk.columns[-1])
        return chunk if bool((subtasks == subtask).all()) else None

    def is_chunk(self, item: Any) -> bool:
        return isinstance(item, importlib.import_module("pandas").DataFrame)

    def misfit(self, chunk: pd.DataFrame) -> str | None:
        names = list(chunk.columns)
        if not names and not len(chunk):
            return None  # Spark takes a DataFrame without anything for no rows
        if any(isinstance(name, str) for name in names):
            missing = [name for name in self.columns if name not in names]
            return f"the columns {names}, and so without {missing}" if missing else None
        return None if len(names) == len(self.columns) else f"{len(names)} columns instead of {list(self.columns)}"


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
        f"the function returned {_kind_of(result)} instead of an iterator",
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
    return OutputInvalid(operator, f"the function yielded {_kind_of(item)}, not {wanted}", advice)


def _kind_of(value: Any) -> str:
    kind = type(value)
    if value is None:
        return "None"
    package = kind.__module__.partition(".")[0]
    return f"a {kind.__name__}" if package == "builtins" else f"a {package}.{kind.__name__}"
