from __future__ import annotations

import dataclasses
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from coord_control.errors import (
    AttemptRefused,
    AuthenticationFailed,
    EndpointClosed,
    EndpointError,
    EndpointTimeout,
    EndpointUnreachable,
    FrameInvalid,
)
from coord_control.protocol.messages import Accepted, Acknowledge, AttemptEnded, Hello, Refused, Welcome
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import Connection, DriverAddress, Patience, Wait, connect, shared
from coord_control.spark.wire.handshake import NONCE_BYTES, Proceed, ServerHandshake
from coord_control.spark.wire.peer import Peer
from tests import endpoint_kit as kit
from tests.patience import SECONDS

SECRET = b"s" * 32


class ScriptedEndpoint:
    """A listening socket; each accepted connection is given to the next function of a script."""

    def __init__(self, *script: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._script = script
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.port: int = self._listener.getsockname()[1]
        self.address = DriverAddress("127.0.0.1", self.port, kit.GENERATION, SECRET)

    def _run(self) -> None:
        for act in self._script:
            sock, _ = self._listener.accept()
            with sock:
                sock.settimeout(SECONDS)
                act(sock)

    def __enter__(self) -> ScriptedEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(SECONDS)
        self._listener.close()
        assert not self._thread.is_alive()


def read_frame(sock: socket.socket) -> tuple[int, bytes]:
    reader = frame_codec.FrameReader(frame_codec.MAX_FRAME_BYTES)
    while True:
        data = sock.recv(65536)
        assert data, "the client hung up"
        for kind, body in reader.frames(memoryview(data)):
            return kind, bytes(body)


def authenticate(sock: socket.socket) -> None:
    handshake = ServerHandshake(SECRET, kit.GENERATION, b"n" * NONCE_BYTES)
    sock.sendall(handshake.challenge())
    step = handshake.receive(*read_frame(sock))
    assert isinstance(step, Proceed)
    sock.sendall(step.frame)


def answering(data: bytes) -> Callable[[socket.socket], None]:
    def act(sock: socket.socket) -> None:
        authenticate(sock)
        read_frame(sock)
        sock.sendall(data)
        sock.recv(1)  # until the client closes

    return act


def hang_up(sock: socket.socket) -> None:
    """Nothing: the connection ends."""


def wait_for_the_end(sock: socket.socket) -> None:
    sock.recv(1)


@pytest.fixture
def handler() -> kit.Recorder:
    return kit.Recorder()


@pytest.fixture(autouse=True)
def no_shared_connections() -> Iterator[None]:
    from coord_control.spark.wire import connection

    yield
    connection._SHARED.forget()


# The address.


def test_an_address_travels_in_a_pickled_closure_and_does_not_show_its_secret() -> None:
    address = DriverAddress("driver", 1, kit.GENERATION, b"the-secret", "PEM")
    assert pickle.loads(pickle.dumps(address)) == address
    assert "the-secret" not in repr(address)
    assert "PEM" not in repr(address)
    assert "host='driver', port=1, generation=3" in repr(address)


# Answers.


def test_a_refused_attempt_is_named_and_the_connection_stays_usable(handler: kit.Recorder) -> None:
    handler.reply = lambda message: Refused("epoch 17 is settled")
    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)
        with pytest.raises(AttemptRefused, match=r"alerts\[2\] epoch 17 .*: epoch 17 is settled"):
            connection.hello(kit.hello())
        with pytest.raises(AttemptRefused):
            connection.acknowledge(kit.acknowledge())
        handler.reply = kit.prompt
        assert connection.hello(kit.hello()) == kit.welcome(kit.hello())
        connection.close()


def test_threads_take_turns(handler: kit.Recorder) -> None:
    wrong: list[object] = []

    def work(subtask: int) -> None:
        for _ in range(50):
            welcome = connection.hello(kit.hello(subtask))
            if welcome != kit.welcome(kit.hello(subtask)):
                wrong.append(welcome)
            connection.acknowledge(kit.acknowledge(subtask))

    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)
        threads = [threading.Thread(target=work, args=(subtask,)) for subtask in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert endpoint.stats().frames_out == 400
        connection.close()


def test_a_request_above_the_limit_is_refused_before_anything_is_sent(handler: kit.Recorder) -> None:
    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)
        with pytest.raises(FrameInvalid, match="ACKNOWLEDGE would take"):
            connection.acknowledge(Acknowledge(kit.attempt(), bytes(frame_codec.MAX_FRAME_BYTES)))
        assert connection.hello(kit.hello()) == kit.welcome(kit.hello())
        connection.close()


