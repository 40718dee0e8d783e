"""A worker process that plays thousands of subtasks over many connections: as little Python as possible per request.

The driver is what is measured, so its peers must be faster than it is: all requests of an epoch are encoded before it
begins, and one loop over epoll keeps every connection busy with one request at a time, which is all that a real worker
would do.
"""

from __future__ import annotations

import itertools
import multiprocessing
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final, Self

from benchmarks.rig import attempt
from coord_control.protocol.messages import Acknowledge, Hello, Measurements
from coord_control.protocol.records import EventBatch
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import DriverAddress
from coord_control.spark.wire.handshake import NONCE_BYTES, ClientHandshake, Failed

__all__ = ["Epoch", "Load"]

_LENGTH: Final = struct.Struct(">I")
_READ_BYTES: Final = 1 << 16
_ANSWER_SECONDS: Final = 60.0
_STATE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Epoch:
    """What the subtasks do in one epoch: each says hello once and acknowledges once."""

    number: int
    subtasks: int
    connections: int  #: how many of them run at the same time
    is_changing: bool  #: each ack has a new state and an event for the coordinator, so it must become durable


class Load:
    """The driver's handle of the worker process. Use it in a ``with`` block."""

    def __init__(self, address: DriverAddress) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, address), daemon=True)
        self._process.start()

    def connect(self, connections: int) -> float:
        """Open connections up to a number, and return the seconds that it took."""
        return self._ask("connect", connections)

    def run(self, epoch: Epoch) -> float:
        """Run an epoch, and return the seconds from the first hello to the answer to the last ack."""
        return self._ask("run", epoch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()

    def _ask(self, command: str, argument: object) -> float:
        self._pipe.send((command, argument))
        seconds: float = self._pipe.recv()
        return seconds


def _serve(pipe: Pipe, address: DriverAddress) -> None:
    worker = _Worker(address)
    while True:
        try:
            command, argument = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(worker, command)(argument))


class _Worker:
    def __init__(self, address: DriverAddress) -> None:
        self._address = address
        self._sockets: dict[int, socket.socket] = {}
        self._task_attempts = itertools.count()

    def connect(self, connections: int) -> float:
        began = time.perf_counter()
        while len(self._sockets) < connections:
            made = _connect(self._address)
            self._sockets[made.fileno()] = made
        return time.perf_counter() - began

    def run(self, epoch: Epoch) -> float:
        conversations = [self._frames(epoch, subtask) for subtask in range(epoch.subtasks)]
        began = time.perf_counter()
        self._converse(conversations, epoch.connections)
        return time.perf_counter() - began

    def _frames(self, epoch: Epoch, subtask: int) -> tuple[bytes, bytes]:
        who = attempt(self._address.generation, subtask, epoch.number, next(self._task_attempts))
        state: bytes | None = None
        outbox: tuple[EventBatch, ...] = ()
        if epoch.is_changing:
            state = b'{"epoch":%d,"pad":"%s"}' % (epoch.number, b"x" * _STATE_BYTES)
            outbox = (EventBatch(0, 1, b'{"value":%d}' % subtask),)
        ack = Acknowledge(who, state, outbox, Measurements(100, 100, 0.01))
        return frame_codec.encode(Hello(who)), frame_codec.encode(ack)

    def _converse(self, conversations: list[tuple[bytes, bytes]], connections: int) -> None:
        """Run all conversations, each on the first free connection."""
        poll = select.epoll()
        rest = iter(conversations)
        acks: dict[int, bytes | None] = {}
        for descriptor, (hello, first_ack) in zip(list(self._sockets)[:connections], rest, strict=False):
            poll.register(descriptor, select.EPOLLIN)
            self._sockets[descriptor].send(hello)
            acks[descriptor] = first_ack
        while acks:
            events = poll.poll(_ANSWER_SECONDS)
            if not events:
                raise TimeoutError("the driver does not answer")
            for descriptor, _ in events:
                sock = self._sockets[descriptor]
                kind = _answer(sock)
                ack = acks[descriptor]
                if ack is not None:
                    assert kind == frame_codec.Kind.WELCOME, kind
                    sock.send(ack)
                    acks[descriptor] = None
                    continue
                assert kind == frame_codec.Kind.ACCEPTED, kind
                following = next(rest, None)
                if following is None:
                    del acks[descriptor]
                    poll.unregister(descriptor)
                else:
                    sock.send(following[0])
                    acks[descriptor] = following[1]
        poll.close()


def _answer(sock: socket.socket) -> int:
    """Read one whole answer, and return its kind."""
    data = sock.recv(_READ_BYTES)
    while len(data) < 5 or len(data) < 4 + _LENGTH.unpack_from(data)[0]:
        more = sock.recv(_READ_BYTES)
        if not more:
            raise ConnectionError("the driver ended the connection")
        data += more
    return data[4]


def _connect(address: DriverAddress) -> socket.socket:
    """A plain blocking socket that has gone through the handshake."""
    sock = socket.create_connection((address.host, address.port), _ANSWER_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handshake = ClientHandshake(address.secret, address.generation, secrets.token_bytes(NONCE_BYTES))
    reader = frame_codec.FrameReader()
    while True:
        for kind, body in list(_received(reader, sock)):
            step = handshake.receive(kind, body)
            assert not isinstance(step, Failed), step
            if step.frame:
                sock.sendall(step.frame)
            if step.is_done:
                return sock


def _received(reader: frame_codec.FrameReader, sock: socket.socket) -> Iterator[tuple[int, Any]]:
    return reader.frames(memoryview(sock.recv(_READ_BYTES)))
