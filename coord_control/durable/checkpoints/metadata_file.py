"""``_metadata``: everything a checkpoint says about itself, as JSON that every later release can read.

It is written last and atomically: the checkpoint exists when this file does. It names each file that it needs, with
size and checksum, and holds what no file of Spark holds: the state of the coordinators and subtasks, and what was in
transit between them. The layout is plain, so that other tools can read it::

    {
    "format_version":1,
    "checkpoint":7,
    ...
    "checksum":"crc32:0a1b2c3d"
    }

The checksum covers all bytes before its own line: a flipped bit in a coordinator's state would be obeyed otherwise.

**Versions.** A reader is chosen by ``format_version``, which is always the first field; an unknown one is refused
before anything else is read. A field is never added without a new version, so nothing is ever ignored. Files of all
versions that were ever released are in ``tests/unit/durable/golden``. Version 2 keeps the epoch that Spark had planned
behind the boundary, and how far the query has run in all its lineages. Version 3 keeps the sink of each query, and the
log of a file sink among its files. Version 4 keeps the job's live values, and which operators have a source that wakes
them.

A manifest can name a hundred thousand files: its entries are arrays of three or four values, read and written by
msgspec; the rest goes through pydantic.

Threads: values and pure functions, any.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import re
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import pydantic

from coord_control import collector
from coord_control.conversion import convert
from coord_control.durable.job_folder.lineage_record import LineageOperator, Reached
from coord_control.errors import DamagedRecord, UnsupportedFormat
from coord_control.ids import BarrierId, CheckpointId, Epoch, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.control_events import unseal
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.records import Ack, EventBatch, LiveInForce, LiveValue
from coord_control.protocol.recovery import Outbox, Replay

__all__ = [
    "FORMAT_VERSION",
    "METADATA_NAME",
    "SINK_LOG",
    "AckEntry",
    "CheckpointMetadata",
    "FileEntry",
    "Kind",
    "OperatorSnapshot",
    "OutboxEntry",
    "PlannedEpoch",
    "QuerySnapshot",
    "SinkSnapshot",
    "StateOperator",
    "Trigger",
    "decode_metadata",
    "encode_metadata",
]

FORMAT_VERSION: Final = 4
METADATA_NAME: Final = "_metadata"
#: The folder of a file sink's log among the files of a query. Spark has none of this name.
SINK_LOG: Final = "_sink"

Kind: TypeAlias = Literal["checkpoint", "savepoint"]

_VERSION: Final = re.compile(rb'\{\s*"format_version"\s*:\s*(\d{1,9})\b')
_CHECKSUM: Final = re.compile(rb'"checksum":"crc32:([0-9a-f]{8})"\n\}\n')
_CHECKSUM_LENGTH: Final = len(b'"checksum":"crc32:00000000"\n}\n')

_REMEDY: Final = "Restore from another checkpoint, or put the file back from a copy of the storage"


class FileEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of Spark that a checkpoint needs.

    Attributes:
        path: relative to the query's Spark checkpoint directory.
        size: in bytes.
        crc32: of the content, eight hexadecimal digits.
        tag: of a retained checkpoint: the suffix of its name among the shared files; None in a savepoint.
    """

    path: str
    size: int
    crc32: str
    tag: str | None = None


class OutboxEntry(NamedTuple):
    """Channel state from a subtask to its coordinator; see :class:`~coord_control.protocol.recovery.Outbox`."""

    subtask: SubtaskIndex
    attempt: int
    events: tuple[EventBatch, ...]

    @classmethod
    def of(cls, outbox: Outbox) -> OutboxEntry:
        return cls(outbox.subtask, outbox.attempt, outbox.events)

    def outbox(self) -> Outbox:
        return Outbox(self.subtask, self.attempt, self.events)


class AckEntry(NamedTuple):
    """What a subtask had acknowledged of a planned epoch; see :class:`~coord_control.protocol.records.Ack`."""

    attempt: int
    state: bytes | None
    outbox: tuple[EventBatch, ...]


