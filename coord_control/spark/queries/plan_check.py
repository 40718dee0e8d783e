"""Detect what Spark refuses permanently: a plan that it cannot run, or that does not fit the saved state.

It has the same result every time, so it is not tried again, and a restore asks for it before anything has changed.

A batch without input asks the question. A copy of the query's Spark checkpoint directory gets one planned epoch more,
with the offsets of the last one. Spark plans it, compares the plan with the states' schemas and the sources with the
offsets, and calls the sink: a function that does nothing. The copy has no data of states, which only tasks would read.

Threads: those that start queries, one at a time.
"""

from __future__ import annotations

import re
import uuid
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import Lineage, spark_position, write_query_id
from coord_control.errors import PlanRefused
from coord_control.ids import NO_EPOCH, Epoch, QueryName
from coord_control.spark.live.jvm_side import CHECK_RUN
from coord_control.spark.queries.quiet import quiet
from coord_control.spark.queries.writers import output_mode, start_run

__all__ = ["check_plan", "refused"]

_FOLDER: Final = "plan-check"
#: Conditions of Spark's that a changed plan or schema meets; the same plan meets them every time.
_CONDITIONS: Final = re.compile(r"STATE_STORE_\w*SCHEMA\w*|STREAMING_STATEFUL_OPERATOR_\w+|STREAMING_OUTPUT_MODE\S*")
_SOURCES: Final = "sources in the checkpoint offsets"


def check_plan(files: Files, writer: DataStreamWriter, lineage: Lineage, name: str) -> str | None:
    """Let Spark plan an epoch of a query whose lineage is not in use yet.

    Args:
        name: of the query in Spark's reports.

    Returns:
        Why Spark refuses the plan, or None: it accepts it, or nothing has run that the plan must fit.

    Raises:
        StoreUnavailable: the storage.
        StreamingQueryException: Spark could not say, because of a source that cannot be reached for example.
    """
    committed, planned = spark_position(files, lineage.checkpoint)
    if planned == NO_EPOCH:
        return None
    copy = join(lineage.folder, _FOLDER)
    files.delete(copy)
    try:
        _copy(files, lineage.checkpoint, copy, committed)
        with quiet(writer._df.sparkSession):
            return _plan(writer, copy, name)
    finally:
        files.delete(copy)


def refused(query: QueryName, error: BaseException) -> PlanRefused | None:
    """Return what to fail with when Spark has refused a plan, and will refuse it again, else None."""
    if (why := _refusal_of(error)) is None:
        return None
    refusal = PlanRefused(query, why)
    refusal.__cause__ = error
    return refusal


def _refusal_of(error: BaseException) -> str | None:
    if isinstance(error, AnalysisException):
        return str(error)
    cause: Any = getattr(error, "_origin", None)
    while cause is not None:
        text = str(cause.getMessage() or "")
        if _is_refusal(cause, text):
            return text
        cause = cause.getCause()
    return None


def _copy(files: Files, checkpoint: str, copy: str, committed: Epoch) -> None:
    names = [info.path for info in files.walk(checkpoint) if _is_needed(info.path, committed)]
    files.link_all(checkpoint, copy, [(name, name) for name in names])
    # A new id: Spark runs no two queries of one id.
    write_query_id(files, copy, str(uuid.uuid4()))
    entry = files.read(join(checkpoint, "offsets", str(max(committed, 0))))
    files.create(join(copy, "offsets", str(committed + 1)), entry if committed >= 0 else _without_offsets(entry))


def _without_offsets(entry: bytes) -> bytes:
    """Return an entry of Spark's log with the same sources, of which none has anything."""
    version, metadata, *sources = entry.split(b"\n")
    names = [b"" if version == b"v1" else source.partition(b":")[0] + b":" for source in sources]
    return b"\n".join([version, metadata, *(name + b"-" for name in names)])


def _is_needed(path: str, committed: Epoch) -> bool:
    folder, _, name = path.partition("/")
    if folder == "offsets":
        return name.isdigit() and int(name) <= committed
    # Descriptions of states lie in folders that begin with an underscore.
    return path != "metadata" and (folder != "state" or "/_" in path)


def _plan(writer: DataStreamWriter, checkpoint: str, name: str) -> str | None:
    is_planned = False

    def planned(batch: DataFrame, epoch: int) -> None:
        nonlocal is_planned
        is_planned = True

    query = None
    probe = writer._df.writeStream.outputMode(output_mode(writer)).option("checkpointLocation", checkpoint)
    try:
        query = start_run(probe.queryName(name).trigger(once=True).foreachBatch(planned), CHECK_RUN)
        query.awaitTermination()
    except Exception as error:
        if is_planned:  # Spark misses the commits of the states, which nothing has written
            return None
        if (refusal := _refusal_of(error)) is None:
            raise
        return refusal
    finally:
        if query is not None:
            query.stop()
    return None


def _is_refusal(cause: Any, text: str) -> bool:
    kind = str(cause.getClass().getName())
    if kind.endswith("AnalysisException") or (kind == "java.lang.AssertionError" and _SOURCES in text):
        return True
    found = re.match(r"\[([A-Z_0-9.]+)\]", text)
    return found is not None and _CONDITIONS.fullmatch(found[1]) is not None
