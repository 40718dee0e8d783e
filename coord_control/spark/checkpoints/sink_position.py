"""What a checkpoint records about the sink of a query: what it is, and where it stood at the boundary.

A sink that cannot be asked fails no checkpoint: its position is then recorded as unknown, with the reason.

Threads: one for each query and checkpoint.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.metadata_file import FileEntry, SinkSnapshot
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.sink_record import SinkRecord
from coord_control.durable.spark_layout.file_sink_log import FILE_SINK, LOG_NAME
from coord_control.ids import CheckpointId, Epoch
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.sinks.sink_of import sink_of
from coord_control.spark.sinks.table_format import FORMATS

__all__ = ["sink_at"]

_log = logging.getLogger("coord_control.checkpoints")

#: A catalog that answers later is as good as one that does not answer.
_PATIENCE_SECONDS: Final = 30.0
_UNKNOWN: Final = "unknown"

Result = TypeVar("Result")


def sink_at(
    store: CheckpointStore, checkpoint: CheckpointId, query: ManagedQuery, epoch: Epoch
) -> tuple[SinkSnapshot, tuple[FileEntry, ...]]:
    """Find where the sink of a query stood after an epoch; the files of the query are pinned.

    Args:
        epoch: the last one in the checkpoint.

    Returns:
        What to record, and the files of a file sink's log.
    """
    sink = SinkRecord(kind=_UNKNOWN)
    try:
        sink = sink_of(query.session, query.spark_query)
        if sink.kind == FILE_SINK and sink.place is not None:
            log = join(sink.place, LOG_NAME)
            newest, files = store.pin_sink_log(checkpoint, query.name, query.lineage.name, log, epoch)
            return SinkSnapshot(kind=sink.kind, place=sink.place, position=str(newest)), files
        position = None
        if (table := FORMATS.get(sink.kind)) is not None and (place := sink.place) is not None:
            session, query_id = query.session, query.lineage.query_id
            position = _within_patience(lambda: table.position(session, place, query_id, epoch))
        return SinkSnapshot(kind=sink.kind, place=sink.place, position=position), ()
    except Exception as error:
        _log.warning("= checkpoint %d: where the sink of query %s stands is unknown: %s", checkpoint, query.name, error)
        why = str(error) or type(error).__name__
        return SinkSnapshot(kind=sink.kind, place=sink.place, unknown=why.partition("\n")[0]), ()


def _within_patience(ask: Callable[[], Result]) -> Result:
    answers: queue.SimpleQueue[tuple[Result | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=run, name="coord-sink", daemon=True).start()
    try:
        answer, error = answers.get(timeout=_PATIENCE_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"it did not answer within {_PATIENCE_SECONDS:.0f} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