def _files(value: object) -> tuple[FileEntry, ...]:
    if isinstance(value, tuple) and all(type(entry) is FileEntry for entry in value):
        return value
    try:
        files = convert(value, tuple[FileEntry, ...])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    for entry in files:
        # A restore writes to these paths.
        if entry.path.startswith("/") or ".." in entry.path.split("/"):
            raise ValueError(f"the path {entry.path!r} leaves the directory")
    return files


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


#: Opaque bytes. Events and states of subtasks are JSON and stand as text.
_Opaque: TypeAlias = Annotated[bytes | None, pydantic.BeforeValidator(_bytes), pydantic.PlainSerializer(_base64)]
_Files: TypeAlias = Annotated[
    tuple[FileEntry, ...], pydantic.PlainValidator(_files), pydantic.PlainSerializer(lambda files: files)
]


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Trigger(_Model):
    """Why there is a checkpoint.

    Attributes:
        cause: ``periodic``, ``api``, ``command``, ``stop``, ...
        key: the request's idempotency key: the same key never makes a second checkpoint.
        details: what the requester wants to read back later.
    """

    cause: str
    key: str | None = None
    requested_at: pydantic.AwareDatetime
    details: dict[str, Any] = {}


class StateOperator(_Model):
    """A stateful operator of Spark; see :mod:`coord_control.durable.spark_layout.stateful_operators`."""

    id: int
    name: str
    provider: str
    provider_class: str = ""
    partitions: int
    stores: tuple[str, ...]
    checkpoint_format: int = 1
    description_version: int = 0
    properties: dict[str, Any] = {}


class SinkSnapshot(_Model):
    """The sink of a query, and what it held at the boundary.

    Attributes:
        kind: ``file``, ``delta``, ``iceberg``, ``kafka``, ``foreachBatch``, ...; another one as Spark names it.
        place: its path or table; None if it has none, or it is not known.
        position: of a sink with versions: the newest one that holds no epoch behind the checkpoint. Of a file sink: the
            newest entry of its log. None if it has no versions, or the position is not known.
        unknown: why the position of a sink that has versions is not known; empty otherwise.
    """

    kind: str
    place: str | None = None
    position: str | None = None
    unknown: str = ""


class QuerySnapshot(_Model):
    """One query at its boundary.

    Attributes:
        epoch: the last epoch in it; -1: nothing was committed yet.
        lineage: the name of the lineage folder that it was taken from.
        offsets: one per source, as the source wrote it; None for a source that had none yet.
        planned_offsets: those of the next epoch, which a restore runs again, or None if it is not included.
        batch_metadata: the rest of Spark's offset log entry: watermark, settings.
        commit: Spark's commit log entry.
        sources: names or descriptions of the sources, as far as they are known.
        reached: how far the query had run, in all its lineages; not recorded in version 1.
        sink: None before version 3.
        planned_live: the live values that the planned epoch has seen; None if it has not asked for any.
        files: of Spark's checkpoint directory, and below ``_sink/`` of the log of a file sink.
    """

    query_id: str
    epoch: Epoch
    lineage: str
    spark_version: str
    offsets: tuple[Any, ...] = ()
    planned_offsets: tuple[Any, ...] | None = None
    batch_metadata: dict[str, Any] = {}
    commit: dict[str, Any] = {}
    state_operators: tuple[StateOperator, ...] = ()
    shuffle_partitions: int | None = None
    sources: tuple[Any, ...] = ()
    reached: Reached | None = None
    sink: SinkSnapshot | None = None
    planned_live: dict[str, LiveInForce] | None = None
    files: _Files = ()

    @property
    def planned(self) -> Epoch:
        """The last epoch in it that Spark has planned: ``epoch`` or the next one."""
        return self.epoch if self.planned_offsets is None else Epoch(self.epoch + 1)

    @property
    def size(self) -> int:
        """How many bytes the files take."""
        return sum(entry.size for entry in self.files)

    @property
    def spark_files(self) -> tuple[FileEntry, ...]:
        """The files of Spark's checkpoint directory."""
        return tuple(entry for entry in self.files if not entry.path.startswith(f"{SINK_LOG}/"))

    @property
    def sink_files(self) -> tuple[FileEntry, ...]:
        """The log of a file sink at the boundary."""
        return tuple(entry for entry in self.files if entry.path.startswith(f"{SINK_LOG}/"))


