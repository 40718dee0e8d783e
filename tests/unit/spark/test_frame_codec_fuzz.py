"""Arbitrary and hostile bytes against the codec, the handshake and a real endpoint."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coord_control.errors import FrameInvalid
from coord_control.ids import AttemptId, Epoch, Generation, OperatorUid, RunId, SubtaskIndex
from coord_control.protocol.messages import (
    Accepted,
    Acknowledge,
    Answer,
    AttemptEnded,
    Hello,
    Measurements,
    Refused,
    Welcome,
)
from coord_control.protocol.records import EventBatch
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import connect
from coord_control.spark.wire.endpoint import Endpoint
from coord_control.spark.wire.handshake import ClientHandshake, Failed, Proceed, ServerHandshake, Step
from tests import endpoint_kit as kit

SECRET, GENERATION = b"s" * 32, Generation(7)

numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
blobs = st.binary(max_size=300)
states = st.none() | blobs
events = st.lists(st.builds(EventBatch, numbers, numbers, blobs), max_size=3).map(tuple)
attempts = st.builds(
    AttemptId,
    numbers.map(Generation),
    texts.map(RunId),
    texts,
    texts.map(OperatorUid),
    numbers.map(SubtaskIndex),
    numbers.map(Epoch),
    numbers,
    numbers,
    numbers,
)
measurements = st.builds(Measurements, numbers, numbers, st.floats(allow_nan=False))
requests: st.SearchStrategy[frame_codec.Request] = st.one_of(
    st.builds(Hello, attempts),
    st.builds(Acknowledge, attempts, states, events, measurements),
    st.builds(AttemptEnded, attempts, texts, st.booleans()),
)
answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Welcome, states, events), st.just(Accepted()), st.builds(Refused, texts)
)
greetings: st.SearchStrategy[frame_codec.Greeting] = st.one_of(
    st.builds(frame_codec.Challenge, numbers, blobs),
    st.builds(
        frame_codec.Response,
        st.just(frame_codec.PROTOCOL_VERSION) | numbers,
        st.binary(min_size=32, max_size=32),
        blobs,
    ),
    st.builds(frame_codec.Proof, blobs),
    st.builds(frame_codec.Rejected, texts, texts),
)


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        yield data[begin:end]


def decode(kind: int, body: frame_codec.Buffer) -> frame_codec.Message:
    if kind < frame_codec.Kind.HELLO:
        return frame_codec.decode_greeting(kind, body)
    return (
        frame_codec.decode_request(kind, body)
        if kind < frame_codec.Kind.WELCOME
        else frame_codec.decode_answer(kind, body)
    )


@given(st.lists(requests | answers | greetings, max_size=5), st.lists(st.integers(0, 10_000), max_size=30))
def test_any_messages_cut_anywhere_arrive_unchanged(messages: list[frame_codec.Message], cuts: list[int]) -> None:
    reader, got = frame_codec.FrameReader(frame_codec.MAX_FRAME_BYTES), list[frame_codec.Message]()
    for piece in pieces(b"".join(map(frame_codec.encode, messages)), cuts):
        got += [decode(kind, body) for kind, body in reader.frames(memoryview(piece))]
    assert got == messages
    assert reader.held == 0


@given(st.binary(max_size=5000), st.lists(st.integers(0, 10_000), max_size=30), st.integers(1, 2000))
@example(struct.pack(">I", 1 << 30) * 1000, [1, 2, 3, 4, 5, 6], 1024)
@example(struct.pack(">IB", 1024, 16) + bytes(4000), list(range(2000)), 1024)
def test_any_bytes_are_frames_or_an_error_and_never_more_than_one_frame_is_held(
    data: bytes, cuts: list[int], limit: int
) -> None:
    reader = frame_codec.FrameReader(limit)
    taken = 0
    try:
        for piece in pieces(data, cuts):
            for _, body in reader.frames(memoryview(piece)):
                assert len(body) < limit
                taken += 5 + len(body)
            assert reader.held <= limit + 4
    except FrameInvalid:
        assert reader.held <= limit + 4
    else:
        assert taken + reader.held == len(data)


@given(st.sampled_from(frame_codec.Kind), st.binary(max_size=300))
def test_any_body_is_a_message_of_its_kind_or_an_error(kind: frame_codec.Kind, body: bytes) -> None:
    try:
        message = decode(kind, body)
    except FrameInvalid:
        return
    assert frame_codec.encode(message)[4] == kind


@given(requests | answers | greetings, st.data())
def test_a_damaged_message_is_a_message_or_an_error(message: frame_codec.Message, data: st.DataObject) -> None:
    frame = bytearray(frame_codec.encode(message))
    kind, body = frame[4], frame[5:]
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(body)))
    for damaged in (body, body[:end]):
        try:
            again = decode(kind, bytes(damaged))
        except FrameInvalid:
            continue
        assert type(again) is type(message)


# The handshake.


def give(to: ServerHandshake | ClientHandshake, frame: bytes) -> Step:
    ((kind, body),) = frame_codec.FrameReader(frame_codec.MAX_FRAME_BYTES).frames(memoryview(frame))
    return to.receive(kind, body)


nonces = st.binary(min_size=32, max_size=32)


@given(nonces, st.integers(0, 255), st.binary(max_size=300))
def test_no_bytes_authenticate_without_the_secret(nonce: bytes, kind: int, body: bytes) -> None:
    step = ServerHandshake(SECRET, GENERATION, nonce).receive(kind, body)
    assert isinstance(step, Failed)
    assert len(step.frame) <= frame_codec.GREETING_FRAME_BYTES


@given(nonces, greetings)
def test_no_greeting_authenticates_without_the_secret(nonce: bytes, greeting: frame_codec.Greeting) -> None:
    assert isinstance(give(ServerHandshake(SECRET, GENERATION, nonce), frame_codec.encode(greeting)), Failed)


@given(nonces, st.lists(greetings, max_size=6))
def test_no_driver_is_believed_without_the_secret(nonce: bytes, greetings_: list[frame_codec.Greeting]) -> None:
    client = ClientHandshake(SECRET, GENERATION, nonce)
    for greeting in greetings_:
        step = give(client, frame_codec.encode(greeting))
        if isinstance(step, Failed):
            return
        assert not step.is_done


@given(nonces, nonces, nonces)
def test_a_recorded_handshake_only_fits_its_own_nonces(first: bytes, second: bytes, client_nonce: bytes) -> None:
    driver, client = ServerHandshake(SECRET, GENERATION, first), ClientHandshake(SECRET, GENERATION, client_nonce)
    response = give(client, driver.challenge())
    assert isinstance(response, Proceed)
    replayed = give(ServerHandshake(SECRET, GENERATION, second), response.frame)
    assert isinstance(replayed, Proceed) == (first == second)
    assert isinstance(give(driver, response.frame), Proceed)


@given(nonces, nonces, st.data())
def test_a_changed_handshake_authenticates_nobody(
    server_nonce: bytes, client_nonce: bytes, data: st.DataObject
) -> None:
    driver, client = (
        ServerHandshake(SECRET, GENERATION, server_nonce),
        ClientHandshake(SECRET, GENERATION, client_nonce),
    )

    def tamper(frame: bytes) -> bytes:
        changed = bytearray(frame)
        changed[data.draw(st.integers(5, len(frame) - 1))] ^= data.draw(st.integers(0, 255))
        return bytes(changed)

    def same(one: bytes, other: bytes) -> bool:
        try:
            return frame_codec.decode_greeting(one[4], one[5:]) == frame_codec.decode_greeting(other[4], other[5:])
        except FrameInvalid:
            return False

    challenge = driver.challenge()
    seen = tamper(challenge)
    response = give(client, seen)
    if isinstance(response, Failed):
        return
    forwarded = tamper(response.frame)
    proof = give(driver, forwarded)
    # The driver accepts only what the client has answered to exactly this challenge.
    assert isinstance(proof, Proceed) == (same(challenge, seen) and same(response.frame, forwarded))
    if isinstance(proof, Proceed):
        returned = tamper(proof.frame)
        end = give(client, returned)
        assert isinstance(end, Proceed) == same(proof.frame, returned)


# A real endpoint. What a peer sends must never reach the handler as a crash or disturb the others.


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Endpoint, kit.Recorder]]:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint:
        yield endpoint, handler


streams = st.binary(max_size=3000) | st.lists(requests | answers | greetings, max_size=4).map(
    lambda messages: b"".join(map(frame_codec.encode, messages))
)


@settings(max_examples=60, deadline=None)
@given(streams, st.lists(st.integers(0, 10_000), max_size=20), st.booleans())
def test_an_endpoint_survives_any_stream(
    served: tuple[Endpoint, kit.Recorder], data: bytes, cuts: list[int], is_member: bool
) -> None:
    endpoint, handler = served
    with kit.RawClient(endpoint.address) as client:
        if is_member:
            client.authenticate()
        for piece in pieces(data, cuts):
            client.send(piece)
    connection = connect(endpoint.address)
    assert connection.hello(kit.hello()) == kit.welcome(kit.hello())
    connection.close()
    assert handler.crashes.empty()
