"""Reads Spark's file sink and its commits without Spark: a check should share nothing with what it checks."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["last_commit", "read_file_sink"]


def last_commit(checkpoint: Path) -> int:
    """Return the newest committed batch of a query, or -1 if there is none."""
    return max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def read_file_sink(folder: Path, last_batch: int, schema: pa.Schema) -> pa.Table:
    """Return the rows of the batches up to ``last_batch``. Other files in the folder are from failed attempts."""
    tables = [pq.read_table(path, schema=schema) for path in _files(folder / "_spark_metadata", last_batch)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _files(log: Path, last_batch: int) -> list[Path]:
    # Every tenth entry is compacted: it repeats all earlier ones.
    entries = {int(path.name.removesuffix(".compact")): path for path in log.glob("[0-9]*")}
    entries = {batch: path for batch, path in entries.items() if batch <= last_batch}
    first = max((batch for batch, path in entries.items() if path.suffix), default=0)
    lines = [
        json.loads(line)
        for batch in sorted(batch for batch in entries if batch >= first)
        for line in entries[batch].read_text().splitlines()[1:]  # the first one is the version
    ]
    return [Path(unquote(urlsplit(line["path"]).path)) for line in lines]
