"""The driver's end of all connections: one asyncio loop in one daemon thread, which the protocol core shares.

Everything that reaches the core does so on this thread: requests from the sockets directly, everything else through
:meth:`Endpoint.call_soon_threadsafe`. The loop runs callbacks in the order in which they were handed over, so it is the
core's one first-in-first-out inbox.

Threading rule: :meth:`Endpoint.start`, :meth:`Endpoint.close`, :meth:`Endpoint.call_soon_threadsafe` and
:meth:`Endpoint.stats` may be called from any other thread; :meth:`Endpoint.answer` only from the loop thread. The loop
must never wait: slow work moves to another thread and its result comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVarTuple, cast

from coord_control.errors import EndpointClosed, EndpointNotBound
from coord_control.ids import Generation
from coord_control.protocol.messages import Answer, Token
from coord_control.spark.wire import tls as tls_material
from coord_control.spark.wire.connection import DriverAddress
from coord_control.spark.wire.handshake import NONCE_BYTES, SECRET_BYTES, ServerHandshake
from coord_control.spark.wire.peer import Handler, Limits, Peer, Rejection, Shared

__all__ = ["THREAD_NAME", "Endpoint", "Handler", "Limits", "Rejection", "Stats"]

_log: Final = logging.getLogger("coord_control.endpoint")

THREAD_NAME: Final = "coord-endpoint"

# Connections that the kernel accepts for us while the loop is busy, and the most that one turn of the loop takes.
_BACKLOG: Final = 256

_Args = TypeVarTuple("_Args")


@dataclass(frozen=True, slots=True)
class Stats:
    """What the endpoint has done so far."""

    connections: int  #: open now, authenticated or not
    strangers: int  #: of these, not authenticated yet
    accepted: int  #: connections ever let in
    frames_in: int  #: requests that were handed to the handler
    frames_out: int  #: answers sent
    dropped_answers: int  #: answers to connections that were gone
    rejected: Mapping[Rejection, int]
    held_bytes: int  #: incomplete frames and unsent answers of all connections


class Endpoint:
    """Listens for the subtasks of one generation of the driver.

    It makes the generation's secret and certificate itself; both are part of :attr:`address`.
    """

    def __init__(self, handler: Handler, generation: Generation, *, tls: bool, limits: Limits | None = None) -> None:
        """Make the secret and the certificate; nothing listens yet.

        Args:
            handler: called on the loop thread for everything that happens.
            generation: the driver's; part of the handshake.
            tls: whether connections are encrypted; authentication is mutual with and without.
            limits: what peers may cost.
        """
        self._generation = generation
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._certificate = tls_material.make_certificate() if tls else None
        self._loop = asyncio.new_event_loop()
        self._shared = Shared(
            self._loop,
            handler,
            limits or Limits(),
            make_handshake=lambda: ServerHandshake(self._secret, generation, secrets.token_bytes(NONCE_BYTES)),
            context=tls_material.server_context(self._certificate) if self._certificate else None,
        )
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._server: asyncio.Server | None = None
        self._address: DriverAddress | None = None

    def start(
        self, bind: str, port: int | range = 0, *, advertise: str | None = None, advertised_port: int | None = None
    ) -> int:
        """Begin to listen.

        Args:
            bind: the local address to listen at, ``0.0.0.0`` for all.
            port: 0 for any free one, or the ports that may be taken, tried in order.
            advertise: the host name under which executors reach it; ``bind`` when left out.
            advertised_port: the port under which they do; the one that it listens at when left out.

        Returns:
            the port.

        Raises:
            EndpointNotBound: no port of these is free, or the address is not one of this machine.
        """
        self._loop.set_exception_handler(self._failed)
        self._thread.start()
        ports = port if isinstance(port, range) else range(port, port + 1)
        try:
            server = asyncio.run_coroutine_threadsafe(self._listen(bind, ports), self._loop).result()
        except BaseException:
            self.close()
            raise
        self._server = server
        bound = cast("int", server.sockets[0].getsockname()[1])
        pem = self._certificate.pem if self._certificate else None
        self._address = DriverAddress(advertise or bind, advertised_port or bound, self._generation, self._secret, pem)
        where = f"{self._address.host}:{self._address.port}"
        _log.info("= listening at %s:%d, advertised as %s, tls %s", bind, bound, where, pem is not None)
        return bound

    @property
    def address(self) -> DriverAddress:
        """What a worker needs to connect; only after :meth:`start`."""
        if self._address is None:
            raise AssertionError("the endpoint has not been started")
        return self._address

    def answer(self, token: Token, answer: Answer) -> None:
        """Answer the request that came with ``token``; on the loop thread only.

        An answer to a connection that is gone is dropped and counted; one that is too large for a frame is sent in
        several.

        Raises:
            InvalidTransition: the connection has no request that waits for an answer.
        """
        assert threading.get_ident() == self._thread.ident, "answer() belongs to the loop thread"
        cast("Peer", token).answer(answer)

    def call_soon_threadsafe(self, function: Callable[[*_Args], None], *args: *_Args) -> None:
        """Run ``function(*args)`` on the loop thread, after everything that was handed over before.

        What it raises goes to the handler's ``crashed``.

        Raises:
            EndpointClosed: the endpoint has been closed.
        """
        try:
            self._loop.call_soon_threadsafe(self._shared.guard, function, *args)
        except RuntimeError as error:  # how asyncio says that the loop is closed
            host, port = (self._address.host, self._address.port) if self._address else ("?", 0)
            raise EndpointClosed(host, port, "the endpoint has been closed") from error

    def stats(self) -> Stats:
        """Return the counters at this moment; from any thread."""
        shared = self._shared
        return Stats(
            connections=len(shared.peers),
            strangers=shared.strangers,
            accepted=shared.accepted,
            frames_in=shared.frames_in,
            frames_out=shared.frames_out,
            dropped_answers=shared.dropped_answers,
            rejected=dict(shared.rejected),
            held_bytes=sum(peer.held for peer in shared.peers.copy()),
        )

    def close(self) -> None:
        """Stop listening, end all connections and the thread; from any thread but the loop's, and more than once.

        Answers that were given before are handed to the kernel. ``disconnected`` is not called for connections that
        end here.
        """
        if self._thread.ident is not None:
            with contextlib.suppress(RuntimeError):  # closed already
                self._loop.call_soon_threadsafe(self._leave)
            self._thread.join()
        self._loop.close()

    async def _listen(self, bind: str, ports: range) -> asyncio.Server:
        problem: OSError | None = None
        for port in ports:
            try:
                return await self._loop.create_server(self._make_peer, bind, port, backlog=_BACKLOG)
            except OSError as error:
                problem = error
        raise EndpointNotBound(bind, ports, problem) from problem

    def _make_peer(self) -> Peer:
        return Peer(self._shared)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:  # SystemExit in a callback, say: the thread ends, but not in silence
            self._shared.crashed(error)
        finally:
            self._shared.is_closing = True
            self._loop.run_until_complete(self._shut())

    def _leave(self) -> None:
        if not self._shared.is_closing:  # otherwise the loop only runs to the end of _shut
            self._loop.stop()

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        # Each connection that is just being accepted is a task of asyncio, and owns a socket.
        if accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(accepting)
        for peer in tuple(self._shared.peers):
            peer.abort()
        await asyncio.sleep(0)  # the callbacks that abort() has scheduled close the sockets

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """asyncio's exception handler: what no caller of ours could catch."""
        error = context.get("exception")
        if isinstance(error, OSError):  # a connection that broke at a bad moment, or no descriptor left to accept one
            _log.warning("= %s: %s", context.get("message"), error)
        elif isinstance(error, BaseException):
            self._shared.crashed(error)
        else:
            _log.error("= %s", context.get("message"))
