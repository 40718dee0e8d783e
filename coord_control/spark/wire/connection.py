"""The worker's end: one blocking connection to the driver for each Python worker process.

A task asks once (hello) and answers once (acknowledge); between them it computes. So the connection is a plain socket
with timeouts, one request at a time, and it stays open for the next task of the same process.

Every wait is bounded, and every error names host and port. After an error or a timeout the connection is closed and
never used again: an answer that came too late must not be taken for the answer to the next question.

Threads: a connection may be shared by threads, they take turns. Processes: never. A forked child closes its copies of
the parent's sockets without a word to the driver (``close`` on the descriptor, never ``shutdown``), and connects by
itself.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coord_control.errors import (
    AttemptRefused,
    AuthenticationFailed,
    EndpointClosed,
    EndpointError,
    EndpointTimeout,
    EndpointUnreachable,
    FrameInvalid,
)
from coord_control.ids import Generation
from coord_control.protocol.messages import Accepted, Acknowledge, AttemptEnded, Hello, Refused, Welcome
from coord_control.spark.wire import frame_codec, tls
from coord_control.spark.wire.handshake import NONCE_BYTES, ClientHandshake, Failed

__all__ = ["ANSWER_SECONDS", "Connection", "DriverAddress", "Patience", "Wait", "connect", "shared"]

_log: Final = logging.getLogger("coord_control.connection")

#: An ack is answered after a group commit on the job's storage, which may be a slow one.
ANSWER_SECONDS: Final = 120.0

_READ_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where the driver of one generation listens and how to recognise it; it travels inside the task closure."""

    host: str
    port: int
    generation: Generation
    secret: bytes = field(repr=False)
    certificate: str | None = field(default=None, repr=False)  #: PEM; None without TLS


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection waits, in seconds."""

    connect: float = 10.0  #: one try, from the first packet to the end of the handshake
    tries: int = 4
    back_off: float = 0.2  #: before the second try; doubled for each further one, plus up to as much by chance
    answer: float = ANSWER_SECONDS


_PATIENCE: Final = Patience()


class Wait(NamedTuple):
    """One bounded wait: for what, how long, until when (monotonic time)."""

    what: str
    seconds: float
    deadline: float

    @classmethod
    def begin(cls, what: str, seconds: float) -> Wait:
        return cls(what, seconds, time.monotonic() + seconds)


class Connection:
    """An authenticated connection; made by :func:`connect` or :func:`shared`."""

    __slots__ = ("_buffer", "_lock", "_owner", "_patience", "_reader", "_socket", "address", "is_closed")

    def __init__(self, sock: socket.socket, address: DriverAddress, patience: Patience) -> None:
        self.address = address
        self.is_closed = False
        self._socket, self._patience = sock, patience
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._reader = frame_codec.FrameReader()
        self._buffer = memoryview(bytearray(_READ_BYTES))

    def hello(self, hello: Hello) -> Welcome:
        """Ask for the state and the inputs of an attempt.

        Raises:
            AttemptRefused: the attempt must fail; the connection stays usable.
            EndpointTimeout, EndpointClosed: no answer; the connection is closed now.
            FrameInvalid: the request is too large; nothing was sent.
        """
        answer = self._ask(hello, "the answer to hello")
        if not isinstance(answer, Welcome):
            raise self._broken(f"it answered hello with {type(answer).__name__}")
        return answer

    def acknowledge(self, ack: Acknowledge) -> None:
        """Hand over what an attempt has produced; returns when that is durable. Raises like :meth:`hello`."""
        answer = self._ask(ack, "the answer to the ack")
        if not isinstance(answer, Accepted):
            raise self._broken(f"it answered an ack with {type(answer).__name__}")

    def ended(self, ended: AttemptEnded) -> None:
        """Tell that an attempt failed; nothing is answered. Raises like :meth:`hello`, but never AttemptRefused."""
        frame = frame_codec.encode(ended)
        with self._lock:
            try:
                self._send(frame, Wait.begin("room to report the end of an attempt", self._patience.answer))
            except BaseException:
                self.close()
                raise

    def is_alive(self) -> bool:
        """Return whether it can be used for a new request, as far as is known: the driver has not closed it."""
        if not self._lock.acquire(blocking=False):
            return not self.is_closed  # another thread waits for an answer, and will notice a failure
        try:
            if self.is_closed or self._owner != os.getpid():
                return False
            # Nothing may arrive between two requests, so whatever can be read, an end or a byte, breaks the connection.
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        else:
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close this process's descriptor; may be called more than once and from any thread."""
        self.is_closed = True
        self._socket.close()

    def authenticate(self, wait: Wait) -> None:
        """Prove to each other that both know the secret; :func:`connect` does it before it returns the connection."""
        address = self.address
        handshake = ClientHandshake(address.secret, address.generation, secrets.token_bytes(NONCE_BYTES))
        is_done = False
        while not is_done:
            step = handshake.receive(*self._receive(wait))
            if step.frame:
                self._send(step.frame, wait)
            if isinstance(step, Failed):
                raise AuthenticationFailed(address.host, address.port, step.why)
            is_done = step.is_done
        self._reader.limit = frame_codec.MAX_FRAME_BYTES

    def _ask(self, request: Hello | Acknowledge, what: str) -> Welcome | Accepted:
        frame = frame_codec.encode(request)
        with self._lock:
            try:
                wait = Wait.begin(what, self._patience.answer)
                self._send(frame, wait)
                answer = frame_codec.decode_answer(*self._receive_answer(wait))
            except FrameInvalid as error:
                raise self._broken(f"it sent an {error}") from error
            except BaseException:  # also an interrupt: the answer is still to come
                self.close()
                raise
        if isinstance(answer, Refused):
            raise AttemptRefused(request.attempt, answer.reason)
        return answer

    def _send(self, frame: bytes, wait: Wait) -> None:
        self._prepare(wait)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._translate(error, wait) from error

    def _receive(self, wait: Wait) -> tuple[int, memoryview]:
        """Wait for one frame, and no more than one; the body is valid until the next call."""
        while True:
            frames = self._read(wait)
            if len(frames) > 1 or (frames and self._reader.held):
                raise FrameInvalid("more than one answer to one request")
            if frames:
                return frames[0]

    def _receive_answer(self, wait: Wait) -> tuple[int, frame_codec.Buffer]:
        """Wait for one answer, and no more than one, in as many frames as it takes; the body is valid until the next
        call."""
        pieces: list[bytes] = []
        while True:
            frames = self._read(wait)
            for number, (kind, body) in enumerate(frames, 1):
                if kind == frame_codec.Kind.PART:
                    pieces.append(bytes(body))
                elif number < len(frames) or self._reader.held:
                    raise FrameInvalid("more than one answer to one request")
                else:
                    return kind, b"".join((*pieces, body)) if pieces else body

    def _read(self, wait: Wait) -> list[tuple[int, memoryview]]:
        """Wait for bytes; returns the frames that they complete, which are valid until the next call."""
        self._prepare(wait)
        try:
            size = self._socket.recv_into(self._buffer)
        except OSError as error:
            raise self._translate(error, wait) from error
        if not size:
            raise self._broken(f"the driver ended it while we waited for {wait.what}; has it stopped or restarted?")
        return list(self._reader.frames(self._buffer[:size]))

    def _prepare(self, wait: Wait) -> None:
        if self.is_closed:
            raise EndpointClosed(self.address.host, self.address.port, "it was closed before; make a new one")
        if self._owner != os.getpid():
            raise EndpointClosed(self.address.host, self.address.port, f"it belongs to process {self._owner}")
        remaining = wait.deadline - time.monotonic()
        if remaining <= 0:
            raise self._timed_out(wait)
        self._socket.settimeout(remaining)

    def _translate(self, error: OSError, wait: Wait) -> EndpointError:
        return self._timed_out(wait) if isinstance(error, TimeoutError) else self._broken(error)

    def _timed_out(self, wait: Wait) -> EndpointTimeout:
        self.close()
        return EndpointTimeout(self.address.host, self.address.port, wait.what, wait.seconds)

    def _broken(self, cause: object) -> EndpointClosed:
        self.close()
        return EndpointClosed(self.address.host, self.address.port, cause)


