"""What the endpoint's tests share: a handler that records, a raw client that may misbehave, and sample messages."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from coord_control.ids import AttemptId, Epoch, Generation, OperatorUid, RunId, SubtaskIndex
from coord_control.protocol.messages import (
    Accepted,
    Acknowledge,
    Answer,
    AttemptEnded,
    Hello,
    Measurements,
    Token,
    Welcome,
)
from coord_control.protocol.records import EventBatch
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import DriverAddress, Patience
from coord_control.spark.wire.endpoint import Endpoint, Limits
from coord_control.spark.wire.handshake import NONCE_BYTES, ClientHandshake, Proceed
from tests.patience import SECONDS

GENERATION = Generation(3)
ONCE = Patience(tries=1)

plain_and_tls = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


def attempt(subtask: int = 2) -> AttemptId:
    run = RunId("6f1c")
    return AttemptId(GENERATION, run, "q-1", OperatorUid("alerts"), SubtaskIndex(subtask), Epoch(17), 4711, 3, 0)


def hello(subtask: int = 2) -> Hello:
    return Hello(attempt(subtask))


def acknowledge(subtask: int = 2) -> Acknowledge:
    return Acknowledge(attempt(subtask), b"new", (EventBatch(0, 2, b"{},{}"),), Measurements(10, 9, 0.5))


def ended() -> AttemptEnded:
    return AttemptEnded(attempt(), "ValueError: no", fatal=True)


def welcome(message: Hello) -> Welcome:
    return Welcome(b"state of %d" % message.attempt.subtask, (EventBatch(1, 1, b"{}"),))


def prompt(message: frame_codec.Request) -> Answer | None:
    """Answers everything at once, like a driver without a core."""
    match message:
        case Hello():
            return welcome(message)
        case Acknowledge():
            return Accepted()
        case AttemptEnded():
            return None


class Recorder:
    """A handler that notes each call and answers with what ``reply`` says."""

    endpoint: Endpoint

    def __init__(self, reply: Callable[[frame_codec.Request], Answer | None] = prompt) -> None:
        self.reply = reply
        self.messages: queue.SimpleQueue[tuple[frame_codec.Request, Token]] = queue.SimpleQueue()
        self.gone: queue.SimpleQueue[Token] = queue.SimpleQueue()
        self.crashes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.threads: set[str] = set()

    def received(self, message: frame_codec.Request, token: Token) -> None:
        self.threads.add(threading.current_thread().name)
        self.messages.put((message, token))
        answer = self.reply(message)
        if answer is not None:
            self.endpoint.answer(token, answer)

    def disconnected(self, token: Token) -> None:
        self.gone.put(token)

    def crashed(self, error: BaseException) -> None:
        self.crashes.put(error)

    def next_token(self) -> Token:
        return self.messages.get(timeout=SECONDS)[1]

    def next_crash(self) -> BaseException:
        return self.crashes.get(timeout=SECONDS)


def silent(message: frame_codec.Request) -> Answer | None:
    """Answers nothing."""
    return None


def large(message: frame_codec.Request) -> Answer | None:
    """Answers with more than the kernel's buffers take."""
    return Welcome(bytes(32 * 1024 * 1024), ())


@contextlib.contextmanager
def running(handler: Recorder, *, tls: bool = False, limits: Limits | None = None) -> Iterator[Endpoint]:
    endpoint = Endpoint(handler, GENERATION, tls=tls, limits=limits)
    handler.endpoint = endpoint
    endpoint.start("127.0.0.1")
    try:
        yield endpoint
    finally:
        endpoint.close()


def settle(endpoint: Endpoint) -> None:
    """Wait until the loop has done everything that it was given before."""
    done = threading.Event()
    endpoint.call_soon_threadsafe(done.set)
    assert done.wait(SECONDS)


class RawClient:
    """A plain socket that may send anything."""

    def __init__(self, address: DriverAddress) -> None:
        self.address = address
        self.socket = socket.create_connection((address.host, address.port), SECONDS)
        self._reader = frame_codec.FrameReader(frame_codec.MAX_FRAME_BYTES)
        self._frames: list[tuple[int, bytes]] = []

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        # The driver may have hung up already; what it did then is what the test looks at.
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def next_frame(self) -> tuple[int, bytes] | None:
        """Kind and body of the next frame; None at the end of the connection."""
        while not self._frames:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames += [(kind, bytes(body)) for kind, body in self._reader.frames(memoryview(data))]
        return self._frames.pop(0)

    def until_closed(self) -> list[tuple[int, bytes]]:
        frames = []
        while (frame := self.next_frame()) is not None:
            frames.append(frame)
        return frames

    def authenticate(self) -> RawClient:
        handshake = ClientHandshake(self.address.secret, self.address.generation, b"n" * NONCE_BYTES)
        is_done = False
        while not is_done:
            frame = self.next_frame()
            assert frame is not None
            step = handshake.receive(*frame)
            assert isinstance(step, Proceed)
            self.send(step.frame)
            is_done = step.is_done
        return self
