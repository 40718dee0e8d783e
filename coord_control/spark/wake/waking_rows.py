"""The rows that wake one operator, among the rows of its stream.

A row that wakes a subtask has the subtask's id plus the parallelism where the others have the id. So Spark puts it into
the subtask's partition, and the task can tell it from the others and drops it. No function sees its other columns, but
pandas reads a column of integers with a null as floats: so numbers are 0 there, and all else is null.

Threads: those that declare operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DataType, NumericType

from coord_control.spark.wake import wake_source

__all__ = ["WakingRows"]


@dataclass(frozen=True, slots=True)
class WakingRows:
    """Of one operator with ``wake``.

    Attributes:
        key: tells it from all other operators of this process.
    """

    key: str
    operator: str
    parallelism: int

    def with_rows(self, numbered: DataFrame) -> DataFrame:
        """Return a stream with these rows as well.

        Args:
            numbered: rows with their subtask id in the last column.
        """
        waking = wake_source.rows(numbered.sparkSession, self.key, self.operator, self.parallelism)
        columns = [_filler(field.dataType) for field in numbered.schema.fields[:-1]]
        return numbered.union(waking.select(*columns, sf.col("subtask")))


def _filler(data_type: DataType) -> Column:
    return sf.lit(0 if isinstance(data_type, NumericType | BooleanType) else None).cast(data_type)
