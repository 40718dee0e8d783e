from __future__ import annotations

import dataclasses
import gc
import logging
import resource
import socket
import ssl
import struct
import threading

import pytest

from coord_control.errors import (
    AttemptRefused,
    AuthenticationFailed,
    EndpointClosed,
    EndpointNotBound,
    InvalidTransition,
)
from coord_control.ids import Generation
from coord_control.protocol.messages import Accepted, Answer, Hello, Welcome
from coord_control.spark import wire
from coord_control.spark.connection import Patience, connect
from coord_control.spark.endpoint import THREAD_NAME, Endpoint, Limits, Rejection
from tests import endpoint_kit as kit

ONCE = Patience(tries=1)
both = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


def large(message: wire.Request) -> Answer | None:
    return Welcome(bytes(32 * 1024 * 1024), ())  # more than the kernel's buffers take


@both
def test_a_subtask_says_hello_and_acknowledges(tls: bool) -> None:
    handler = kit.Recorder()
    with kit.running(handler, tls=tls) as endpoint:
        connection = connect(endpoint.address)
        assert connection.hello(kit.hello()) == kit.welcome(kit.hello())
        connection.acknowledge(kit.acknowledge())
        connection.ended(kit.ended())
        received = [handler.messages.get(timeout=kit.SECONDS) for _ in range(3)]
        assert [message for message, _ in received] == [kit.hello(), kit.acknowledge(), kit.ended()]
        assert len({id(token) for _, token in received}) == 1
        assert handler.threads == {THREAD_NAME}
        stats = endpoint.stats()
        assert (stats.connections, stats.strangers, stats.accepted) == (1, 0, 1)
        assert (stats.frames_in, stats.frames_out, stats.rejected) == (3, 2, {})
        connection.close()
        assert handler.gone.get(timeout=kit.SECONDS) is received[0][1]


@both
def test_large_messages_pass_in_both_directions(tls: bool) -> None:
    with kit.running(kit.Recorder(large), tls=tls) as endpoint:
        connection = connect(endpoint.address)
        for _ in range(2):
            answer = connection.hello(Hello(kit.attempt()._replace(query_id="q" * 20_000_000)))
            assert answer == large(kit.hello())
        connection.close()


def test_an_answer_may_come_later_from_another_thread() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint:
        with kit.RawClient(endpoint.address).authenticate() as client:
            client.send(wire.encode(kit.hello()))
            token = handler.next_token()
            endpoint.call_soon_threadsafe(endpoint.answer, token, Accepted())
            assert client.next_frame() == (wire.Kind.ACCEPTED, b"\x80")


def test_the_loop_does_what_it_is_given_in_order() -> None:
    seen: list[int] = []
    with kit.running(kit.Recorder()) as endpoint:
        for number in range(100):
            endpoint.call_soon_threadsafe(seen.append, number)
        kit.settle(endpoint)
    assert seen == list(range(100))


# Peers that break the rules.


def test_a_second_request_before_the_answer_ends_the_connection() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(wire.encode(kit.hello()))
        token = handler.next_token()
        client.send(wire.encode(kit.acknowledge()))
        assert client.until_closed() == []
        assert handler.gone.get(timeout=kit.SECONDS) is token
        assert handler.messages.empty()
        assert endpoint.stats().rejected == {Rejection.PIPELINED: 1}


def test_two_requests_in_one_packet_end_the_connection_even_with_a_prompt_driver() -> None:
    with kit.running(kit.Recorder(large)) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(wire.encode(kit.hello()) * 2)
        client.until_closed()
        assert endpoint.stats().rejected == {Rejection.PIPELINED: 1}


def test_the_end_of_an_attempt_may_be_told_while_an_answer_is_outstanding() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(wire.encode(kit.hello()) + wire.encode(kit.ended()) * 2)
        token = handler.next_token()
        assert handler.next_token() is handler.next_token() is token
        endpoint.call_soon_threadsafe(endpoint.answer, token, Accepted())
        assert client.next_frame() == (wire.Kind.ACCEPTED, b"\x80")


