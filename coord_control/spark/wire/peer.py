"""One worker's connection as the driver sees it: TLS, handshake, then strictly one request and one answer at a time.

A :class:`Peer` is also the token that the core hands back with an answer. It holds little: no separate buffer for
reading (all connections share one; asyncio fills it and lets us empty it before anything else is read), at most one
incomplete frame, and at most one answer that the other side has not read yet: a request that arrives before the answer
to the last one was read is a violation, and an answer that is not read in time ends the connection.

Threading rule: everything here runs on the endpoint's loop thread.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from coord_control.errors import FrameInvalid, InvalidTransition
from coord_control.protocol.messages import Answer, AttemptEnded, Token
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.handshake import Failed, Reason, ServerHandshake
from coord_control.spark.wire.tls import ServerTls

__all__ = ["Handler", "Limits", "Peer", "Rejection", "Shared"]

_log: Final = logging.getLogger("coord_control.endpoint")

_READ_BYTES: Final = 256 * 1024  # one read takes what asyncio itself would take

# An executor that vanished without a goodbye is noticed after about 2 minutes.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class Handler(Protocol):
    """What the endpoint calls, always on its loop thread; none of these may block."""

    def received(self, message: frame_codec.Request, token: Token) -> None:
        """Handle a request. Hello and Acknowledge are to be answered once with ``Endpoint.answer(token, ...)``."""
        ...

    def disconnected(self, token: Token) -> None:
        """Handle the end of an authenticated connection, no matter which side ended it; later answers to it are
        dropped."""
        ...

    def crashed(self, error: BaseException) -> None:
        """Handle an exception of the handler or the endpoint itself: the job must not continue as if nothing had
        happened."""
        ...


class Rejection(enum.Enum):
    """Why the endpoint ended a connection, or refused to carry a message."""

    TOO_MANY = "too many connections"
    TOO_MANY_STRANGERS = "too many connections that are not authenticated"
    HANDSHAKE_TIMEOUT = "handshake not finished in time"
    TLS = "not acceptable as TLS"
    VERSION = "wrong protocol version"
    SECRET = "wrong secret"
    HANDSHAKE = "handshake not well-formed, or aborted by the client"
    FRAME = "frame not well-formed"
    PIPELINED = "request before the answer to the last one was read"
    SLOW = "answer not read in time"


_OF_HANDSHAKE: Final = {
    Reason.VERSION: Rejection.VERSION,
    Reason.SECRET: Rejection.SECRET,
    Reason.MALFORMED: Rejection.HANDSHAKE,
    Reason.REJECTED: Rejection.HANDSHAKE,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What peers may cost."""

    connections: int = 20_000
    strangers: int = 256  #: connections that have not authenticated; the newest one above it is refused
    handshake_seconds: float = 10.0
    slow_seconds: float = 60.0  #: for reading an answer that did not fit into the kernel's buffers


@dataclass(slots=True, eq=False)
class Shared:
    """What all connections of one endpoint have in common: limits, buffers and counters."""

    loop: asyncio.AbstractEventLoop
    handler: Handler
    limits: Limits
    make_handshake: Callable[[], ServerHandshake]
    context: ssl.SSLContext | None
    peers: set[Peer] = field(default_factory=set)
    strangers: int = 0
    accepted: int = 0
    frames_in: int = 0
    frames_out: int = 0
    dropped_answers: int = 0
    rejected: Counter[Rejection] = field(default_factory=Counter)
    is_closing: bool = False
    incoming: memoryview = field(default_factory=lambda: memoryview(bytearray(_READ_BYTES)))
    plain: memoryview = field(default_factory=lambda: memoryview(bytearray(_READ_BYTES)))

    def guard(self, function: Callable[..., None], *args: object) -> None:
        """Call ``function``; what it raises goes to the handler's ``crashed``."""
        try:
            function(*args)
        except Exception as error:
            self.crashed(error)

    def crashed(self, error: BaseException) -> None:
        try:
            self.handler.crashed(error)
        except Exception:
            _log.critical("= the handler failed while it handled %r", error, exc_info=True)