class PlannedEpoch(_Model):
    """An operator's part of the epoch that is run again; see :class:`~coord_control.protocol.recovery.Replay`.

    Attributes:
        barrier: None if it has no begin record: it is run again without inputs.
        acks: count if Spark commits the epoch without running it.
    """

    epoch: Epoch
    barrier: BarrierId | None = None
    inputs: dict[SubtaskIndex, tuple[EventBatch, ...]] = {}
    acks: dict[SubtaskIndex, AckEntry] = {}

    @classmethod
    def of(cls, replay: Replay) -> PlannedEpoch:
        acks = {subtask: AckEntry(ack.attempt, ack.state, ack.outbox) for subtask, ack in replay.acks.items()}
        return cls(epoch=replay.epoch, barrier=replay.barrier, inputs=dict(replay.inputs), acks=acks)

    def replay(self, operator: OperatorUid) -> Replay:
        acks = {subtask: Ack(operator, subtask, self.epoch, *ack) for subtask, ack in self.acks.items()}
        return Replay(self.epoch, self.barrier, dict(self.inputs), acks)


class OperatorSnapshot(_Model):
    """One coordinated operator at the boundary of its query.

    Attributes:
        state: the name of the subtask state's model.
        down_types, up_types: names of the declared event types, in order: events name theirs by position.
        coordinator_state: the coordinator's state, as it was recorded (``coordinator_data`` is without the numbers of
            events from outside); None if it has never returned any: it starts empty.
        subtask_states: JSON of those that have ever acknowledged; None for a subtask that still has its default.
        down: events in transit to the subtasks, behind the inputs of the planned epoch.
        up: events in transit to the coordinator, in order.
        planned: its part of the planned epoch, if there is one.
        wake: one of the query's sources wakes it; False before version 4.
    """

    query: QueryName
    parallelism: int
    state: str
    down_types: tuple[str, ...] = ()
    up_types: tuple[str, ...] = ()
    coordinator_state: _Opaque = None
    subtask_states: dict[SubtaskIndex, bytes | None] = {}
    down: dict[SubtaskIndex, tuple[EventBatch, ...]] = {}
    up: tuple[OutboxEntry, ...] = ()
    planned: PlannedEpoch | None = None
    wake: bool = False

    @classmethod
    def of(cls, query: QueryName, declared: LineageOperator, cut: OperatorCut) -> OperatorSnapshot:
        """Return the snapshot of an operator, from its declaration and where the protocol has cut it."""
        return cls(
            query=query,
            parallelism=declared.parallelism,
            state=declared.state,
            down_types=declared.down,
            up_types=declared.up,
            coordinator_state=cut.coordinator_state,
            subtask_states=dict(cut.states),
            down=dict(cut.down),
            up=tuple(OutboxEntry.of(outbox) for outbox in cut.up),
            planned=None if cut.replay is None else PlannedEpoch.of(cut.replay),
            wake=declared.wake,
        )

    @property
    def declared(self) -> LineageOperator:
        """Return its declaration, as a lineage remembers it."""
        return LineageOperator(
            parallelism=self.parallelism, state=self.state, down=self.down_types, up=self.up_types, wake=self.wake
        )

    @property
    def is_rescalable(self) -> bool:
        """Whether its states can be redistributed: no subtask has a part in an epoch that is run again."""
        return self.planned is None or not (self.planned.inputs or self.planned.acks)

    def cut(self, operator: OperatorUid) -> OperatorCut:
        """Return it as the protocol takes it."""
        return OperatorCut(
            operator=operator,
            coordinator_state=self.coordinator_state,
            states=dict(self.subtask_states),
            down=dict(self.down),
            up=self.outboxes(),
            replay=None if self.planned is None else self.planned.replay(operator),
        )

    @property
    def coordinator_data(self) -> bytes | None:
        """The coordinator's state, without what is recorded with it.

        Raises:
            DamagedRecord, UnsupportedFormat: it cannot be taken apart.
        """
        return unseal("", self.coordinator_state).data

    @property
    def applied_events(self) -> Mapping[str, int]:
        """The number of the last event from outside that is part of the coordinator's state, by job; 0 if none is.

        Raises:
            DamagedRecord, UnsupportedFormat: it cannot be taken apart.
        """
        return unseal("", self.coordinator_state).numbers

    def outboxes(self) -> tuple[Outbox, ...]:
        """Return the channel state upwards, as the protocol takes it."""
        return tuple(entry.outbox() for entry in self.up)


