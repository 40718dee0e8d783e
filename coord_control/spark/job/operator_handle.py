"""The user's handle of an operator: where it is put into a DataFrame.

Identity (docs/protocol.md, section 4): a task's partition id is not the subtask id. So every row gets its subtask id in
an extra column, computed from the keys, and the rows are partitioned by exactly that column; the task reads its id from
its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from coord_control.errors import NotStreaming, OperatorReused, PartitioningMissing
from coord_control.protocol.operator import OperatorSpec
from coord_control.spark.wake.waking_rows import WakingRows
from coord_control.spark.worker.chunks import ArrowChunks, PandasChunks
from coord_control.spark.worker.row_function import RowFunction
from coord_control.spark.worker.subtask import (
    SUBTASK_COLUMN,
    Subtask,
    TaskPlan,
    operator_function_name,
    task_function,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["Operator", "operators_in_plan"]

_FUNCTION_PREFIX: Final = operator_function_name("")
#: Nodes of a plan that hold an operator's function.
_NODES: Final = ("MapInArrow", "MapInPandas")


class Operator:
    """One coordinated step of one query; made by :meth:`Job.operator`."""

    def __init__(self, spec: OperatorSpec, plan: TaskPlan, waking: WakingRows | None = None) -> None:
        self.spec = spec
        self.plan = plan  #: without the function, which apply() adds
        self.waking = waking  #: of an operator with ``wake``
        self.is_applied = False

    @property
    def uid(self) -> str:
        """Its permanent name in this job: state is found by it."""
        return self.spec.uid

    def apply(
        self,
        frame: DataFrame,
        function: Callable[[Subtask[Any], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        *,
        schema: str | StructType,
        partition_by: Sequence[str | Column],
    ) -> DataFrame:
        """Run ``function(subtask, batches)`` over the rows of ``frame``, one subtask per slice of the keys.

        Args:
            frame: a streaming DataFrame.
            function: takes the subtask and an iterator of its record batches (at least one row in all), yields record
                batches of ``schema``. It runs once per attempt: again after failures, with the same state, events and
                rows, which may come in another order; what it does must not depend on that.
            schema: of what the function yields; its columns count by their position.
            partition_by: columns whose values decide the subtask: rows that agree in them meet in one subtask. Empty
                with parallelism 1 only. What this shuffle costs: docs/operators.md.

        Returns:
            the streaming DataFrame of what the function yields; start it with ``job.start``.

        Raises:
            NotStreaming: ``frame`` is a batch DataFrame.
            OperatorReused: the operator was applied before.
            PartitioningMissing: ``partition_by`` is None.
        """
        plan = self.plan.with_function(function, ArrowChunks(_struct(schema)))
        return self._placed(frame, partition_by).mapInArrow(task_function(plan), schema)

    def apply_in_pandas(
        self,
        frame: DataFrame,
        function: Callable[[Subtask[Any], Iterator[pd.DataFrame]], Iterator[pd.DataFrame]],
        *,
        schema: str | StructType,
        partition_by: Sequence[str | Column],
    ) -> DataFrame:
        """Run a function over pandas DataFrames, with all that :meth:`apply` promises and asks for.

        Spark converts the rows as in ``DataFrame.mapInPandas``: timestamps are local times of the session's time zone,
        an integer column with nulls holds floats, and so on. A subtask may get several DataFrames in an epoch, each
        with at least one row. Columns of what the function yields count by name if any of them is a string.
        """
        plan = self.plan.with_function(function, PandasChunks(_struct(schema)))
        return self._placed(frame, partition_by).mapInPandas(task_function(plan), schema)

    def apply_rows(
        self,
        frame: DataFrame,
        function: Callable[[Subtask[Any], Iterator[Row]], Iterator[Row | tuple[Any, ...] | dict[str, Any]]],
        *,
        schema: str | StructType,
        partition_by: Sequence[str | Column],
    ) -> DataFrame:
        """Run a function over rows, with all that :meth:`apply` promises and asks for.

        Rows come as from ``DataFrame.collect`` (timestamps are local times of the executor), and what the function
        yields is taken as by ``SparkSession.createDataFrame``: a Row or tuple by position, a dict by name, with null
        for keys that it lacks. Easy to write, and slow for many rows: benchmarks/README.md.
        """
        wanted = _struct(schema)
        plan = self.plan.with_function(RowFunction(self.uid, function, frame.schema, wanted), ArrowChunks(wanted))
        return self._placed(frame, partition_by).mapInArrow(task_function(plan), schema)

    def _placed(self, frame: DataFrame, partition_by: Sequence[str | Column]) -> DataFrame:
        """Put each row into the partition of its subtask, whose id is the last column: the task drops it again."""
        if not frame.isStreaming:
            raise NotStreaming(self.uid)
        if self.is_applied:
            raise OperatorReused(self.uid, "the DataFrame it was applied to first", "another one")
        if partition_by is None:
            raise PartitioningMissing(self.uid)
        parallelism = self.spec.parallelism
        if not partition_by and parallelism > 1:
            raise ValueError(
                f"operator {self.uid!r}: partition_by is needed to spread rows over {parallelism} subtasks"
            )
        self.is_applied = True
        keys = [sf.col(key) if isinstance(key, str) else key for key in partition_by]
        subtask = sf.pmod(sf.hash(*keys), sf.lit(parallelism)) if keys else sf.lit(0)
        numbered = frame.withColumn(SUBTASK_COLUMN, subtask)
        if self.waking is not None:
            numbered = self.waking.with_rows(numbered)
        return numbered.repartitionById(parallelism, sf.col(SUBTASK_COLUMN))


def operators_in_plan(frame: DataFrame) -> set[str]:
    """Return the uids of the operators in a DataFrame's plan, found by the names of their functions."""
    found: set[str] = set()
    waiting: list[Any] = [frame._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        if node.nodeName() in _NODES:
            name = str(node.functionExpr().name())
            if name.startswith(_FUNCTION_PREFIX):
                found.add(name.removeprefix(_FUNCTION_PREFIX))
        children = node.children()
        waiting += [children.apply(index) for index in range(children.size())]
    return found


def _struct(schema: str | StructType) -> StructType:
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise TypeError(f"schema={schema!r} names no columns; write 'name type, name type'")
    return parsed
