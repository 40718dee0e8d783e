"""Peers that break the rules: each is dropped, counted, and disturbs nobody else."""

from __future__ import annotations

import dataclasses
import ssl
import struct

import pytest

from coord_control.errors import AuthenticationFailed
from coord_control.ids import Generation
from coord_control.protocol.messages import Accepted
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import connect
from coord_control.spark.wire.endpoint import Limits, Rejection
from tests import endpoint_kit as kit
from tests.patience import SECONDS


def test_a_second_request_before_the_answer_ends_the_connection() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(frame_codec.encode(kit.hello()))
        token = handler.next_token()
        client.send(frame_codec.encode(kit.acknowledge()))
        assert client.until_closed() == []
        assert handler.gone.get(timeout=SECONDS) is token
        assert handler.messages.empty()
        assert endpoint.stats().rejected == {Rejection.PIPELINED: 1}


def test_two_requests_in_one_packet_end_the_connection_even_with_a_prompt_driver() -> None:
    handler = kit.Recorder(kit.large)
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(frame_codec.encode(kit.hello()) * 2)
        # Nothing is read before: who reads at once may have the whole answer before the second request is looked at.
        assert handler.gone.get(timeout=SECONDS) is handler.next_token()
        assert endpoint.stats().rejected == {Rejection.PIPELINED: 1}


def test_the_end_of_an_attempt_may_be_told_while_an_answer_is_outstanding() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(frame_codec.encode(kit.hello()) + frame_codec.encode(kit.ended()) * 2)
        token = handler.next_token()
        assert handler.next_token() is handler.next_token() is token
        endpoint.call_soon_threadsafe(endpoint.answer, token, Accepted())
        assert client.next_frame() == (frame_codec.Kind.ACCEPTED, b"\x80")


def test_a_peer_that_does_not_read_its_answer_is_dropped() -> None:
    handler = kit.Recorder(kit.large)
    limits = Limits(slow_seconds=0.01)
    with kit.running(handler, limits=limits) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(frame_codec.encode(kit.hello()))
        assert handler.gone.get(timeout=SECONDS) is handler.next_token()
        assert endpoint.stats().rejected == {Rejection.SLOW: 1}
        assert endpoint.stats().held_bytes == 0


def test_a_peer_that_does_not_finish_the_handshake_is_dropped() -> None:
    limits = Limits(handshake_seconds=0.01)
    with kit.running(kit.Recorder(), limits=limits) as endpoint, kit.RawClient(endpoint.address) as client:
        assert [kind for kind, _ in client.until_closed()] == [frame_codec.Kind.CHALLENGE]
        kit.settle(endpoint)
        stats = endpoint.stats()
        assert stats.rejected == {Rejection.HANDSHAKE_TIMEOUT: 1}
        assert (stats.connections, stats.strangers) == (0, 0)


def test_a_tls_handshake_that_never_begins_counts_as_half_open() -> None:
    limits = Limits(handshake_seconds=0.01)
    handler = kit.Recorder()
    with kit.running(handler, tls=True, limits=limits) as endpoint, kit.RawClient(endpoint.address) as client:
        assert client.until_closed() == []
        assert endpoint.stats().rejected == {Rejection.HANDSHAKE_TIMEOUT: 1}


def test_a_stranger_that_makes_us_say_much_is_dropped() -> None:
    with kit.running(kit.Recorder()) as endpoint, kit.RawClient(endpoint.address) as client:
        assert client.next_frame() is not None
        (peer,) = endpoint._shared.peers
        endpoint.call_soon_threadsafe(peer.pause_writing)  # what asyncio calls when 64 KiB are not taken
        assert client.until_closed() == []
        assert endpoint.stats().rejected == {Rejection.SLOW: 1}