class CheckpointMetadata(_Model):
    """The content of ``_metadata``.

    Attributes:
        checkpoint: the number that people see, from 1, per job.
        barrier: what coordinators saw as its id.
        live: the live values of the job, by name; empty before version 4.
        statistics: measurements; nothing depends on them.
    """

    format_version: Literal[4] = FORMAT_VERSION
    checkpoint: CheckpointId
    kind: Kind
    job: str
    label: str | None = None
    generation: Generation
    barrier: BarrierId
    trigger: Trigger
    triggered_at: pydantic.AwareDatetime
    completed_at: pydantic.AwareDatetime
    queries: dict[QueryName, QuerySnapshot]
    operators: dict[OperatorUid, OperatorSnapshot] = {}
    live: dict[str, LiveValue] = {}
    statistics: dict[str, Any] = {}

    @pydantic.field_serializer("triggered_at", "completed_at")
    def _in_utc(self, moment: datetime.datetime) -> str:
        return moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")

    @property
    def size(self) -> int:
        """How many bytes the files of all queries take."""
        return sum(query.size for query in self.queries.values())

    @property
    def file_count(self) -> int:
        return sum(len(query.files) for query in self.queries.values())


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the content of the file."""
    fields = metadata.model_dump(mode="json", exclude={"queries": {"__all__": {"files"}}})
    for name, query in metadata.queries.items():
        fields["queries"][name]["files"] = query.files
    lines = [b'"%s":%s,\n' % (name.encode(), msgspec.json.encode(value)) for name, value in fields.items()]
    body = b"{\n" + b"".join(lines)
    return b'%s"checksum":"crc32:%08x"\n}\n' % (body, zlib.crc32(body))


def decode_metadata(path: str, data: bytes) -> CheckpointMetadata:
    """Read the file, and check all of it.

    Args:
        path: where it was read from, for the error.

    Raises:
        UnsupportedFormat: a newer release has written it.
        DamagedRecord: it is not, or no longer, what was written.
    """
    # Before the checksum: a newer release may compute it in another way.
    match = _VERSION.match(data)
    if match is None:
        raise _damaged(path, "it does not begin like the metadata of a checkpoint")
    version = int(match[1])
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(path, version, FORMAT_VERSION)
    reader = _READERS.get(version)
    if reader is None:
        raise _damaged(path, f"there is no format version {version}")
    with collector.paused():
        return reader(path, data)


def _read_older(path: str, data: bytes) -> CheckpointMetadata:
    # Later versions have more fields, all of which may be left out.
    return _read(path, data, {"format_version": FORMAT_VERSION})


def _read(path: str, data: bytes, changes: Mapping[str, Any] = MappingProxyType({})) -> CheckpointMetadata:
    end = len(data) - _CHECKSUM_LENGTH
    checksum = _CHECKSUM.fullmatch(data, max(end, 0))
    if checksum is None:
        raise _damaged(path, "its last lines are missing or altered")
    if zlib.crc32(memoryview(data)[:end]) != int(checksum[1], 16):
        raise _damaged(path, "its checksum does not fit")
    try:
        fields = msgspec.json.decode(data)
        del fields["checksum"]
        return CheckpointMetadata.model_validate({**fields, **changes})
    except (msgspec.MsgspecError, pydantic.ValidationError) as error:
        raise _damaged(path, str(error)) from error


_READERS: Final[dict[int, Callable[[str, bytes], CheckpointMetadata]]] = {
    1: _read_older,
    2: _read_older,
    3: _read_older,
    4: _read,
}


def _damaged(path: str, problem: str) -> DamagedRecord:
    return DamagedRecord(path, problem, _REMEDY)
