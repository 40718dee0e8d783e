"""Mistakes in the driver: a handler that raises or answers wrongly is reported, and the others go on."""

from __future__ import annotations

import pytest

from coord_control.errors import EndpointClosed, InvalidTransition
from coord_control.protocol.messages import Accepted, Answer, Welcome
from coord_control.protocol.records import EventBatch
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import connect
from coord_control.spark.wire.endpoint import Rejection
from tests import endpoint_kit as kit
from tests.patience import SECONDS


def test_a_handler_that_raises_is_reported_and_the_others_go_on() -> None:
    def fail_on_five(message: frame_codec.Request) -> Answer | None:
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
    assert "the handler failed while it handled ValueError" in caplog.text


def test_answering_twice_is_a_mistake() -> None:
    handler = kit.Recorder()
    with kit.running(handler) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(frame_codec.encode(kit.hello()))
        assert client.next_frame() is not None
        endpoint.call_soon_threadsafe(endpoint.answer, handler.next_token(), Accepted())
        assert isinstance(handler.next_crash(), InvalidTransition)


def test_an_answer_to_a_connection_that_is_gone_is_dropped() -> None:
    handler = kit.Recorder(kit.silent)
    with kit.running(handler) as endpoint:
        with kit.RawClient(endpoint.address).authenticate() as client:
            client.send(frame_codec.encode(kit.hello()))
            token = handler.next_token()
        assert handler.gone.get(timeout=SECONDS) is token
        endpoint.call_soon_threadsafe(endpoint.answer, token, Accepted())
        kit.settle(endpoint)
        assert endpoint.stats().dropped_answers == 1
        assert handler.crashes.empty()


def test_a_welcome_that_is_larger_than_a_frame_arrives() -> None:
    welcome = Welcome(b"s", (EventBatch(0, 1, bytes(2 * frame_codec.MAX_FRAME_BYTES)), EventBatch(1, 1, b"{}")))
    with kit.running(kit.Recorder(lambda message: welcome)) as endpoint:
        connection = connect(endpoint.address)
        for _ in range(2):  # nothing of the first one is left behind
            assert connection.hello(kit.hello()) == welcome
        assert endpoint.stats().frames_out == 6
        connection.close()


def test_a_request_does_not_come_in_pieces() -> None:
    with kit.running(kit.Recorder()) as endpoint, kit.RawClient(endpoint.address).authenticate() as client:
        client.send(frame_codec.encode_answer(Welcome(bytes(frame_codec.MAX_FRAME_BYTES), ()))[0])
        assert client.next_frame() is None
        assert endpoint.stats().rejected == {Rejection.FRAME: 1}


def test_answers_belong_to_the_loop_thread() -> None:
    with kit.running(kit.Recorder()) as endpoint, pytest.raises(AssertionError, match="loop thread"):
        endpoint.answer(object(), Accepted())
