"""What a query of Spark writes to, as Spark's own objects say.

Threads: any.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coord_control.durable.job_folder.sink_record import SinkRecord
from coord_control.durable.spark_layout.file_sink_log import FILE_SINK
from coord_control.spark.sinks.qualified_path import qualified
from coord_control.spark.sinks.table_format import FORMATS

__all__ = ["sink_of"]

#: Names of Spark's classes.
_KINDS: Final = {
    "FileStreamSink": FILE_SINK,
    "ForeachBatchSink": "foreachBatch",
    "ForeachWriterTable": "foreach",
    "MemorySink": "memory",
    "ConsoleTable$": "console",
    "KafkaTable": "kafka",
    "NoopTable$": "noop",
    "DeltaSink": "delta",
    "org.apache.iceberg.spark.source.SparkTable": "iceberg",
}


def sink_of(spark: SparkSession, query: StreamingQuery) -> SinkRecord:
    """Return the sink of a query that was started; it may have ended.

    Raises:
        Py4JError, OSError: the JVM is gone, or this Spark keeps it elsewhere.
    """
    sink = query._jsq.streamingQuery().sink()
    java_class = sink.getClass()
    simple = str(java_class.getSimpleName())
    kind = _KINDS.get(simple) or _KINDS.get(str(java_class.getName())) or simple
    if kind == FILE_SINK:
        return SinkRecord(kind=kind, place=_path_of(spark, sink))
    return SinkRecord(kind=kind, place=FORMATS[kind].place(spark, sink) if kind in FORMATS else None)


def _path_of(spark: SparkSession, sink: Any) -> str:
    field = sink.getClass().getDeclaredField("logPath")
    field.setAccessible(True)
    return qualified(spark, field.get(sink).getParent())
