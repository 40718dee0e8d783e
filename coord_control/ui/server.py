"""Serves the pages until a signal stops it.

Threads: the calling thread runs the loop; the pages are read on separate threads.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

import uvicorn
from starlette.applications import Starlette

from coord_control.errors import EndpointNotBound, PageSettingsInvalid
from coord_control.listen_address import split_address

__all__ = ["address_of", "bound", "serve"]

_WAITING: Final = 64
_GRACE_SECONDS: Final = 3


def bound(listen: str) -> socket.socket:
    """Return a socket that listens at ``HOST:PORT``, or at ``:PORT`` of loopback; port 0 selects any free port.

    Raises:
        PageSettingsInvalid: the address is invalid.
        EndpointNotBound: the address is in use or not available.
    """
    address = split_address(listen)
    if address is None:
        raise PageSettingsInvalid(f"{listen!r} is not a listen address; write HOST:PORT, for example 127.0.0.1:8765")
    host, port = address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(address, family=family, backlog=_WAITING)
    except OSError as error:
        raise EndpointNotBound(host, range(port, port + 1), _plain(error), "--listen") from error


def _plain(error: OSError) -> OSError:
    # Python's own text repeats the address. (Resolver errors have other numbers, and no such text.)
    number = error.errno
    return OSError(number, os.strerror(number)) if number is not None and number in errno.errorcode else error


def address_of(listener: socket.socket) -> str:
    """Return the URL of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; the signal then takes its usual effect."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listener])