def connect(address: DriverAddress, patience: Patience = _PATIENCE) -> Connection:
    """Connect and authenticate; tries again, with back-off, while the driver cannot be reached or is too busy.

    Raises:
        EndpointUnreachable, EndpointTimeout, EndpointClosed: all tries failed; this is the last one's error.
        AuthenticationFailed: it is not our driver, or another generation of it; trying again would not help.
    """
    back_off = patience.back_off
    for left in reversed(range(patience.tries)):
        try:
            return _connect_once(address, patience)
        except (EndpointUnreachable, EndpointTimeout, EndpointClosed) as error:
            if not left:
                raise
            seconds = back_off * (1 + random.random())  # spread: a whole executor may have been turned away at once
            _log.info("x %s; %d more tries, the next one in %.1f s", error, left, seconds)
        time.sleep(seconds)
        back_off *= 2
    raise ValueError("Patience.tries must be at least 1")


def _connect_once(address: DriverAddress, patience: Patience) -> Connection:
    host, port = address.host, address.port
    wait = Wait.begin("the handshake", patience.connect)
    try:
        sock = socket.create_connection((host, port), patience.connect)
    except OSError as error:
        raise EndpointUnreachable(host, port, error) from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.certificate is not None:
            sock = _encrypt(sock, address.certificate)
        connection = Connection(sock, address, patience)
        connection.authenticate(wait)
    except BaseException as error:
        sock.close()
        match error:
            case ssl.SSLCertVerificationError():
                raise AuthenticationFailed(host, port, f"its certificate is not the driver's: {error}") from error
            case FrameInvalid():
                raise AuthenticationFailed(host, port, f"no driver of ours answers there: {error}") from error
            case TimeoutError():
                raise EndpointTimeout(host, port, wait.what, wait.seconds) from error
            case OSError():
                raise EndpointClosed(host, port, error) from error
        raise
    return connection