def test_a_peer_that_does_not_read_its_answer_is_dropped() -> None:
    handler = kit.Recorder(large)
    limits = Limits(slow_seconds=0.01)
    with kit.running(handler, limits=limits) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(wire.encode(kit.hello()))
        assert handler.gone.get(timeout=kit.SECONDS) is handler.next_token()
        assert endpoint.stats().rejected == {Rejection.SLOW: 1}
        assert endpoint.stats().held_bytes == 0


def test_a_peer_that_does_not_finish_the_handshake_is_dropped() -> None:
    limits = Limits(handshake_seconds=0.01)
    with kit.running(kit.Recorder(), limits=limits) as endpoint, kit.RawClient(endpoint.address) as client:
        assert [kind for kind, _ in client.until_closed()] == [wire.Kind.CHALLENGE]
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
        (struct.pack(">IB", 1 << 30, wire.Kind.RESPONSE), Rejection.HANDSHAKE),
        (struct.pack(">IB", 0, wire.Kind.RESPONSE), Rejection.HANDSHAKE),
        (wire.encode(kit.hello()), Rejection.HANDSHAKE),
        (wire.encode(wire.Proof(b"p" * 32)), Rejection.HANDSHAKE),
        (wire.encode(wire.Rejected("malformed", "no")), Rejection.HANDSHAKE),
        (wire.encode(wire.Response(1, b"n" * 32, b"p" * 32)), Rejection.SECRET),
        (wire.encode(wire.Response(2, b"n" * 32, b"p" * 32)), Rejection.VERSION),
        (wire.encode(wire.Rejected("version", "2")), Rejection.VERSION),
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
        assert stats.authentication_failures == (rejection is Rejection.SECRET)
        assert handler.messages.empty()
        assert handler.gone.empty()


def test_a_client_of_another_version_is_told_why() -> None:
    with kit.running(kit.Recorder()) as endpoint, kit.RawClient(endpoint.address) as client:
        client.send(wire.encode(wire.Response(2, b"n" * 32, b"p" * 32)))
        _, last = client.until_closed()
        rejected = wire.decode_greeting(*last)
        assert isinstance(rejected, wire.Rejected)
        assert rejected.reason == "version"
        assert "install the same release" in rejected.why


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">IB", 1 << 30, wire.Kind.HELLO),
        struct.pack(">IB", 2, wire.Kind.HELLO) + b"\x80",
        struct.pack(">IB", 2, wire.Kind.WELCOME) + b"\x80",
        wire.encode(wire.Rejected("", "")),
    ],
    ids=["http", "1GiB", "no-attempt", "kind", "greeting"],
)
def test_a_malformed_request_ends_the_connection(data: bytes) -> None:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(data)
        assert client.until_closed() == []
        handler.gone.get(timeout=kit.SECONDS)
        assert endpoint.stats().rejected == {Rejection.FRAME: 1}
        assert endpoint.stats().held_bytes == 0


@both
def test_a_wrong_secret_or_generation_is_refused_and_counted(tls: bool) -> None:
    with kit.running(kit.Recorder(), tls=tls) as endpoint:
        address = endpoint.address
        for wrong in (
            dataclasses.replace(address, secret=b"w" * 32),
            dataclasses.replace(address, generation=Generation(2)),
        ):
            with pytest.raises(AuthenticationFailed, match=f"127.0.0.1:{address.port}.*secret is not the one"):
                connect(wrong)
        assert endpoint.stats().authentication_failures == 2


def test_a_client_does_not_talk_to_a_driver_with_another_certificate() -> None:
    with kit.running(kit.Recorder(), tls=True) as endpoint, kit.running(kit.Recorder(), tls=True) as other:
        wrong = dataclasses.replace(endpoint.address, certificate=other.address.certificate)
        with pytest.raises(AuthenticationFailed, match="its certificate is not the driver's"):
            connect(wrong)


def test_plain_text_to_an_encrypted_endpoint_is_refused() -> None:
    with kit.running(kit.Recorder(), tls=True) as endpoint, kit.RawClient(endpoint.address) as client:
        client.send(wire.encode(wire.Response(1, b"n" * 32, b"p" * 32)))
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
        handler.gone.get(timeout=kit.SECONDS)
        assert endpoint.stats().rejected == {}
        connection.close()


# Floods.


