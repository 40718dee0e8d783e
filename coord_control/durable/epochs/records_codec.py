"""Segments: the files of the epoch store, and the only place that knows their bytes.

A segment holds the records of one write. All numbers are big-endian.

========  ====================================================================================================
header    ``CCEPOCHS``, format version u16, kind u8 (0 a log segment, 1 a base), generation u64, sequence u64,
          horizon i64, number of records u32, crc u32
record    kind u8, length of the body u32, body (MessagePack), crc u32; as many as the header says
trailer   ``CCENDREC``, number of records u32, crc u32
========  ====================================================================================================

Each crc (crc32) continues the one before it, so it covers all bytes up to itself: a record that is flipped, missing,
repeated or in another's place breaks the chain at the place that the error names. The header says which file it is: a
file under another's name is found out too. A reader refuses a format version that it does not know before it reads on.

Threads: pure functions, any.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from coord_control import collector
from coord_control.errors import DamagedRecord, UnsupportedFormat
from coord_control.ids import BarrierId, Epoch, Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.records import (
    Ack,
    Begin,
    EventBatch,
    LiveChanged,
    LiveFrozen,
    LiveInForce,
    Record,
    RunStarted,
)

__all__ = ["FORMAT_VERSION", "Header", "Segment", "decode_segment", "encode_segment"]

#: 2: begin records tell what a checkpoint held back. Segments of format 1 have none. 3: records of live values.
FORMAT_VERSION: Final = 3

_MAGIC: Final = b"CCEPOCHS"
_END: Final = b"CCENDREC"
_VERSION: Final = struct.Struct(">8sH")
_HEADER: Final = struct.Struct(">8sHBQQqI")
_RECORD: Final = struct.Struct(">BI")
_TRAILER: Final = struct.Struct(">8sI")
_CRC: Final = struct.Struct(">I")

_BEGIN: Final = 1
_ACK: Final = 2
_RUN_STARTED: Final = 3
_LIVE_FROZEN: Final = 4
_LIVE_CHANGED: Final = 5

# Thousands of records, all of which stay.
_PAUSE_COLLECTOR_ABOVE_BYTES: Final = 1 << 18


# The bodies, in the order of their fields: arrays, so that no field's name is repeated ten thousand times.


class _BeginBody(NamedTuple):
    operator: OperatorUid
    epoch: Epoch
    barrier: BarrierId
    state: bytes
    inputs: dict[SubtaskIndex, tuple[EventBatch, ...]]
    held: Mapping[SubtaskIndex, tuple[EventBatch, ...]] = MappingProxyType({})


class _AckBody(NamedTuple):
    operator: OperatorUid
    subtask: SubtaskIndex
    epoch: Epoch
    attempt: int
    state: bytes | None
    outbox: tuple[EventBatch, ...]


class _RunStartedBody(NamedTuple):
    generation: Generation
    committed: Epoch
    planned: Epoch


class _LiveFrozenBody(NamedTuple):
    epoch: Epoch
    values: dict[str, LiveInForce]


class _LiveChangedBody(NamedTuple):
    name: str
    version: int
    value: bytes
    restore: int
    key: str
    by: str
    at_seconds: float


_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[int, tuple[msgspec.msgpack.Decoder[Any], type[Record]]]] = {
    _BEGIN: (msgspec.msgpack.Decoder(_BeginBody), Begin),
    _ACK: (msgspec.msgpack.Decoder(_AckBody), Ack),
    _RUN_STARTED: (msgspec.msgpack.Decoder(_RunStartedBody), RunStarted),
    _LIVE_FROZEN: (msgspec.msgpack.Decoder(_LiveFrozenBody), LiveFrozen),
    _LIVE_CHANGED: (msgspec.msgpack.Decoder(_LiveChangedBody), LiveChanged),
}


@dataclass(frozen=True, slots=True)
class Header:
    """What a segment says about itself.

    Attributes:
        is_base: it holds all live records of the log up to ``sequence``; nothing before it is needed.
        generation: the driver that wrote it.
        sequence: its place in the generation's log, from 0; a base takes the number of the last segment that it covers.
        horizon: records of earlier epochs may have been left out because nothing can ask for them.
    """

    is_base: bool
    generation: Generation
    sequence: int
    horizon: Epoch


@dataclass(frozen=True, slots=True)
class Segment:
    header: Header
    records: list[Record]


def encode_segment(header: Header, records: Sequence[Record]) -> bytes:
    """Return a segment's bytes."""
    head = _HEADER.pack(
        _MAGIC,
        FORMAT_VERSION,
        header.is_base,
        header.generation,
        header.sequence,
        header.horizon,
        len(records),
    )
    crc = zlib.crc32(head)
    parts = [head, _CRC.pack(crc)]
    for record in records:
        kind, body = _encode(record)
        frame = _RECORD.pack(kind, len(body))
        crc = zlib.crc32(body, zlib.crc32(frame, crc))
        parts += (frame, body, _CRC.pack(crc))
    end = _TRAILER.pack(_END, len(records))
    parts += (end, _CRC.pack(zlib.crc32(end, crc)))
    return b"".join(parts)


