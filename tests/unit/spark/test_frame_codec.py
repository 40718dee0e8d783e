from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec
import pytest

from coord_control.errors import FrameInvalid
from coord_control.protocol.messages import Accepted, Acknowledge, Answer, AttemptEnded, Hello, Refused, Welcome
from coord_control.protocol.records import EventBatch
from coord_control.spark.wire import frame_codec
from tests import endpoint_kit as kit

REQUESTS: list[frame_codec.Request] = [kit.hello(), kit.acknowledge(), Acknowledge(kit.attempt(), None), kit.ended()]
ANSWERS: list[Answer] = [
    Welcome(None, ()),
    kit.welcome(kit.hello()),
    Accepted(),
    Refused("epoch 3 is settled: déjà vu"),
]
GREETINGS: list[frame_codec.Greeting] = [
    frame_codec.Challenge(1, b"n" * 32),
    frame_codec.Response(1, b"n" * 32, b"p" * 32),
    frame_codec.Proof(b"p" * 32),
    frame_codec.Rejected("version", "upgrade"),
]


def frames(reader: frame_codec.FrameReader, data: bytes) -> list[tuple[int, bytes]]:
    return [(kind, bytes(body)) for kind, body in reader.frames(memoryview(data))]


def only_frame(message: frame_codec.Message) -> tuple[int, bytes]:
    (frame,) = frames(frame_codec.FrameReader(frame_codec.MAX_FRAME_BYTES), frame_codec.encode(message))
    return frame


@pytest.mark.parametrize("message", REQUESTS, ids=repr)
def test_a_request_arrives_as_it_was_sent(message: frame_codec.Request) -> None:
    got = frame_codec.decode_request(*only_frame(message))
    assert got == message
    assert type(got.attempt) is type(message.attempt)


@pytest.mark.parametrize("message", ANSWERS, ids=repr)
def test_an_answer_arrives_as_it_was_sent(message: Answer) -> None:
    assert frame_codec.decode_answer(*only_frame(message)) == message


@pytest.mark.parametrize("message", GREETINGS, ids=repr)
def test_a_greeting_arrives_as_it_was_sent(message: frame_codec.Greeting) -> None:
    assert frame_codec.decode_greeting(*only_frame(message)) == message


def test_decoded_bytes_do_not_point_into_the_receive_buffer() -> None:
    buffer = bytearray(frame_codec.encode(kit.acknowledge()))
    ((kind, body),) = frame_codec.FrameReader().frames(memoryview(buffer))
    got = frame_codec.decode_request(kind, body)
    buffer[:] = bytes(len(buffer))
    assert got == kit.acknowledge()


def test_the_layout_of_a_frame_never_changes() -> None:
    assert frame_codec.encode(Accepted()) == b"\x00\x00\x00\x02\x21\x80"
    assert frame_codec.encode(Refused("no")) == b"\x00\x00\x00\x0c\x22\x81\xa6reason\xa2no"
    assert {kind.name: kind.value for kind in frame_codec.Kind} == {
        "CHALLENGE": 1,
        "RESPONSE": 2,
        "PROOF": 3,
        "REJECTED": 4,
        "HELLO": 16,
        "ACKNOWLEDGE": 17,
        "ATTEMPT_ENDED": 18,
        "WELCOME": 32,
        "ACCEPTED": 33,
        "REFUSED": 34,
        "PART": 35,
    }


def test_handshake_frames_fit_the_limit_before_authentication() -> None:
    assert max(len(frame_codec.encode(message)) for message in GREETINGS) < frame_codec.GREETING_FRAME_BYTES


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (frame_codec.decode_request, Accepted()),
        (frame_codec.decode_request, frame_codec.Proof(b"")),
        (frame_codec.decode_answer, kit.hello()),
        (frame_codec.decode_greeting, kit.hello()),
    ],
)
def test_a_kind_that_the_other_side_may_not_send_is_refused(
    decode: Callable[[int, bytes], object], message: frame_codec.Message
) -> None:
    with pytest.raises(FrameInvalid, match="is not expected here"):
        decode(*only_frame(message))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(FrameInvalid, match="kind 255"):
        frame_codec.decode_request(255, b"\x80")


HELLO_BODY = only_frame(kit.hello())[1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        HELLO_BODY[:-1],
        HELLO_BODY + b"\xc0",
        b"\xc1",
        b"\x80",
        HELLO_BODY.replace(b"alerts", b"aler\xff\xff"),
        msgspec.msgpack.encode({"attempt": ["3", "run", "q", "op", 0, 1, 2, 3, 4]}),
        msgspec.msgpack.encode({"attempt": [3, "run", "q", "op", 0, 1, 2, 3]}),
        msgspec.msgpack.encode([1, 2, 3]),
        b"\x81\xa1x" + b"\x91" * 100_000,
        b"\x81\xa7attempt\xdd\xff\xff\xff\xff",
    ],
    ids=[
        "empty",
        "truncated",
        "trailing",
        "opcode",
        "no-field",
        "utf8",
        "type",
        "arity",
        "array",
        "nested",
        "huge-array",
    ],
)
def test_a_body_that_is_no_hello_is_refused(body: bytes) -> None:
    with pytest.raises(FrameInvalid, match="HELLO"):
        frame_codec.decode_request(frame_codec.Kind.HELLO, body)


