"""Floods: however many come, the endpoint holds no more than its limits."""

from __future__ import annotations

import resource
import socket
import struct

import pytest

from coord_control.errors import EndpointClosed
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import connect
from coord_control.spark.wire.endpoint import Limits, Rejection
from tests import endpoint_kit as kit


def test_above_the_limit_of_connections_the_newest_is_refused() -> None:
    with kit.running(kit.Recorder(), limits=Limits(connections=2)) as endpoint:
        first, second = connect(endpoint.address), connect(endpoint.address)
        with pytest.raises(EndpointClosed):
            connect(endpoint.address, kit.ONCE)
        assert endpoint.stats().rejected == {Rejection.TOO_MANY: 1}
        first.hello(kit.hello())
        first.close()
        second.close()


def test_thousands_of_half_open_connections_hold_no_more_than_the_limit() -> None:
    limits = Limits(strangers=8)
    handler = kit.Recorder()
    with kit.running(handler, limits=limits) as endpoint:
        member = connect(endpoint.address)
        half_open = [kit.RawClient(endpoint.address) for _ in range(8)]
        for client in half_open:
            assert client.next_frame() is not None
        for _ in range(2000):
            with kit.RawClient(endpoint.address) as refused:
                refused.send(struct.pack(">IB", 1000, frame_codec.Kind.RESPONSE) + bytes(500))
                assert refused.until_closed() == []
        for client in half_open:
            client.send(struct.pack(">IB", 1000, frame_codec.Kind.RESPONSE) + bytes(500))
        assert member.hello(kit.hello()) == kit.welcome(kit.hello())  # whoever is in is not disturbed
        stats = endpoint.stats()
        assert (stats.connections, stats.strangers) == (9, 8)
        assert stats.rejected == {Rejection.TOO_MANY_STRANGERS: 2000}
        assert stats.held_bytes <= 8 * (frame_codec.GREETING_FRAME_BYTES + 4)
        for client in half_open:
            client.socket.close()
        member.close()


def test_authentication_makes_room_for_the_next_stranger() -> None:
    with kit.running(kit.Recorder(), limits=Limits(strangers=1)) as endpoint:
        connections = [connect(endpoint.address) for _ in range(5)]
        assert endpoint.stats().strangers == 0
        for connection in connections:
            connection.close()


def test_an_announced_length_costs_nothing() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint:
        clients = [kit.RawClient(endpoint.address).authenticate() for _ in range(50)]
        for client in clients:
            # One packet: when the handler sees its first frame, the rest has arrived too.
            client.send(
                frame_codec.encode(kit.ended())
                + struct.pack(">IB", frame_codec.MAX_FRAME_BYTES, frame_codec.Kind.HELLO)
                + b"1234"
            )
            handler.next_token()
        kit.settle(endpoint)
        assert endpoint.stats().held_bytes == 50 * 9
        for client in clients:
            client.socket.close()


def test_a_flood_of_requests_without_answers_is_not_stored() -> None:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(frame_codec.encode(kit.ended()) * 20_000)
        for _ in range(20_000):
            handler.next_token()
        kit.settle(endpoint)
        assert endpoint.stats().held_bytes == 0
        assert endpoint.stats().frames_in == 20_000


def test_running_out_of_descriptors_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)
        with socket.socket() as late:  # made before the limit, so that only the driver lacks a descriptor
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (late.fileno() + 1, hard))
            try:
                late.connect((endpoint.address.host, endpoint.address.port))
                assert connection.hello(kit.hello()) == kit.welcome(kit.hello())
                kit.settle(endpoint)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert handler.crashes.empty()
        assert "out of system resource" in caplog.text
        connection.close()
