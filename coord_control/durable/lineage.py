"""Where a query's durable facts lie: its lineage, and what Spark's own logs in it say.

A lineage is one Spark checkpoint directory with what we keep beside it. Its ``lineage.json`` is written once, before
the query starts for the first time, and says what must not change: the operators and their parallelism, the query id,
the place. The query id is ours: Spark's ``metadata`` file, which holds it, is made before Spark's first start
(spark-facts 10).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from coord_control.durable.files import Files, join
from coord_control.errors import (
    AlreadyExists,
    DamagedRecord,
    EventTypesChanged,
    LineageMismatch,
    MissingRecord,
    OperatorsChanged,
    ParallelismChanged,
    UnsupportedFormat,
)
from coord_control.ids import NO_EPOCH, Epoch, OperatorUid, QueryName

__all__ = ["FORMAT_VERSION", "Lineage", "OperatorRecord", "open_lineage", "spark_position"]

FORMAT_VERSION: Final = 1
_RECORD: Final = "lineage.json"


class OperatorRecord(BaseModel):
    """What a lineage remembers of an operator."""

    model_config = ConfigDict(frozen=True)

    parallelism: int
    state: str
    down: tuple[str, ...]
    up: tuple[str, ...]


class _LineageRecord(BaseModel):
    format_version: Literal[1] = FORMAT_VERSION
    query: str
    query_id: str
    checkpoint_location: str
    operators: dict[str, OperatorRecord]


@dataclass(frozen=True, slots=True)
class Lineage:
    """One Spark checkpoint directory and the folder of its epoch store."""

    query: QueryName
    query_id: str
    checkpoint: str
    epochs: str

    @property
    def name(self) -> str:
        """Of its folder; a restore begins a new one."""
        return self.epochs.rsplit("/", 2)[-2]


def open_lineage(
    files: Files,
    folder: str,
    query: QueryName,
    operators: Mapping[OperatorUid, OperatorRecord],
    checkpoint_location: str | None = None,
) -> Lineage:
    """Go on with the query's newest lineage, or begin its first one.

    Args:
        folder: the query's folder in the job's storage.
        checkpoint_location: an existing Spark checkpoint directory to adopt; None: managed, inside the lineage.

    Raises:
        OperatorsChanged, ParallelismChanged, EventTypesChanged, LineageMismatch: the declaration does not fit what
        has run. DamagedRecord, UnsupportedFormat: what was recorded cannot be used.
    """
    numbers = [name for name in files.list(folder) if name.startswith("lineage-")]
    existing = [name for name in numbers if files.exists(join(folder, name, _RECORD))]
    lineage = join(folder, existing[-1] if existing else "lineage-000001")
    path = join(lineage, _RECORD)
    if not existing:
        record = _begin(files, lineage, query, operators, checkpoint_location)
        files.create(path, _encoded(record))
        return _lineage(lineage, record)
    recorded = _read(files, path)
    if checkpoint_location is not None and checkpoint_location.rstrip("/") != recorded.checkpoint_location.rstrip("/"):
        raise LineageMismatch(recorded.query, recorded.checkpoint_location, checkpoint_location)
    # Before the first epoch nothing can be lost: a declaration that could not be started may be corrected.
    if spark_position(files, recorded.checkpoint_location)[1] != NO_EPOCH:
        _check(recorded, operators)
    record = recorded.model_copy(update={"operators": {str(uid): one for uid, one in operators.items()}})
    if record != recorded:  # corrected, event types added, or the state model renamed
        files.replace(path, _encoded(record))
    return _lineage(lineage, record)


def spark_position(files: Files, checkpoint: str) -> tuple[Epoch, Epoch]:
    """Spark's last committed and last planned epoch, -1 when there is none.

    Raises:
        MissingRecord: Spark has planned more than one epoch that is not committed, so data would be skipped
        (spark-facts 8).
    """
    # In this order, because the query may be running: an epoch that is committed meanwhile makes no gap.
    planned = _newest(files.list(join(checkpoint, "offsets")))
    committed = _newest(files.list(join(checkpoint, "commits")))
    if planned > committed + 1:
        raise MissingRecord(
            join(checkpoint, "commits", str(planned - 1)),
            f"Spark has planned epoch {planned} but committed only {committed}",
        )
    return committed, max(planned, committed)


def _newest(names: Sequence[str]) -> Epoch:
    return max((Epoch(int(name)) for name in names if name.isdigit()), default=NO_EPOCH)


def _begin(
    files: Files,
    lineage: str,
    query: QueryName,
    operators: Mapping[OperatorUid, OperatorRecord],
    checkpoint_location: str | None,
) -> _LineageRecord:
    # Spark's metadata file comes first: with a lineage record its id must exist, the other way round it is just read.
    checkpoint = checkpoint_location or join(lineage, "spark")
    return _LineageRecord(
        query=query,
        query_id=_query_id(files, join(checkpoint, "metadata")),
        checkpoint_location=checkpoint,
        operators={str(uid): operator for uid, operator in operators.items()},
    )


def _encoded(record: _LineageRecord) -> bytes:
    return record.model_dump_json(indent=2).encode()


def _lineage(folder: str, record: _LineageRecord) -> Lineage:
    return Lineage(QueryName(record.query), record.query_id, record.checkpoint_location, join(folder, "epochs"))


def _query_id(files: Files, path: str) -> str:
    try:
        return _read_query_id(files, path)
    except FileNotFoundError:
        query_id = str(uuid.uuid4())
    try:
        files.create(path, json.dumps({"id": query_id}).encode())
    except AlreadyExists:
        return _read_query_id(files, path)
    return query_id


def _read_query_id(files: Files, path: str) -> str:
    data = files.read(path)
    try:
        return str(json.loads(data)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedRecord(path, f"it does not hold a query id ({error!r})") from error


def _read(files: Files, path: str) -> _LineageRecord:
    data = files.read(path)
    try:
        found = json.loads(data)["format_version"]
        if isinstance(found, int) and found > FORMAT_VERSION:
            raise UnsupportedFormat(path, found, FORMAT_VERSION)
        return _LineageRecord.model_validate_json(data)
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise DamagedRecord(path, str(error)) from error


def _check(record: _LineageRecord, operators: Mapping[OperatorUid, OperatorRecord]) -> None:
    if set(record.operators) != set(operators):
        raise OperatorsChanged(record.query, sorted(record.operators), sorted(operators))
    for uid, declared in operators.items():
        recorded = record.operators[uid]
        if recorded.parallelism != declared.parallelism:
            raise ParallelismChanged(uid, recorded.parallelism, declared.parallelism)
        for direction, before, now in (("down", recorded.down, declared.down), ("up", recorded.up, declared.up)):
            # Recorded events name their type by position, so known types keep theirs.
            if now[: len(before)] != before:
                raise EventTypesChanged(uid, direction, list(before), list(now))