class Peer(asyncio.BufferedProtocol):
    """One connection."""

    __slots__ = (
        "_handshake",
        "_is_open",
        "_is_outstanding",
        "_reader",
        "_shared",
        "_timer",
        "_tls",
        "_transport",
        "name",
    )

    _transport: asyncio.Transport

    def __init__(self, shared: Shared) -> None:
        self.name = "?"
        self._shared = shared
        self._reader = frame_codec.FrameReader()
        self._handshake: ServerHandshake | None = None
        self._tls: ServerTls | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._is_outstanding = False  # a request waits for its answer

    def __repr__(self) -> str:
        return f"<Peer {self.name}>"

    @property
    def held(self) -> int:
        """Bytes that this connection keeps: of an incomplete frame, and of an answer that is not sent yet."""
        encrypted = self._tls.held if self._tls is not None else 0
        return encrypted + self._reader.held + self._transport.get_write_buffer_size()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared, limits = self._shared, self._shared.limits
        self._transport = cast("asyncio.Transport", transport)
        host, port = transport.get_extra_info("peername", ("?", 0))[:2]
        self.name = f"{host}:{port}"
        if len(shared.peers) >= limits.connections:
            return self._refuse(Rejection.TOO_MANY)
        if shared.strangers >= limits.strangers:
            return self._refuse(Rejection.TOO_MANY_STRANGERS)
        _keep_alive(transport.get_extra_info("socket"))
        shared.peers.add(self)
        shared.accepted += 1
        shared.strangers += 1
        self._is_open = True
        self._handshake = shared.make_handshake()
        self._timer = shared.loop.call_later(limits.handshake_seconds, self._drop, Rejection.HANDSHAKE_TIMEOUT)
        if shared.context is not None:
            self._tls = ServerTls(shared.context)
        else:
            self._send(self._handshake.challenge())
        return None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.incoming

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_open:
            return
        data = self._shared.incoming[:nbytes]
        try:
            if self._tls is None:
                self._read(data)
            else:
                self._decrypt(self._tls, data)
        except FrameInvalid as error:
            self._drop(Rejection.FRAME if self._handshake is None else Rejection.HANDSHAKE, error)

    def pause_writing(self) -> None:
        if self._handshake is not None:
            return self._drop(Rejection.SLOW)  # a handshake never has that much to say
        if self._is_open:
            self._timer = self._shared.loop.call_later(self._shared.limits.slow_seconds, self._drop, Rejection.SLOW)
        return None

    def resume_writing(self) -> None:
        self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        shared = self._shared
        self._stop_timer()
        self._is_open = False
        if self not in shared.peers:
            return
        shared.peers.discard(self)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("x %s closed%s", self.name, f": {exc}" if exc else "")
        if self._handshake is not None:
            shared.strangers -= 1
        elif not shared.is_closing:
            shared.guard(shared.handler.disconnected, self)

    # What the endpoint calls.

    def answer(self, answer: Answer) -> None:
        """Send the answer to the outstanding request; see ``Endpoint.answer``."""
        if not self._is_open:
            self._shared.dropped_answers += 1
            return
        if not self._is_outstanding:
            raise InvalidTransition("connection", "idle", f"answer {type(answer).__name__}")
        frames = frame_codec.encode_answer(answer)
        self._is_outstanding = False
        self._shared.frames_out += len(frames)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("> %s %s, %d bytes", self.name, type(answer).__name__, sum(map(len, frames)))
        for frame in frames:
            self._send(frame)

    def abort(self) -> None:
        """End the connection at once; nothing is sent any more."""
        self._is_open = False
        self._transport.abort()

    # Inside.

    def _decrypt(self, tls: ServerTls, data: memoryview) -> None:
        plain = self._shared.plain
        was_ready = tls.is_ready
        try:
            for size in tls.receive(data, plain):
                self._read(plain[:size])
                if not self._is_open:
                    return
        except ssl.SSLZeroReturnError:
            self.abort()
        except ssl.SSLError as error:
            self._drop(Rejection.TLS, error, tls.take())
        else:
            if self._handshake is not None and tls.is_ready and not was_ready:
                tls.encrypt(self._handshake.challenge())
            if output := tls.take():
                self._transport.write(output)

    def _read(self, data: memoryview) -> None:
        for kind, body in self._reader.frames(data):
            if self._handshake is None:
                self._request(kind, body)
            else:
                self._greet(self._handshake, kind, body)
            if not self._is_open:
                return

    def _greet(self, handshake: ServerHandshake, kind: int, body: memoryview) -> None:
        step = handshake.receive(kind, body)
        if isinstance(step, Failed):
            return self._drop(_OF_HANDSHAKE[step.reason], step.why, step.frame, encrypt=True)
        self._handshake = None
        self._shared.strangers -= 1
        self._stop_timer()
        self._reader.limit = frame_codec.MAX_FRAME_BYTES
        self._send(step.frame)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("= %s authenticated", self.name)
        return None

    def _request(self, kind: int, body: memoryview) -> None:
        shared = self._shared
        request = frame_codec.decode_request(kind, body)
        if type(request) is not AttemptEnded:
            if self._is_outstanding or self._transport.get_write_buffer_size():
                return self._drop(Rejection.PIPELINED)
            self._is_outstanding = True
        shared.frames_in += 1
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("< %s %s of %s, %d bytes", self.name, type(request).__name__, request.attempt, len(body))
        try:
            shared.handler.received(request, self)
        except Exception as error:
            shared.crashed(error)
            self.abort()
        return None

    def _send(self, frame: bytes) -> None:
        if self._tls is not None:
            self._tls.encrypt(frame)
            frame = self._tls.take()
        self._transport.write(frame)

    def _refuse(self, rejection: Rejection) -> None:
        self._shared.rejected[rejection] += 1
        self._transport.abort()

    def _drop(self, rejection: Rejection, why: object = "", last_words: bytes = b"", *, encrypt: bool = False) -> None:
        """End the connection, count and log why; ``last_words`` are still sent."""
        if not self._is_open:
            return
        self._is_open = False
        self._shared.rejected[rejection] += 1
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("x %s %s %s", self.name, rejection.value, why)
        if not last_words:
            return self._transport.abort()
        if encrypt:
            self._send(last_words)
        else:
            self._transport.write(last_words)
        return self._transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):  # not every system has them under these names
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
