"""The endpoint and its orderly peers: requests, answers, and how it begins and ends."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

from coord_control.errors import EndpointClosed, EndpointNotBound
from coord_control.protocol.messages import Accepted, Hello
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import connect
from coord_control.spark.wire.endpoint import THREAD_NAME, Endpoint
from tests import endpoint_kit as kit
from tests.patience import SECONDS


@kit.plain_and_tls
def test_a_subtask_says_hello_and_acknowledges(tls: bool) -> None:
    handler = kit.Recorder()
    with kit.running(handler, tls=tls) as endpoint:
        connection = connect(endpoint.address)
        assert connection.hello(kit.hello()) == kit.welcome(kit.hello())
        connection.acknowledge(kit.acknowledge())
        connection.ended(kit.ended())
        received = [handler.messages.get(timeout=SECONDS) for _ in range(3)]
        assert [message for message, _ in received] == [kit.hello(), kit.acknowledge(), kit.ended()]
        assert len({id(token) for _, token in received}) == 1
        assert handler.threads == {THREAD_NAME}
        stats = endpoint.stats()
        assert (stats.connections, stats.strangers, stats.accepted) == (1, 0, 1)
        assert (stats.frames_in, stats.frames_out, stats.rejected) == (3, 2, {})
        connection.close()
        assert handler.gone.get(timeout=SECONDS) is received[0][1]


@kit.plain_and_tls
def test_large_messages_pass_in_both_directions(tls: bool) -> None:
    with kit.running(kit.Recorder(kit.large), tls=tls) as endpoint:
        connection = connect(endpoint.address)
        for _ in range(2):
            answer = connection.hello(Hello(kit.attempt()._replace(query_id="q" * 20_000_000)))
            assert answer == kit.large(kit.hello())
        connection.close()


def test_an_answer_may_come_later_from_another_thread() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint:
        with kit.RawClient(endpoint.address).authenticate() as client:
            client.send(frame_codec.encode(kit.hello()))
            token = handler.next_token()
            endpoint.call_soon_threadsafe(endpoint.answer, token, Accepted())
            assert client.next_frame() == (frame_codec.Kind.ACCEPTED, b"\x80")


def test_the_loop_does_what_it_is_given_in_order() -> None:
    seen: list[int] = []
    with kit.running(kit.Recorder()) as endpoint:
        for number in range(100):
            endpoint.call_soon_threadsafe(seen.append, number)
        kit.settle(endpoint)
    assert seen == list(range(100))


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
        client.send(frame_codec.encode(kit.hello()))
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
        go_on.wait(SECONDS)

    with kit.running(kit.Recorder()) as endpoint:
        endpoint.call_soon_threadsafe(work)
        assert busy.wait(SECONDS)
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
        client.send(frame_codec.encode(kit.hello()))
        endpoint.call_soon_threadsafe(endpoint.answer, handler.next_token(), Accepted())
        endpoint.close()
        assert client.until_closed() == [(frame_codec.Kind.ACCEPTED, b"\x80")]


def test_an_endpoint_that_was_never_started_can_be_closed() -> None:
    Endpoint(kit.Recorder(), kit.GENERATION, tls=False).close()


def test_the_log_shows_who_said_what_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "coord_control.endpoint")
    handler = kit.Recorder()
    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)
        connection.hello(kit.hello())
        connection.close()
        handler.gone.get(timeout=SECONDS)
        secret = endpoint.address.secret
    lines = [record.getMessage() for record in caplog.records if record.name == "coord_control.endpoint"]
    assert [line[0] for line in lines] == ["=", "=", "<", ">", "x"]
    assert "Hello of alerts[2] epoch 17" in lines[2]
    assert repr(secret)[2:-1] not in caplog.text
    assert secret.hex() not in caplog.text
