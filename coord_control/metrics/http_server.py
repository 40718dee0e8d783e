"""The HTTP server of metrics: small, bounded, and never in the way of what it measures.

A fixed number of threads answers requests. The same number of clients may wait; further connections are closed. A
client that sends or reads nothing loses its thread after some seconds. There is no password, so on loopback the server
refuses requests for foreign names: :mod:`coord_control.listen_address` explains why.

=====================  =====================================================================================
``/metrics``           all metrics in the requested format (text or OpenMetrics), compressed on request
``?subtasks=N``        also the N most blocked subtasks; 1,000 at most
``?name[]=...``        only metrics with these names
``/healthz``           ``ok`` if the process answers
``/targets``           exporter only: where drivers serve metrics, for Prometheus's HTTP service discovery
=====================  =====================================================================================

Threads: the owner calls :meth:`MetricsServer.start` and :meth:`MetricsServer.close`; the pages are made on the server's
threads, one at a time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import ProcessCollector, make_wsgi_app
from prometheus_client.metrics_core import Metric as Family

from coord_control.errors import EndpointNotBound
from coord_control.listen_address import KnownNames, asked_name, is_loopback
from coord_control.metrics.address import Address
from coord_control.metrics.subtasks import MAX_SUBTASKS

__all__ = ["THREADS", "MetricsServer", "Page", "Targets"]

_log = logging.getLogger("coord_control.metrics")

#: Returns the families of one scrape, with at most the given number of individual subtasks.
Page: TypeAlias = Callable[[int], Iterable[Family]]
#: Returns other scrape targets as JSON values, or None if they are not known now.
Targets: TypeAlias = Callable[[], list[dict[str, Any]] | None]

THREADS: Final = 4
_CLIENT_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.2
_PRODUCT: Final = "coord-control"


class _Scrape:
    """A page with the parameters of its request, in the form of a registry for prometheus_client."""

    def __init__(self, page: Page, subtasks: int, names: Collection[str] = ()) -> None:
        self._page, self._subtasks, self._names = page, subtasks, frozenset(names)

    def collect(self) -> Iterator[Family]:
        for family in (*self._page(self._subtasks), *_PROCESS.collect()):
            if self._names:
                family.samples = [sample for sample in family.samples if sample.name in self._names]
            if family.samples:
                yield family

    def restricted_registry(self, names: Iterable[str]) -> _Scrape:
        return _Scrape(self._page, self._subtasks, tuple(names))


_PROCESS: Final = ProcessCollector(registry=None)


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_SECONDS  # of the socket: for each read and each write

    def version_string(self) -> str:
        return _PRODUCT

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s %s", self.address_string(), format % args)


class _Server(WSGIServer):
    """Answers on a fixed number of threads.

    Raises:
        OSError: the address is not available.
    """

    request_queue_size = 16
    timeout = _POLL_SECONDS  # of the wait for the next client

    def __init__(self, address: Address) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._waiting: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._clients: set[Any] = set()  # waiting or being answered; removed by the thread that answers
        self._threads = [
            threading.Thread(target=self._answer, name=f"coord-metrics_{number}", daemon=True)
            for number in range(THREADS)
        ]
        super().__init__((address.host, address.port), _Handler)  # closes itself if the address is not available
        for thread in self._threads:
            thread.start()

    def server_bind(self) -> None:
        # WSGIServer's version looks up the machine's name, which can take seconds and is not needed here.
        self.allow_reuse_address = True
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.is_loopback = is_loopback(self.server_name)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._clients) >= 2 * THREADS:
            self.shutdown_request(request)
            return
        self._clients.add(request)
        self._waiting.put((request, client_address))

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a client of the metrics went away", exc_info=True)

    def server_close(self) -> None:
        super().server_close()
        for request in self._clients.copy():
            with contextlib.suppress(OSError):  # disconnected
                request.shutdown(socket.SHUT_RD)  # requests that were sent are still answered; no more are read
        for _ in self._threads:
            self._waiting.put(None)

    def _answer(self) -> None:
        while (taken := self._waiting.get()) is not None:
            try:
                self.finish_request(*taken)
            except Exception:
                self.handle_error(*taken)
            finally:
                self._clients.discard(taken[0])
                self.shutdown_request(taken[0])


class MetricsServer:
    """Serves one page.

    Args:
        page: called on the server's threads, one at a time.
        address: where to listen; if its port is taken, and was not chosen by the user, a free one is used.
        targets: called in the same way.
    """

    def __init__(self, page: Page, address: Address, *, targets: Targets | None = None) -> None:
        self._page, self._wanted, self._targets = page, address, targets
        self._page_lock = threading.Lock()
        self._is_loopback = True
        self._is_failing = False
        self._names = KnownNames([address.host])
        self._closing = threading.Event()
        self._server: _Server | None = None
        self._thread = threading.Thread(target=self._run, name="coord-metrics-server", daemon=True)

    def start(self, *, must: bool = True) -> Address | None:
        """Start to listen.

        Args:
            must: whether an unavailable address is an error. Otherwise it is tried again until it is available, as for
                a driver whose predecessor is about to end.

        Returns:
            The address, or None if it is not available yet.

        Raises:
            EndpointNotBound: the address is not available.
        """
        try:
            self._server = self._bind()
        except OSError as error:
            if must:
                port = self._wanted.port
                # Only coordctl exporter insists on its address.
                raise EndpointNotBound(self._wanted.host, range(port, port + 1), error, "--listen") from error
            _log.warning("= metrics cannot be served at %s yet: %s", self._wanted, error)
        self._thread.start()
        return self.address

    @property
    def address(self) -> Address | None:
        """Return the address on which the server listens, or None if it does not."""
        server = self._server
        return None if server is None else Address(self._wanted.host, server.server_port, self._wanted.is_named)

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the server; True before it listens."""
        return self._is_loopback

    def close(self) -> None:
        """Stop the server. May be called twice, and without a start."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(_CLIENT_SECONDS)

    def _bind(self) -> _Server:
        try:
            server = _Server(self._wanted)
        except OSError:
            if self._wanted.is_named:
                raise
            server = _Server(Address(self._wanted.host, 0))
        server.set_app(self._application)
        self._is_loopback = server.is_loopback
        return server

    def _run(self) -> None:
        while self._server is None:
            if self._closing.wait(_RETRY_SECONDS):
                return
            with contextlib.suppress(OSError):
                self._server = self._bind()
        server = self._server
        _log.info("= metrics at http://%s/metrics", self.address)
        while not self._closing.is_set():
            server.handle_request()
        self._server = None
        server.server_close()

    def _application(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            # Otherwise wsgiref would send the version of Python.
            return start_response(status, [*headers, ("Server", _PRODUCT)], *more)

        name = asked_name(environ.get("HTTP_HOST", ""))
        if self._is_loopback and name not in self._names:
            text = f"metrics on loopback do not answer to the name {name or 'that was asked for'!r}: use an address\n"
            return _text(start, HTTPStatus.BAD_REQUEST, text)
        return self._answer(environ, start)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/healthz":
            return _text(start_response, HTTPStatus.OK, "ok\n")
        if path == "/targets" and self._targets is not None:
            with self._page_lock:
                targets = self._targets()
            if targets is None:
                return _text(start_response, HTTPStatus.SERVICE_UNAVAILABLE, "the database is away\n")
            return _text(start_response, HTTPStatus.OK, json.dumps(targets) + "\n", "application/json")
        if path not in ("/", "/metrics"):
            return _text(start_response, HTTPStatus.NOT_FOUND, "metrics are at /metrics\n")
        try:
            subtasks = _subtasks(environ.get("QUERY_STRING", ""))
        except ValueError:
            return _text(start_response, HTTPStatus.BAD_REQUEST, f"subtasks is a number up to {MAX_SUBTASKS}\n")
        began = time.monotonic()
        with self._page_lock:
            try:
                body: list[bytes] = make_wsgi_app(_Scrape(self._page, subtasks))(environ, start_response)
            except Exception as error:
                self._note_failure(error)
                return _text(start_response, HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
            self._note_success()
        _log.debug("a scrape took %.3f s", time.monotonic() - began)
        return body

    def _note_failure(self, error: Exception) -> None:
        _log.debug("metrics could not be read", exc_info=error)
        if not self._is_failing:
            _log.warning(
                "x metrics cannot be read: %s; scrapes get status 503 until they can. If that lasts, look in this log "
                "for a coordinator that is slow or hangs; DEBUG of coord_control.metrics has the traceback",
                error,
            )
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            _log.warning("= metrics can be read again")
        self._is_failing = False


def _subtasks(query: str) -> int:
    given = parse_qs(query).get("subtasks", ["0"])[-1]
    wanted = int(given)
    if wanted < 0:
        raise ValueError(given)
    return min(wanted, MAX_SUBTASKS)


def _text(
    start_response: Any, status: HTTPStatus, text: str, content_type: str = "text/plain; charset=utf-8"
) -> Iterable[bytes]:
    body = text.encode()
    headers = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
    start_response(f"{status.value} {status.phrase}", headers)
    return [body]