# A driver that does not answer as it should: the connection is closed and says so.


def assert_is_over(connection: Connection) -> None:
    assert connection.is_closed
    assert not connection.is_alive()
    for ask in (
        lambda: connection.hello(kit.hello()),
        lambda: connection.acknowledge(kit.acknowledge()),
        lambda: connection.ended(kit.ended()),
    ):
        with pytest.raises(EndpointClosed, match="it was closed before"):
            ask()


def test_no_answer_in_time_names_what_was_waited_for(handler: kit.Recorder) -> None:
    handler.reply = kit.silent
    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address, Patience(answer=0.05))
        expected = (
            f"127.0.0.1:{endpoint.address.port} did not answer within 0.05 s while waiting for the answer to hello"
        )
        with pytest.raises(EndpointTimeout, match=expected):
            connection.hello(kit.hello())
        assert_is_over(connection)


def test_the_time_counts_for_all_of_an_answer_not_for_each_piece_of_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(ServerHandshake(SECRET, kit.GENERATION, b"n" * NONCE_BYTES).challenge())
        connection = Connection(ours, DriverAddress("driver", 1, kit.GENERATION, SECRET), kit.ONCE)
        with pytest.raises(EndpointTimeout, match="driver:1 did not answer within 10 s"):
            connection.authenticate(Wait("the handshake", 10.0, deadline=0.0))  # long ago, although bytes are there
        assert connection.is_closed


def test_the_end_of_the_driver_is_told_while_we_wait() -> None:
    def leave(sock: socket.socket) -> None:
        authenticate(sock)
        read_frame(sock)

    with ScriptedEndpoint(leave) as driver:
        connection = connect(driver.address)
        with pytest.raises(EndpointClosed, match=f"127.0.0.1:{driver.port} was closed: the driver ended it"):
            connection.hello(kit.hello())
        assert_is_over(connection)


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff\x20",
        b"\x00\x00\x00\x02\x20\xc0",
        frame_codec.encode(kit.hello()),
        frame_codec.encode(Welcome(None, ())) * 2,
        frame_codec.encode(Welcome(None, ())) + b"\x00",
        frame_codec.encode(Accepted()),
    ],
    ids=["2GiB", "malformed", "request", "two", "trailing", "accepted"],
)
def test_an_answer_that_makes_no_sense_ends_the_connection(data: bytes) -> None:
    with ScriptedEndpoint(answering(data)) as driver:
        connection = connect(driver.address)
        with pytest.raises(EndpointClosed, match=f"127.0.0.1:{driver.port}"):
            connection.hello(kit.hello())
        assert_is_over(connection)


def test_a_welcome_is_no_answer_to_an_ack() -> None:
    with ScriptedEndpoint(answering(frame_codec.encode(Welcome(None, ())))) as driver:
        connection = connect(driver.address)
        with pytest.raises(EndpointClosed, match="it answered an ack with Welcome"):
            connection.acknowledge(kit.acknowledge())
        assert_is_over(connection)


def test_a_driver_that_does_not_read_is_given_up() -> None:
    def deaf(sock: socket.socket) -> None:
        authenticate(sock)
        done.wait(SECONDS)

    done = threading.Event()
    with ScriptedEndpoint(deaf) as driver:
        connection = connect(driver.address, Patience(answer=0.05))
        with pytest.raises(EndpointTimeout, match="room to report"):
            connection.ended(AttemptEnded(kit.attempt(), "x" * 30_000_000))
        assert_is_over(connection)
        done.set()


# Connecting.


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_an_unreachable_driver_is_named_after_all_tries(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "coord_control.connection")
    address = DriverAddress("127.0.0.1", closed_port(), kit.GENERATION, SECRET)
    with pytest.raises(EndpointUnreachable, match=f"127.0.0.1:{address.port}.*spark.driver.host"):
        connect(address, Patience(tries=3, back_off=0))
    assert [record.getMessage().split("; ")[-1] for record in caplog.records] == [
        "2 more tries, the next one in 0.0 s",
        "1 more tries, the next one in 0.0 s",
    ]