def test_above_the_limit_of_connections_the_newest_is_refused() -> None:
    with kit.running(kit.Recorder(), limits=Limits(connections=2)) as endpoint:
        first, second = connect(endpoint.address), connect(endpoint.address)
        with pytest.raises(EndpointClosed):
            connect(endpoint.address, ONCE)
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
                refused.send(struct.pack(">IB", 1000, wire.Kind.RESPONSE) + bytes(500))
                assert refused.until_closed() == []
        for client in half_open:
            client.send(struct.pack(">IB", 1000, wire.Kind.RESPONSE) + bytes(500))
        assert member.hello(kit.hello()) == kit.welcome(kit.hello())  # whoever is in is not disturbed
        stats = endpoint.stats()
        assert (stats.connections, stats.strangers) == (9, 8)
        assert stats.rejected == {Rejection.TOO_MANY_STRANGERS: 2000}
        assert stats.held_bytes <= 8 * (wire.GREETING_FRAME_BYTES + 4)
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
            client.send(wire.encode(kit.ended()) + struct.pack(">IB", wire.MAX_FRAME_BYTES, wire.Kind.HELLO) + b"1234")
            handler.next_token()
        kit.settle(endpoint)
        assert endpoint.stats().held_bytes == 50 * 9
        for client in clients:
            client.socket.close()


def test_a_flood_of_requests_without_answers_is_not_stored() -> None:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(wire.encode(kit.ended()) * 20_000)
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


# Mistakes in the driver.


def test_a_handler_that_raises_is_reported_and_the_others_go_on() -> None:
    def fail_on_five(message: wire.Request) -> Answer | None:
        if message.attempt.subtask == 5:
            raise KeyError("five")
        return kit.prompt(message)

    handler = kit.Recorder(fail_on_five)
    with kit.running(handler) as endpoint:
        good, bad = connect(endpoint.address), connect(endpoint.address)
        with pytest.raises(EndpointClosed):
            bad.hello(kit.hello(5))
        assert isinstance(handler.next_crash(), KeyError)
        assert good.hello(kit.hello()) == kit.welcome(kit.hello())
        good.close()


def test_a_handed_over_call_that_raises_is_reported() -> None:
    def explode(what: str) -> None:
        raise OSError(what)

    handler = kit.Recorder()
    with kit.running(handler) as endpoint:
        endpoint.call_soon_threadsafe(explode, "bang")
        assert str(handler.next_crash()) == "bang"
        kit.settle(endpoint)


def test_the_end_of_the_loop_thread_is_reported() -> None:
    def leave() -> None:
        raise SystemExit(3)

    handler = kit.Recorder()
    with kit.running(handler) as endpoint:
        endpoint.call_soon_threadsafe(leave)
        assert isinstance(handler.next_crash(), SystemExit)


def test_a_handler_that_fails_to_hear_of_a_crash_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Hopeless(kit.Recorder):
        def crashed(self, error: BaseException) -> None:
            raise RuntimeError("not now")

    with kit.running(Hopeless()) as endpoint:
        endpoint.call_soon_threadsafe(int, "x")  # type: ignore[arg-type]
        kit.settle(endpoint)
    assert "the handler failed while it was told of ValueError" in caplog.text


def test_answering_twice_is_a_mistake() -> None:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(wire.encode(kit.hello()))
        assert client.next_frame() is not None
        endpoint.call_soon_threadsafe(endpoint.answer, handler.next_token(), Accepted())
        assert isinstance(handler.next_crash(), InvalidTransition)


def test_an_answer_to_a_connection_that_is_gone_is_dropped() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint:
        with kit.RawClient(endpoint.address).authenticate() as client:
            client.send(wire.encode(kit.hello()))
            token = handler.next_token()
        assert handler.gone.get(timeout=kit.SECONDS) is token
        endpoint.call_soon_threadsafe(endpoint.answer, token, Accepted())
        kit.settle(endpoint)
        assert endpoint.stats().dropped_answers == 1
        assert handler.crashes.empty()


def test_an_answer_that_fits_no_frame_refuses_the_attempt() -> None:
    handler = kit.Recorder(lambda message: Welcome(bytes(wire.MAX_FRAME_BYTES), ()))
    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)
        with pytest.raises(AttemptRefused, match=r"alerts\[2\] epoch 17.*the limit is 67108864"):
            connection.hello(kit.hello())
        assert endpoint.stats().rejected == {Rejection.ANSWER_TOO_LARGE: 1}
        assert not connection.is_closed
        connection.close()


