"""``sink.json`` of a lineage: what the query writes to, for what is done with a job that does not run.

Threads: any.
"""

from __future__ import annotations

from typing import Final, Literal

import pydantic

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.files.json_records import read_json_record

__all__ = ["SinkRecord", "read_sink", "write_sink"]

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


def write_sink(files: Files, lineage: str, sink: SinkRecord) -> None:
    """Record the sink of a query that has just been started."""
    data = sink.model_dump_json(indent=2).encode()
    path = join(lineage, _NAME)
    if not files.exists(path) or files.read(path) != data:
        files.replace(path, data)