def _encrypt(sock: socket.socket, pem: str) -> ssl.SSLSocket:
    encrypted = tls.client_context(pem).wrap_socket(sock)
    if encrypted.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(pem):
        encrypted.close()
        raise ssl.SSLCertVerificationError("another certificate than the pinned one")
    return encrypted


class _Shared:
    """The connections of this process, by address. The process id is part of the key, so a child finds none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connections: dict[tuple[int, DriverAddress], Connection] = {}

    def get(self, address: DriverAddress, patience: Patience) -> Connection:
        key = os.getpid(), address
        with self.lock:
            found = self.connections.get(key)
            if found is not None and found.is_alive():
                return found
            # A reused worker process outlives drivers: connections to those that are gone go with the one we miss.
            for other, connection in list(self.connections.items()):
                if not connection.is_alive():
                    connection.close()
                    del self.connections[other]
            made = self.connections[key] = connect(address, patience)
            return made

    def forget(self) -> None:
        # Runs in a forked child, which has only the thread that forked: the lock may be held by one that is gone.
        self.lock = threading.Lock()
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()


_SHARED: Final = _Shared()
os.register_at_fork(after_in_child=_SHARED.forget)


def shared(address: DriverAddress, patience: Patience = _PATIENCE) -> Connection:
    """Return the one connection of this process to ``address``, and connect if there is none, or the driver has closed
    it.

    Raises:
        like :func:`connect`.
    """
    return _SHARED.get(address, patience)
