"""Serving the pages until somebody ends it.

Threads: the calling thread runs the loop; the pages are read on threads of their own.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

import uvicorn
from starlette.applications import Starlette

from coord_control.errors import PageSettingsInvalid

__all__ = ["address_of", "bound", "is_loopback", "serve"]

_WAITING: Final = 64
_GRACE_SECONDS: Final = 3


def bound(listen: str) -> socket.socket:
    """Return a socket that listens at ``HOST:PORT``; port 0: any that is free.

    Raises:
        PageSettingsInvalid: that is no address, or it cannot be had.
    """
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise PageSettingsInvalid(f"{listen!r} is no address to listen at; write HOST:PORT, for example 127.0.0.1:8765")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, int(port)), family=family, backlog=_WAITING)
    except OSError as error:
        raise PageSettingsInvalid(
            f"cannot listen at {listen}: {error.strerror or error}; choose another port with --listen"
        ) from error


def address_of(listener: socket.socket) -> str:
    """The address of the page, for people to open."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


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