@pytest.mark.parametrize("opcode", [b"\xdd", b"\xdf", b"\xc6", b"\xdb"], ids=["array", "map", "bytes", "text"])
def test_a_size_that_is_only_announced_is_not_believed(opcode: bytes) -> None:
    body = b"\x82\xa5state\xc0\xa6inputs" + opcode + b"\xff\xff\xff\xff"
    with pytest.raises(FrameInvalid):
        frame_codec.decode_answer(frame_codec.Kind.WELCOME, body)


def test_a_message_above_the_limit_is_refused_by_its_sender() -> None:
    with pytest.raises(FrameInvalid, match=r"WELCOME would take 671.* the limit is 67108864"):
        frame_codec.encode(Welcome(bytes(frame_codec.MAX_FRAME_BYTES), ()))


def test_the_largest_message_passes() -> None:
    overhead = len(frame_codec.encode(Welcome(bytes(100_000), ()))) - 4 - 100_000
    message = Welcome(bytes(frame_codec.MAX_FRAME_BYTES - overhead), ())
    assert frame_codec.decode_answer(*only_frame(message)) == message
    with pytest.raises(FrameInvalid):
        frame_codec.encode(Welcome(bytes(frame_codec.MAX_FRAME_BYTES - overhead + 1), ()))


def test_frames_survive_being_cut_at_every_place() -> None:
    stream = frame_codec.encode(kit.hello()) + frame_codec.encode(Accepted()) + frame_codec.encode(kit.ended())
    expected = [only_frame(kit.hello()), only_frame(Accepted()), only_frame(kit.ended())]
    for cut in range(len(stream) + 1):
        reader = frame_codec.FrameReader()
        assert frames(reader, stream[:cut]) + frames(reader, stream[cut:]) == expected
        assert reader.held == 0


def test_frames_survive_arriving_byte_by_byte() -> None:
    reader, got = frame_codec.FrameReader(), list[tuple[int, bytes]]()
    for byte in frame_codec.encode(kit.hello()) + frame_codec.encode(Accepted()):
        got += frames(reader, bytes([byte]))
    assert got == [only_frame(kit.hello()), only_frame(Accepted())]


@pytest.mark.parametrize("length", [0, frame_codec.GREETING_FRAME_BYTES + 1, 1 << 30, (1 << 32) - 1])
@pytest.mark.parametrize("first", [1, 4, 5, 100])
def test_a_length_outside_the_limits_ends_the_stream_before_its_body_is_kept(length: int, first: int) -> None:
    data = struct.pack(">IB", length, frame_codec.Kind.HELLO) + bytes(1000)
    reader = frame_codec.FrameReader()

    def feed() -> None:
        frames(reader, data[:first])
        frames(reader, data[first:])

    with pytest.raises(FrameInvalid, match=f"a length of {length} bytes; 1 to 1024"):
        feed()
    assert reader.held <= 5


def test_the_limit_counts_from_the_next_frame_on_even_within_one_read() -> None:
    large = Welcome(bytes(5000), (EventBatch(0, 1, b"{}"),))
    reader, got = frame_codec.FrameReader(), list[int]()
    for kind, _ in reader.frames(memoryview(frame_codec.encode(frame_codec.Proof(b"p")) + frame_codec.encode(large))):
        got.append(kind)
        reader.limit = frame_codec.MAX_FRAME_BYTES
    assert got == [frame_codec.Kind.PROOF, frame_codec.Kind.WELCOME]


def test_memory_follows_what_arrived_not_what_was_announced() -> None:
    reader = frame_codec.FrameReader(frame_codec.MAX_FRAME_BYTES)
    assert frames(reader, struct.pack(">IB", frame_codec.MAX_FRAME_BYTES, frame_codec.Kind.HELLO) + b"abc") == []
    assert reader.held == 8


def test_every_message_type_has_a_kind_of_its_own() -> None:
    messages: list[frame_codec.Message] = [*GREETINGS, *ANSWERS, *REQUESTS]
    assert len({only_frame(message)[0] for message in messages}) == len(frame_codec.Kind) - 1  # a part is no message
    assert {type(m) for m in REQUESTS} == {Hello, Acknowledge, AttemptEnded}


def test_an_answer_is_cut_only_where_it_does_not_fit_into_one_frame() -> None:
    fits = frame_codec.MAX_FRAME_BYTES - 1 - (len(frame_codec.encode(Refused("x" * (1 << 16)))) - (1 << 16) - 5)
    assert len(frame_codec.encode_answer(Refused("x" * fits))) == 1
    whole, rest = frame_codec.encode_answer(Refused("x" * (fits + 1)))
    assert (whole[4], rest[4], len(rest)) == (frame_codec.Kind.PART, frame_codec.Kind.REFUSED, 6)