def test_a_host_that_nobody_knows_is_unreachable() -> None:
    address = DriverAddress("no such host", 1, kit.GENERATION, SECRET)
    with pytest.raises(EndpointUnreachable, match="no such host:1"):
        connect(address, kit.ONCE)


def test_a_busy_driver_is_tried_again() -> None:
    with ScriptedEndpoint(hang_up, hang_up, answering(frame_codec.encode(Welcome(None, ())))) as driver:
        connection = connect(driver.address, Patience(tries=3, back_off=0))
        assert connection.hello(kit.hello()) == Welcome(None, ())
        connection.close()


def test_a_driver_that_hangs_up_every_time_is_given_up() -> None:
    with ScriptedEndpoint(hang_up, hang_up) as driver, pytest.raises(EndpointClosed, match="waited for the handshake"):
        connect(driver.address, Patience(tries=2, back_off=0))


def test_a_driver_that_says_nothing_is_given_up() -> None:
    with (
        ScriptedEndpoint(wait_for_the_end) as driver,
        pytest.raises(EndpointTimeout, match="waiting for the handshake"),
    ):
        connect(driver.address, Patience(connect=0.05, tries=1))


def test_a_driver_that_never_begins_tls_is_given_up(handler: kit.Recorder) -> None:
    def deaf(sock: socket.socket) -> None:
        while sock.recv(1000):
            pass

    with kit.running(handler, tls=True) as endpoint, ScriptedEndpoint(deaf) as driver:
        address = dataclasses.replace(driver.address, certificate=endpoint.address.certificate)
        with pytest.raises(EndpointTimeout, match=f"127.0.0.1:{driver.port}"):
            connect(address, Patience(connect=0.05, tries=1))


def test_a_driver_without_tls_is_not_talked_to(handler: kit.Recorder) -> None:
    with kit.running(handler, tls=True) as endpoint, kit.running(kit.Recorder()) as plain:
        address = dataclasses.replace(plain.address, certificate=endpoint.address.certificate)
        with pytest.raises(EndpointClosed, match=f"127.0.0.1:{plain.address.port}"):
            connect(address, kit.ONCE)


def test_something_else_at_that_port_is_not_tried_again() -> None:
    def other_service(sock: socket.socket) -> None:
        sock.sendall(b"220 mail ready\r\n")
        sock.recv(1)

    with ScriptedEndpoint(other_service) as driver, pytest.raises(AuthenticationFailed, match="no driver of ours"):
        connect(driver.address)


def test_an_impostor_is_recognised() -> None:
    def impostor(sock: socket.socket) -> None:
        sock.sendall(frame_codec.encode(frame_codec.Challenge(2, b"n" * 32)))
        read_frame(sock)
        sock.sendall(frame_codec.encode(frame_codec.Proof(b"p" * 32)))
        said.append(read_frame(sock)[0])

    said: list[int] = []
    with ScriptedEndpoint(impostor) as driver, pytest.raises(AuthenticationFailed, match="does not know this gen"):
        connect(driver.address)
    assert said == [frame_codec.Kind.REJECTED]


def test_a_driver_of_another_version_is_named_and_told() -> None:
    def newer(sock: socket.socket) -> None:
        sock.sendall(frame_codec.encode(frame_codec.Challenge(3, b"n" * 32)))
        greeting = frame_codec.decode_greeting(*read_frame(sock))
        assert isinstance(greeting, frame_codec.Rejected)
        said.append(greeting.reason)

    said: list[str] = []
    with (
        ScriptedEndpoint(newer) as driver,
        pytest.raises(AuthenticationFailed, match="the driver speaks protocol version 3"),
    ):
        connect(driver.address)
    assert said == ["version"]


def test_every_error_of_the_connection_says_whether_to_try_again() -> None:
    assert all(error.retry for error in (EndpointUnreachable, EndpointTimeout, EndpointClosed))
    assert not AuthenticationFailed.retry
    assert issubclass(AuthenticationFailed, EndpointError)


# One connection per process.


