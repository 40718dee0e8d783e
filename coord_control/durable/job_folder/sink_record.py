"""``sink.json`` of a lineage: what the query writes to, for what is done with a job that does not run.

Threads: any.
"""

from __future__ import annotations

from typing import Final, Literal

import pydantic

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.files.json_records import read_json_record
from coord_control.durable.job_folder.lineage import current_lineage
from coord_control.durable.job_folder.lineage_record import lineage_names, query_folder
from coord_control.ids import QueryName

__all__ = ["SinkRecord", "newest_sink", "read_sink", "write_sink"]

_FORMAT: Final = 1
_NAME: Final = "sink.json"


class SinkRecord(pydantic.BaseModel):
    """The sink of a query.

    Attributes:
        kind, place: see :class:`~coord_control.durable.checkpoints.metadata_file.SinkSnapshot`.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    format_version: Literal[1] = _FORMAT
    kind: str
    place: str | None = None


def read_sink(files: Files, lineage: str) -> SinkRecord | None:
    """Return the sink to which a query wrote last, or None if it is not known.

    Args:
        lineage: the folder of its lineage.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be read.
    """
    return read_json_record(files, join(lineage, _NAME), SinkRecord, _FORMAT)


def newest_sink(files: Files, job_folder: str, query: QueryName) -> SinkRecord | None:
    """Return the sink to which a query of a job wrote last, or None if it is not known.

    A restored lineage has no record before its query starts, so those before it are read too. What came after the
    lineage that counts was undone.

    Raises:
        DamagedRecord, MissingRecord, UnsupportedFormat: what was recorded cannot be used.
    """
    folder = query_folder(job_folder, query)
    names, current = lineage_names(files, folder), current_lineage(files, folder, query)
    if current is not None:
        del names[names.index(current.name) + 1 :]
    found = (read_sink(files, join(folder, name)) for name in reversed(names))
    return next((sink for sink in found if sink is not None), None)


def write_sink(files: Files, lineage: str, sink: SinkRecord) -> None:
    """Record the sink of a query that has just been started."""
    data = sink.model_dump_json(indent=2).encode()
    path = join(lineage, _NAME)
    if not files.exists(path) or files.read(path) != data:
        files.replace(path, data)
