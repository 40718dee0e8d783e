from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord_control.durable.epochs.records_codec import FORMAT_VERSION, Header, decode_segment, encode_segment
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

#: Written when the formats were new. They must stay readable for ever and are never written anew.
GOLDEN_3 = Path(__file__).parent / "golden" / "segment-format-3.log"
GOLDEN_2 = Path(__file__).parent / "golden" / "segment-format-2.log"
GOLDEN = Path(__file__).parent / "golden" / "segment-format-1.log"
GOLDEN_HEADER = Header(is_base=True, generation=Generation(3), sequence=17, horizon=Epoch(-101))
GOLDEN_RECORDS: list[Record] = [
    Begin(
        OperatorUid("delay-threshold"),
        Epoch(0),
        BarrierId(3 << 32 | 1),
        b'{"thresholds":{}}',
        {
            SubtaskIndex(0): (EventBatch(0, 2, b'{"minutes":30.0},{"minutes":31.5}'), EventBatch(1, 1, b"{}")),
            SubtaskIndex(3): (EventBatch(0, 1, b'{"minutes":2.0}'),),
        },
    ),
    Ack(OperatorUid("delay-threshold"), SubtaskIndex(3), Epoch(0), 41, b'{"threshold":2.0}', ()),
    Ack(OperatorUid("delay-threshold"), SubtaskIndex(0), Epoch(0), 40, None, (EventBatch(0, 1, b'{"late":3}'),)),
    RunStarted(Generation(3), Epoch(-1), Epoch(0)),
    Begin(OperatorUid("other"), Epoch(1), BarrierId(3 << 32 | 2), b"", {}),
]
GOLDEN_RECORDS_2: list[Record] = [
    *GOLDEN_RECORDS,
    Begin(
        OperatorUid("other"),
        Epoch(2),
        BarrierId(3 << 32 | 5),
        b"{}",
        {SubtaskIndex(0): (EventBatch(0, 1, b"{}"),)},
        {SubtaskIndex(1): (EventBatch(1, 2, b"{},{}"),)},
    ),
]
GOLDEN_RECORDS_3: list[Record] = [
    *GOLDEN_RECORDS_2,
    LiveFrozen(Epoch(3), {"limits": LiveInForce(2, b'{"minutes":45.0}', Epoch(3))}),
    LiveChanged("limits", 2, b'{"minutes":45.0}', 1, "7c0ee4e6", "ada", 1767323047.25),
]

HEADER = Header(is_base=False, generation=Generation(2), sequence=5, horizon=Epoch(-101))

numbers = st.integers(0, 2**62)
batches = st.lists(st.builds(EventBatch, st.integers(0, 9), st.integers(1, 9), st.binary(max_size=20)), max_size=3)
uids = st.builds(OperatorUid, st.text("abc.-", min_size=1, max_size=5))
epochs = st.builds(Epoch, st.integers(-1, 2**62))
subtasks = st.builds(SubtaskIndex, numbers)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        Begin,
        uids,
        epochs,
        st.builds(BarrierId, numbers),
        st.binary(max_size=50),
        st.dictionaries(subtasks, batches.map(tuple), max_size=3),
        st.dictionaries(subtasks, batches.map(tuple), max_size=3),
    ),
    st.builds(Ack, uids, subtasks, epochs, numbers, st.none() | st.binary(max_size=50), batches.map(tuple)),
    st.builds(RunStarted, st.builds(Generation, numbers), epochs, epochs),
    st.builds(
        LiveFrozen,
        epochs,
        st.dictionaries(
            st.text(max_size=5), st.builds(LiveInForce, numbers, st.binary(max_size=20), epochs), max_size=3
        ),
    ),
    st.builds(
        LiveChanged,
        st.text(max_size=5),
        numbers,
        st.binary(max_size=20),
        numbers,
        st.text(max_size=5),
        st.text(max_size=5),
        st.floats(0, 2**40),
    ),
)
headers = st.builds(
    Header,
    is_base=st.booleans(),
    generation=st.builds(Generation, numbers),
    sequence=numbers,
    horizon=st.builds(Epoch, st.integers(-(2**63), 2**63 - 1)),
)


@given(headers, st.lists(records, max_size=6))
def test_what_is_written_is_read(header: Header, written: list[Record]) -> None:
    segment = decode_segment("x", encode_segment(header, written))
    assert (segment.header, segment.records) == (header, written)
    assert [type(record) for record in segment.records] == [type(record) for record in written]


def test_format_1_stays_readable() -> None:
    segment = decode_segment(str(GOLDEN), GOLDEN.read_bytes())
    assert (segment.header, segment.records) == (GOLDEN_HEADER, GOLDEN_RECORDS)


def test_format_3_is_what_is_written() -> None:
    assert FORMAT_VERSION == 3
    assert encode_segment(GOLDEN_HEADER, GOLDEN_RECORDS_3) == GOLDEN_3.read_bytes()


def test_format_3_stays_readable() -> None:
    segment = decode_segment(str(GOLDEN_3), GOLDEN_3.read_bytes())
    assert (segment.header, segment.records) == (GOLDEN_HEADER, GOLDEN_RECORDS_3)