@pytest.mark.parametrize(
    ("data", "rejection"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Rejection.HANDSHAKE),
        (struct.pack(">IB", 1 << 30, frame_codec.Kind.RESPONSE), Rejection.HANDSHAKE),
        (struct.pack(">IB", 0, frame_codec.Kind.RESPONSE), Rejection.HANDSHAKE),
        (frame_codec.encode(kit.hello()), Rejection.HANDSHAKE),
        (frame_codec.encode(frame_codec.Proof(b"p" * 32)), Rejection.HANDSHAKE),
        (frame_codec.encode(frame_codec.Rejected("malformed", "no")), Rejection.HANDSHAKE),
        (frame_codec.encode(frame_codec.Response(2, b"n" * 32, b"p" * 32)), Rejection.SECRET),
        (frame_codec.encode(frame_codec.Response(3, b"n" * 32, b"p" * 32)), Rejection.VERSION),
        (frame_codec.encode(frame_codec.Rejected("version", "2")), Rejection.VERSION),
    ],
    ids=["http", "1GiB", "empty", "hello", "proof", "rejected", "secret", "version", "client-version"],
)
def test_a_stranger_that_says_something_else_is_dropped_and_counted(data: bytes, rejection: Rejection) -> None:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address) as client:
        client.send(data)
        client.until_closed()
        kit.settle(endpoint)
        stats = endpoint.stats()
        assert stats.rejected == {rejection: 1}
        assert (stats.connections, stats.strangers, stats.held_bytes) == (0, 0, 0)
        assert handler.messages.empty()
        assert handler.gone.empty()


def test_a_client_of_another_version_is_told_why() -> None:
    with kit.running(kit.Recorder()) as endpoint, kit.RawClient(endpoint.address) as client:
        client.send(frame_codec.encode(frame_codec.Response(3, b"n" * 32, b"p" * 32)))
        _, last = client.until_closed()
        rejected = frame_codec.decode_greeting(*last)
        assert isinstance(rejected, frame_codec.Rejected)
        assert rejected.reason == "version"
        assert "install the same release" in rejected.why


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">IB", 1 << 30, frame_codec.Kind.HELLO),
        struct.pack(">IB", 2, frame_codec.Kind.HELLO) + b"\x80",
        struct.pack(">IB", 2, frame_codec.Kind.WELCOME) + b"\x80",
        frame_codec.encode(frame_codec.Rejected("", "")),
    ],
    ids=["http", "1GiB", "no-attempt", "kind", "greeting"],
)
def test_a_malformed_request_ends_the_connection(data: bytes) -> None:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(data)
        assert client.until_closed() == []
        handler.gone.get(timeout=SECONDS)
        assert endpoint.stats().rejected == {Rejection.FRAME: 1}
        assert endpoint.stats().held_bytes == 0


@kit.plain_and_tls
def test_a_wrong_secret_or_generation_is_refused_and_counted(tls: bool) -> None:
    with kit.running(kit.Recorder(), tls=tls) as endpoint:
        address = endpoint.address
        for wrong in (
            dataclasses.replace(address, secret=b"w" * 32),
            dataclasses.replace(address, generation=Generation(2)),
        ):
            with pytest.raises(AuthenticationFailed, match=f"127.0.0.1:{address.port}.*secret is not the one"):
                connect(wrong)
        assert endpoint.stats().rejected == {Rejection.SECRET: 2}


def test_a_client_does_not_talk_to_a_driver_with_another_certificate() -> None:
    with kit.running(kit.Recorder(), tls=True) as endpoint, kit.running(kit.Recorder(), tls=True) as other:
        wrong = dataclasses.replace(endpoint.address, certificate=other.address.certificate)
        with pytest.raises(AuthenticationFailed, match="its certificate is not the driver's"):
            connect(wrong)


def test_plain_text_to_an_encrypted_endpoint_is_refused() -> None:
    with kit.running(kit.Recorder(), tls=True) as endpoint, kit.RawClient(endpoint.address) as client:
        client.send(frame_codec.encode(frame_codec.Response(2, b"n" * 32, b"p" * 32)))
        client.socket.recv(1000)
        assert endpoint.stats().rejected == {Rejection.TLS: 1}


def test_an_orderly_end_of_tls_is_an_ordinary_goodbye() -> None:
    handler = kit.Recorder()
    with kit.running(handler, tls=True) as endpoint:
        connection = connect(endpoint.address)
        connection.hello(kit.hello())
        encrypted = connection._socket
        assert isinstance(encrypted, ssl.SSLSocket)
        with pytest.raises(OSError, match=r"EOF|reset|closed"):
            encrypted.unwrap()
        handler.gone.get(timeout=SECONDS)
        assert endpoint.stats().rejected == {}
        connection.close()
