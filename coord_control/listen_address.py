"""Listen addresses and accepted host names: one rule for the web pages, the exporter and drivers.

A server on loopback is only meant for this machine. But a page of a foreign web site runs on this machine too, and its
owner can let its name point at 127.0.0.1 in order to read our pages (DNS rebinding). Such a request still contains the
foreign name, by which it is detected.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

__all__ = ["LOOPBACK", "KnownNames", "asked_name", "is_loopback", "split_address"]

LOOPBACK: Final = "127.0.0.1"

_FORM: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]*):(?P<port>[0-9]{1,5})")
_LARGEST_PORT: Final = 65_535


def split_address(text: str) -> tuple[str, int] | None:
    """Read ``HOST:PORT`` or ``:PORT``, which is a port of the loopback interface; an IPv6 host stands in brackets.

    Returns:
        Host and port, or None if the text is not an address.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or int(found["port"]) > _LARGEST_PORT:
        return None
    return found["host"].strip("[]") or LOOPBACK, int(found["port"])


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an IP address."""
    return ipaddress.ip_address(address).is_loopback


def asked_name(host: str) -> str | None:
    """Return the name or address in a ``Host`` header, without its port, or None if there is none."""
    try:
        return urlsplit(f"//{host}").hostname if "@" not in host else None
    except ValueError:  # brackets that do not match
        return None


class KnownNames:
    """Addresses, ``localhost``, the name of this machine, and names that were allowed.

    Args:
        allowed: additional names.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in allowed)}

    def __contains__(self, name: str | None) -> bool:
        if name is None:
            return False
        if name.rstrip(".") in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # unlike a name, an address cannot be made to point at us