def test_format_2_stays_readable() -> None:
    segment = decode_segment(str(GOLDEN_2), GOLDEN_2.read_bytes())
    assert (segment.header, segment.records) == (GOLDEN_HEADER, GOLDEN_RECORDS_2)


def test_every_flipped_bit_is_noticed_and_the_file_is_named() -> None:
    data = encode_segment(HEADER, GOLDEN_RECORDS[:3])
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamagedRecord, UnsupportedFormat), match=r"epochs/2/5\.log"):
            decode_segment("epochs/2/5.log", bytes(damaged))


def test_every_truncation_is_noticed() -> None:
    data = encode_segment(HEADER, GOLDEN_RECORDS)
    for size in range(len(data)):
        with pytest.raises(DamagedRecord, match=f"it ends after {size} bytes"):
            decode_segment("5.log", data[:size])


def test_bytes_after_the_trailer_are_noticed() -> None:
    with pytest.raises(DamagedRecord, match="1 bytes follow the trailer"):
        decode_segment("5.log", encode_segment(HEADER, GOLDEN_RECORDS) + b"\0")


def test_a_record_in_anothers_place_is_noticed_although_each_is_whole() -> None:
    first, second = (Ack(OperatorUid("a"), SubtaskIndex(0), Epoch(epoch), 1, b"s") for epoch in (1, 2))
    data = encode_segment(HEADER, [first, second])
    size = (len(data) - len(encode_segment(HEADER, []))) // 2
    start = len(encode_segment(HEADER, [])) - 16
    exchanged = data[:start] + data[start + size : start + 2 * size] + data[start : start + size] + data[-16:]
    assert sorted(exchanged) == sorted(data)
    with pytest.raises(DamagedRecord, match="the checksum of record 1 does not fit"):
        decode_segment("5.log", exchanged)


def test_a_newer_format_is_refused_before_anything_else_is_read() -> None:
    data = bytearray(encode_segment(HEADER, GOLDEN_RECORDS))
    struct.pack_into(">H", data, 8, FORMAT_VERSION + 1)
    with pytest.raises(UnsupportedFormat) as caught:
        decode_segment("epochs/2/5.log", bytes(data[:10]))
    assert (caught.value.path, caught.value.found, caught.value.newest) == (
        "epochs/2/5.log",
        FORMAT_VERSION + 1,
        FORMAT_VERSION,
    )


@pytest.mark.parametrize("data", [b"PAR1" + bytes(100), b"CCEPOCHS" + bytes(100)], ids=["foreign", "version 0"])
def test_a_foreign_file_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedRecord, match="does not begin like a segment"):
        decode_segment("5.log", data)


def with_header(field: int, value: int) -> bytes:
    """A segment whose header holds another number, and whose checksums fit all the same."""
    layout = struct.Struct(">8sHBQQqI")
    fields = [b"CCEPOCHS", 1, 0, 2, 5, -101, 0]
    fields[field] = value
    head = layout.pack(*fields)
    crc = zlib.crc32(head)
    end = struct.pack(">8sI", b"CCENDREC", 0)
    return head + struct.pack(">I", crc) + end + struct.pack(">I", zlib.crc32(end, crc))


def with_trailer(end: bytes, count: int) -> bytes:
    data = with_header(1, FORMAT_VERSION)[:-16]
    (crc,) = struct.unpack(">I", data[-4:])
    trailer = struct.pack(">8sI", end, count)
    return data + trailer + struct.pack(">I", zlib.crc32(trailer, crc))


def with_record(kind: int, body: bytes) -> bytes:
    head = struct.pack(">8sHBQQqI", b"CCEPOCHS", 1, 0, 2, 5, -101, 1)
    crc = zlib.crc32(head)
    record = struct.pack(">BI", kind, len(body)) + body
    return head + struct.pack(">I", crc) + record + struct.pack(">I", zlib.crc32(record, crc))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (with_header(2, 2), "the unknown kind 2"),
        (with_trailer(b"CCENDREC", 1), "the trailer does not fit"),
        (with_trailer(b"CCENDXXX", 0), "the trailer does not fit"),
        (with_record(9, b"\x90"), "record 1 is of the unknown kind 9"),
        (with_record(3, b"\x92\x01\x02"), "record 1 cannot be read"),
        (with_record(2, b"\xc1"), "record 1 cannot be read"),
    ],
    ids=["file kind", "trailer count", "trailer magic", "record kind", "fields missing", "not MessagePack"],
)
def test_a_wrong_writer_is_noticed_even_when_the_checksums_fit(data: bytes, problem: str) -> None:
    with pytest.raises(DamagedRecord, match=problem):
        decode_segment("5.log", data)


def test_the_parts_of_a_wrong_writer_are_right_otherwise() -> None:
    assert decode_segment("5.log", with_header(1, FORMAT_VERSION)).records == []


@settings(max_examples=300)
@given(st.binary(max_size=80), st.booleans())
def test_garbage_is_refused_with_an_error_of_ours(garbage: bytes, with_magic: bool) -> None:
    data = b"CCEPOCHS\0\1" + garbage if with_magic else garbage
    with pytest.raises((DamagedRecord, UnsupportedFormat)):
        decode_segment("5.log", data)
