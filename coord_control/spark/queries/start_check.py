"""Detect what Spark refuses when a query starts, without starting it: its output mode, its sink, its table.

The query is started as the program has written it, but from a Spark checkpoint directory of which Spark cannot read the
next epoch. So Spark does all that a start does: it compares the plan with the output mode, finds the sink or the table
and hands it the schema, and opens the sources. Then it ends, before an epoch is planned: nothing is read or written.
A start that Spark refuses for its plan would leave a log in the folder of a file sink, so a sink that takes all comes
first. A table that does not exist would be created, so there only its namespace and its format are looked for.

Threads: those that start queries, one at a time.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.checkpoints.checkpoint_folder import Storage
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import write_query_id
from coord_control.durable.spark_layout.file_sink_log import FILE_SINK, LOG_NAME
from coord_control.spark.live.jvm_side import CHECK_RUN
from coord_control.spark.queries.quiet import quiet
from coord_control.spark.queries.writers import copied, is_in_memory, start_run, table_format
from coord_control.spark.sinks.sink_of import sink_of

__all__ = ["check_start"]

#: Both logs, so that Spark plans nothing whichever it reads first. Each version of Spark repeats what it cannot read.
_LOGS: Final = ("offsets", "commits")
_UNREADABLE: Final = "no epoch is planned from here"
#: What a start throws that fails in the same way every time, by the ends of Java's names.
_REFUSALS: Final = (
    "AnalysisException",
    "ClassNotFoundException",
    "IllegalArgumentException",
    "ParseException",
    "UnsupportedOperationException",
)
_TAKES_ALL: Final = "noop"
_SESSION_CATALOG: Final = "spark_catalog"


def check_start(
    files: Files, storage: Storage, folder: str, writer: DataStreamWriter, table: str | None, name: str
) -> str | None:
    """Let Spark start a query as far as that changes nothing.

    A file sink creates its folder, which stays.

    Args:
        files: the job's storage.
        storage: returns the storage of a sink.
        folder: where nothing is; removed in the end.
        table: the table that the query writes to; None if the writer says where.
        name: of the query in Spark's reports.

    Returns:
        Why Spark refuses to start it, or None.

    Raises:
        StoreUnavailable: the storage.
        Exception: Spark could not say, because of a sink or source that cannot be reached for example.
    """
    files.delete(folder)
    try:
        write_query_id(files, folder, str(uuid.uuid4()))
        for log in _LOGS:
            files.create(join(folder, log, "0"), f"{_UNREADABLE}\n".encode())
        with quiet(writer._df.sparkSession):
            copy = copied(writer, name, folder)
            _start(storage, copied(writer, name, folder).format(_TAKES_ALL), None)
            if table is not None and not writer._df.sparkSession.catalog.tableExists(table):
                return _check_new_table(copy, table)
            if not is_in_memory(writer):
                _start(storage, copy, table)
            return None
    except Exception as error:
        if (why := _refusal_of(error)) is None:
            raise
        return why
    finally:
        files.delete(folder)


def _start(storage: Storage, writer: DataStreamWriter, table: str | None) -> None:
    query = start_run(writer, CHECK_RUN, table)
    try:
        query.awaitTermination()
    except Exception as error:
        if not any(_UNREADABLE in text for _, text in _causes(error)):
            raise
    finally:
        query.stop()
        with contextlib.suppress(Exception):  # a sink that does not say what it is has no such log
            _remove_empty_log(storage, query, writer)


def _remove_empty_log(storage: Storage, query: StreamingQuery, writer: DataStreamWriter) -> None:
    # Spark's file sink creates its log when it is made, and a folder with an empty log looks empty to readers.
    sink = sink_of(writer._df.sparkSession, query)
    if sink.kind == FILE_SINK and sink.place is not None:
        log, files = join(sink.place, LOG_NAME), storage(sink.place)
        if not files.list(log):
            files.delete(log)


def _check_new_table(writer: DataStreamWriter, table: str) -> str | None:
    session: Any = writer._df.sparkSession
    jvm, state = session._jvm, session._jsparkSession.sessionState()
    jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(table_format(writer), state.conf())
    parts = state.sqlParser().parseMultipartIdentifier(table)
    *namespace, _ = (str(parts.apply(index)) for index in range(parts.size()))
    if not namespace or session.catalog.currentCatalog() != _SESSION_CATALOG:
        return None
    if state.catalogManager().isCatalogRegistered(namespace[0]) and namespace[0] != _SESSION_CATALOG:
        state.catalogManager().catalog(namespace[0])  # some create namespaces with tables: that it is there is all
        return None
    quoted = ".".join(f"`{part.replace('`', '``')}`" for part in namespace)
    if session.catalog.databaseExists(quoted):
        return None
    return f"there is no table {table}, and no namespace {quoted} to create it in"


def _refusal_of(error: BaseException) -> str | None:
    return next((text for kind, text in _causes(error) if kind.endswith(_REFUSALS)), None)


def _causes(error: BaseException) -> Iterator[tuple[str, str]]:
    """Return the Java classes and the messages of an error and its causes; Python's, if it is none of Java's."""
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    if cause is None:
        yield type(error).__name__, str(error)
    while cause is not None:
        yield str(cause.getClass().getName()), str(cause.getMessage() or "")
        cause = cause.getCause()
