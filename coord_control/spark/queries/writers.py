"""What a ``DataStreamWriter`` of the user's says about itself, and where a query of a job puts its own settings.

PySpark hands a writer's settings to the JVM and cannot tell them again, so they are read there.

Threads: those that start queries, one at a time.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.files.filesystem import join
from coord_control.ids import QueryName
from coord_control.protocol.status import QueryTarget
from coord_control.spark.worker.subtask import RUN_PROPERTY

__all__ = [
    "copied",
    "is_in_memory",
    "output_mode",
    "own_checkpoint",
    "place",
    "spark_name",
    "start_run",
    "table_format",
    "target",
]

_LOCATION: Final = "checkpointLocation"
_SESSION_LOCATION: Final = "spark.sql.streaming.checkpointLocation"
#: Its table has the name of Spark's query, and a table's name has no dots.
_MEMORY: Final = "memory"

#: More are not reported: they would be part of every heartbeat.
_MOST_COLUMNS: Final = 200

# A writer keeps what a job has set; started again it must not be taken for what the user has said.
_placed: Final[weakref.WeakKeyDictionary[DataStreamWriter, str]] = weakref.WeakKeyDictionary()


def own_checkpoint(writer: DataStreamWriter, query: QueryName) -> tuple[str | None, str | None]:
    """Return where a plain start of this writer would keep its checkpoint.

    Returns:
        What its own option says, and what follows from the session's setting; each None when it says nothing.
    """
    options = _field(writer, "extraOptions")
    location = _option(options, _LOCATION)
    if location is not None and location == _placed.get(writer):
        location = None
    session = writer._df.sparkSession.conf.get(_SESSION_LOCATION, None)
    return location, session and join(session, _option(options, "queryName") or query)


def output_mode(writer: DataStreamWriter) -> str:
    """Return its output mode: append, update or complete."""
    return str(_field(writer, "outputMode")).lower()


def spark_name(job: str, query: QueryName, writer: DataStreamWriter) -> str:
    """Return the name that Spark gives a query of a job: unlike that of any other job's query in the session.

    Names of jobs and queries may contain dots, and no colons (:func:`.is_valid_name`).
    """
    return query if is_in_memory(writer) else f"{job}:{query}"


def is_in_memory(writer: DataStreamWriter) -> bool:
    """Say whether it writes to a table in memory, which Spark keeps under the name of the query."""
    return str(_field(writer, "source")).lower() == _MEMORY


def place(writer: DataStreamWriter, name: str, location: str) -> DataStreamWriter:
    """Set the name and the checkpoint location that the job has chosen."""
    _placed[writer] = location
    return writer.queryName(name).option(_LOCATION, location)


def copied(writer: DataStreamWriter, name: str, location: str) -> DataStreamWriter:
    """Return a writer like this one with another name and checkpoint location."""
    copy = writer._df.writeStream
    java_class = writer._jwrite.getClass()
    modifier: Any = writer._df.sparkSession._jvm.java.lang.reflect.Modifier  # type: ignore[union-attr]
    for field in java_class.getDeclaredFields():
        if not modifier.isStatic(field.getModifiers()) and not modifier.isFinal(field.getModifiers()):
            field.setAccessible(True)
            field.set(copy._jwrite, field.get(writer._jwrite))
    return copy.queryName(name).option(_LOCATION, location)


def table_format(writer: DataStreamWriter) -> str:
    """Return the format of a table that this writer creates."""
    return str(_field(writer, "source"))


def target(writer: DataStreamWriter, table: str | None) -> QueryTarget:
    """Return what a query of this writer writes; ``table`` is None if the writer says where."""
    fields = writer._df.schema.fields
    is_shown = len(fields) <= _MOST_COLUMNS
    return QueryTarget(table, {each.name: each.dataType.simpleString() for each in fields} if is_shown else {})


def start_run(writer: DataStreamWriter, run: str, table: str | None = None) -> StreamingQuery:
    """Start a query; whatever runs for it knows the name of the run by a local property."""
    context = writer._df.sparkSession.sparkContext
    # The stream's thread inherits the property from this one, and passes it to all tasks of the run.
    context.setLocalProperty(RUN_PROPERTY, run)
    try:
        return writer.start() if table is None else writer.toTable(table)
    finally:
        context._jsc.setLocalProperty(RUN_PROPERTY, None)


def _field(writer: DataStreamWriter, name: str) -> Any:
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    value = field.get(writer._jwrite)
    return value.toString() if name == "outputMode" else value


def _option(options: Any, key: str) -> str | None:
    return str(options.apply(key)) if options.contains(key) else None