@kit.plain_and_tls
def test_a_process_keeps_its_connection(handler: kit.Recorder, tls: bool) -> None:
    with kit.running(handler, tls=tls) as endpoint:
        first = shared(endpoint.address)
        first.hello(kit.hello())
        assert shared(endpoint.address) is first
        first.acknowledge(kit.acknowledge())
        assert endpoint.stats().accepted == 1


@kit.plain_and_tls
def test_a_connection_that_the_driver_ended_is_replaced(handler: kit.Recorder, tls: bool) -> None:
    with kit.running(handler, tls=tls) as endpoint:
        first = shared(endpoint.address)
        first.hello(kit.hello())
        token = handler.next_token()
        assert isinstance(token, Peer)
        endpoint.call_soon_threadsafe(token.abort)
        handler.gone.get(timeout=SECONDS)
        kit.settle(endpoint)
        second = shared(endpoint.address)
        assert second is not first
        assert first.is_closed
        assert second.hello(kit.hello()) == kit.welcome(kit.hello())


def test_a_connection_that_failed_is_replaced(handler: kit.Recorder) -> None:
    handler.reply = kit.silent
    with kit.running(handler) as endpoint:
        first = shared(endpoint.address, Patience(answer=0.05))
        with pytest.raises(EndpointTimeout):
            first.hello(kit.hello())
        handler.reply = kit.prompt
        assert shared(endpoint.address).hello(kit.hello()) == kit.welcome(kit.hello())


def test_a_connection_in_use_by_another_thread_is_alive(handler: kit.Recorder) -> None:
    handler.reply = kit.silent
    with kit.running(handler) as endpoint:
        connection = shared(endpoint.address)
        got: list[Welcome] = []
        thread = threading.Thread(target=lambda: got.append(connection.hello(kit.hello())))
        thread.start()
        token = handler.next_token()
        assert shared(endpoint.address) is connection
        endpoint.call_soon_threadsafe(endpoint.answer, token, kit.welcome(kit.hello()))
        thread.join()
        assert got == [kit.welcome(kit.hello())]


def test_connections_to_drivers_that_are_gone_are_given_back(handler: kit.Recorder) -> None:
    with kit.running(handler) as endpoint:
        old = shared(endpoint.address)
    with kit.running(kit.Recorder()) as newer:
        shared(newer.address)
        assert old.is_closed


def test_an_interrupted_wait_closes_the_connection(handler: kit.Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(kind: int, body: frame_codec.Buffer) -> None:
        raise KeyboardInterrupt

    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)
        monkeypatch.setattr(frame_codec, "decode_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            connection.hello(kit.hello())
        assert_is_over(connection)


def in_child(action: Callable[[], object]) -> int:
    """Run ``action`` in a forked child; its exit code is 0 when it did not raise."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@kit.plain_and_tls
def test_a_forked_child_uses_a_connection_of_its_own_and_leaves_the_parents_alone(
    handler: kit.Recorder, tls: bool
) -> None:
    with kit.running(handler, tls=tls) as endpoint:
        address = endpoint.address
        connection = shared(address)
        connection.hello(kit.hello())

        def child() -> None:
            assert connection.is_closed
            own = shared(address)
            assert own is not connection
            own.hello(Hello(kit.attempt(7)))
            own.acknowledge(kit.acknowledge(7))
            own.close()

        assert in_child(child) == 0
        assert shared(address) is connection
        connection.acknowledge(kit.acknowledge())
        assert (endpoint.stats().accepted, endpoint.stats().rejected) == (2, {})


def test_a_forked_child_cannot_speak_on_its_parents_connection(handler: kit.Recorder) -> None:
    with kit.running(handler) as endpoint:
        connection = connect(endpoint.address)

        def child() -> None:
            assert not connection.is_alive()
            with pytest.raises(EndpointClosed, match="it belongs to process"):
                connection.hello(kit.hello())

        assert in_child(child) == 0
        assert connection.hello(kit.hello()) == kit.welcome(kit.hello())
        connection.close()


def test_a_fork_while_a_thread_connects_leaves_no_lock_behind(handler: kit.Recorder) -> None:
    from coord_control.spark.wire.connection import _SHARED

    with kit.running(handler) as endpoint:
        address = endpoint.address
        with _SHARED.lock:
            assert in_child(lambda: shared(address).hello(kit.hello())) == 0
