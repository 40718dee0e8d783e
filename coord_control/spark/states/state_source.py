"""Read a state with Spark's data source ``statestore``, from a Spark checkpoint directory.

The source takes the state store provider from the offset log, but the format of its files from the session: each format
can only be read in a session whose ``checkpointFormatVersion`` is the same. A session that runs queries must not be
changed meanwhile, so the plan is made in a copy of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from coord_control.spark.session import require_state_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coord_control.durable.checkpoints.state_lookup import SparkState

__all__ = ["FORMAT_SETTING", "load_state", "problem_of"]

#: 1, or 2: files with unique ids.
FORMAT_SETTING: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def load_state(spark: SparkSession, state: SparkState, directory: str) -> DataFrame:
    """Return a state as Spark's data source shows it: ``key``, ``value`` and ``partition_id``; lazy.

    Lists and maps of ``transformWithState`` have a row per element, with ``list_element`` or ``user_map_key`` and
    ``user_map_value`` instead of ``value``.

    Args:
        directory: a Spark checkpoint directory, as a local path or URI. It must stay as long as the frame is used.

    Raises:
        SparkTooOld: this Spark has no such source.
        pyspark.errors.PySparkException, py4j.protocol.Py4JJavaError: Spark cannot read the directory.
    """
    require_state_reader(spark.version)
    copy = spark._jsparkSession.cloneSession()
    copy.conf().set(FORMAT_SETTING, str(state.operator.checkpoint_format))
    options = {"operatorId": str(state.operator.id), "batchId": str(state.epoch), **state.options}
    reader = copy.read().format("statestore").option("path", _uri(directory))
    for name, value in options.items():
        reader = reader.option(name, value)
    # The plan keeps the settings of the copy; the frame belongs to the caller's session and its views.
    frame = DataFrame(_jvm(spark).Dataset.ofRows(spark._jsparkSession, reader.load().logicalPlan()), spark)
    return _as_declared(frame) if state.is_of_join else frame


def problem_of(error: Exception) -> str:
    """Return the first line of an error of Spark or its JVM."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]


def _as_declared(frame: DataFrame) -> DataFrame:
    """Rows of a join have a field more than their schema, whether they were matched; some functions stumble over it."""
    value = frame.schema["value"].dataType if "value" in frame.columns else None
    if not isinstance(value, StructType):
        return frame
    column = frame["value"]
    fields = [column.getField(name).alias(name) for name in value.names]
    return frame.withColumn("value", F.when(column.isNotNull(), F.struct(*fields)))


def _jvm(spark: SparkSession) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.spark.sql.classic


def _uri(path: str) -> str:
    return f"file:{path}" if path.startswith("/") else path