def test_answers_belong_to_the_loop_thread() -> None:
    with kit.running(kit.Recorder()) as endpoint, pytest.raises(AssertionError, match="loop thread"):
        endpoint.answer(object(), Accepted())


# Begin and end.


def test_a_taken_port_is_named_and_the_next_of_a_range_is_used() -> None:
    with kit.running(kit.Recorder()) as endpoint:
        taken = endpoint.address.port
        second = Endpoint(kit.Recorder(), kit.GENERATION, tls=False)
        with pytest.raises(EndpointNotBound, match=f"127.0.0.1, port {taken}:"):
            second.start("127.0.0.1", taken)
        third = Endpoint(kit.Recorder(), kit.GENERATION, tls=False)
        try:
            assert taken < third.start("127.0.0.1", range(taken, taken + 50)) < taken + 50
        finally:
            third.close()


def test_the_advertised_host_is_part_of_the_address() -> None:
    endpoint = Endpoint(kit.Recorder(), kit.GENERATION, tls=False)
    with pytest.raises(AssertionError, match="not been started"):
        _ = endpoint.address
    try:
        port = endpoint.start("127.0.0.1", advertise="driver.example")
        assert (endpoint.address.host, endpoint.address.port) == ("driver.example", port)
        assert endpoint.address.certificate is None
    finally:
        endpoint.close()


def test_an_advertised_port_takes_the_place_of_the_one_it_listens_at() -> None:
    endpoint = Endpoint(kit.Recorder(), kit.GENERATION, tls=False)
    try:
        port = endpoint.start("127.0.0.1", advertised_port=30_070)
        assert (endpoint.address.host, endpoint.address.port) == ("127.0.0.1", 30_070)
        assert port != 30_070
    finally:
        endpoint.close()


def test_closing_ends_everything_and_may_be_repeated() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(wire.encode(kit.hello()))
        handler.next_token()
        endpoint.close()
        endpoint.close()
        assert client.until_closed() == []
        assert handler.gone.empty()
        assert endpoint.stats().connections == 0
        with pytest.raises(EndpointClosed, match="the endpoint has been closed"):
            endpoint.call_soon_threadsafe(print)
        with pytest.raises(ConnectionRefusedError):
            kit.RawClient(endpoint.address)
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}


def test_connections_that_are_just_being_accepted_are_closed_too() -> None:
    busy, go_on = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        go_on.wait(kit.SECONDS)

    with kit.running(kit.Recorder()) as endpoint:
        endpoint.call_soon_threadsafe(work)
        assert busy.wait(kit.SECONDS)
        clients = [kit.RawClient(endpoint.address) for _ in range(5)]
        endpoint.call_soon_threadsafe(endpoint._leave)  # as close() does; the loop accepts and stops in one turn
        go_on.set()
        endpoint.close()
        for client in clients:
            assert len(client.until_closed()) <= 1
            client.socket.close()
        gc.collect()  # a socket that nobody closed would warn now, and warnings are errors


def test_answers_given_before_the_end_still_arrive() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(wire.encode(kit.hello()))
        endpoint.call_soon_threadsafe(endpoint.answer, handler.next_token(), Accepted())
        endpoint.close()
        assert client.until_closed() == [(wire.Kind.ACCEPTED, b"\x80")]


def test_an_endpoint_that_was_never_started_can_be_closed() -> None:
    Endpoint(kit.Recorder(), kit.GENERATION, tls=False).close()


def test_the_log_shows_who_said_what_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "coord_control.endpoint")
    handler = kit.Recorder()
    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)
        connection.hello(kit.hello())
        connection.close()
        handler.gone.get(timeout=kit.SECONDS)
        secret = endpoint.address.secret
    lines = [record.getMessage() for record in caplog.records if record.name == "coord_control.endpoint"]
    assert [line[0] for line in lines] == ["=", "=", "<", ">", "x"]
    assert "Hello of alerts[2] epoch 17" in lines[2]
    assert repr(secret)[2:-1] not in caplog.text
    assert secret.hex() not in caplog.text