def _encode(record: Record) -> tuple[int, bytes]:
    match record:
        case Begin(operator, epoch, barrier, state, inputs, held):
            return _BEGIN, _encoder.encode((operator, epoch, barrier, state, inputs, held))
        case Ack(operator, subtask, epoch, attempt, ack_state, outbox):
            return _ACK, _encoder.encode((operator, subtask, epoch, attempt, ack_state, outbox))
        case RunStarted(generation, committed, planned):
            return _RUN_STARTED, _encoder.encode((generation, committed, planned))
        case LiveFrozen(frozen_epoch, values):
            return _LIVE_FROZEN, _encoder.encode((frozen_epoch, values))
        case LiveChanged():
            return _LIVE_CHANGED, _encoder.encode(_LiveChangedBody(*astuple(record)))


def decode_segment(path: str, data: bytes) -> Segment:
    """Read a segment, and check all of it.

    Args:
        path: where it was read from, for the error.
        data: the whole file.

    Raises:
        UnsupportedFormat: a newer release has written it.
        DamagedRecord: it is not, or no longer, what was written.
    """
    with collector.paused(len(data) > _PAUSE_COLLECTOR_ABOVE_BYTES):
        return _Reader(path, data).segment()


class _Reader:
    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = memoryview(data)
        self._at = 0
        self._crc = 0

    def segment(self) -> Segment:
        self._check_version()
        _, _, is_base, generation, sequence, horizon, count = self._checked(_HEADER, "the header")
        if is_base not in (0, 1):
            raise self._damaged(f"the header names the unknown kind {is_base}")
        header = Header(bool(is_base), Generation(generation), sequence, Epoch(horizon))
        records = [self._record(number) for number in range(1, count + 1)]
        end, end_count = self._checked(_TRAILER, "the trailer")
        if end != _END or end_count != count:
            raise self._damaged("the trailer does not fit the header")
        if self._at != len(self._data):
            raise self._damaged(f"{len(self._data) - self._at} bytes follow the trailer")
        return Segment(header, records)

    def _check_version(self) -> None:
        # Before any crc: a newer release may compute it in another way.
        if len(self._data) < _VERSION.size:
            raise self._damaged(f"it ends after {len(self._data)} bytes, within the header")
        magic, version = _VERSION.unpack_from(self._data)
        if magic != _MAGIC or version < 1:
            raise self._damaged("it does not begin like a segment of the epoch store")
        if version > FORMAT_VERSION:
            raise UnsupportedFormat(self._path, version, FORMAT_VERSION)

    def _record(self, number: int) -> Record:
        what = f"record {number}"
        frame = self._take(_RECORD.size, what)
        kind, length = _RECORD.unpack(frame)
        body = self._take(length, what)
        self._check_crc(zlib.crc32(body, zlib.crc32(frame, self._crc)), what)
        try:
            decoder, make = _decoders[kind]
            return make(*decoder.decode(body))
        except KeyError:
            raise self._damaged(f"{what} is of the unknown kind {kind}") from None
        except msgspec.MsgspecError as exc:
            raise self._damaged(f"{what} cannot be read: {exc}") from exc

    def _checked(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        part = self._take(layout.size, what)
        self._check_crc(zlib.crc32(part, self._crc), what)
        return layout.unpack(part)

    def _check_crc(self, computed: int, what: str) -> None:
        (stored,) = _CRC.unpack(self._take(_CRC.size, what))
        if stored != computed:
            raise self._damaged(f"the checksum of {what} does not fit")
        self._crc = computed

    def _take(self, size: int, what: str) -> memoryview:
        if size > len(self._data) - self._at:
            raise self._damaged(f"it ends after {len(self._data)} bytes, within {what}")
        part = self._data[self._at : self._at + size]
        self._at += size
        return part

    def _damaged(self, problem: str) -> DamagedRecord:
        return DamagedRecord(self._path, problem)
