"""A streaming source that reports how much waits in it: the numbers up to a limit that a file names, few per batch.

Spark's Python workers and its driver import this module from the checkout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

__all__ = ["PER_BATCH", "Counting"]

#: Rows of a batch.
PER_BATCH: Final = 4


class Counting:
    """The numbers 0, 1, 2, ... as far as a test lets them come."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self._path = path
        self.have(0)

    def have(self, numbers: int) -> None:
        """From now on there are so many."""
        draft = self._path.with_suffix(".draft")
        draft.write_text(str(numbers))
        draft.replace(self._path)

    def read(self) -> DataFrame:
        """Return them as a stream with the columns `key` and `value`."""
        self._spark.dataSource.register(_Source)
        return self._spark.readStream.format(_Source.name()).option("path", str(self._path)).load()


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> str:
        return "key STRING, value LONG"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(Path(self.options["path"]))


@dataclass
class _Range(InputPartition):
    start: int
    end: int


class _Reader(DataSourceStreamReader):
    def __init__(self, path: Path) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, int]:
        return {"numbers": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(PER_BATCH)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        there, most = self._there(), limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return {"numbers": there if most is None else min(there, start["numbers"] + most)}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"numbers": self._there()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Range(start["numbers"], end["numbers"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _Range)
        for number in range(partition.start, partition.end):
            yield f"k{number % 8}", number

    def _there(self) -> int:
        return int(self._path.read_text())
