"""The address of the control database in an Airflow connection."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import quote, urlencode

__all__ = ["database_url"]


def database_url(
    *, host: str | None, port: int | None, login: str | None, database: str | None, options: Mapping[str, object]
) -> str | None:
    """Return the address, without a password, or None if the connection names no database.

    Args:
        host: the PostgreSQL server; without one, ``database`` is the path of a SQLite file.
        options: the extra fields of the connection: parameters of PostgreSQL's address, for example ``sslmode``.
    """
    if not host and not database:
        return None
    if not host:
        # A connection given as a URI has lost the first slash of the path.
        return f"sqlite:////{(database or '').lstrip('/')}"
    user = f"{quote(login, safe='')}@" if login else ""
    place = f"[{host}]" if _is_ipv6(host) else host
    where = f"{place}:{port}" if port else place
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql://{user}{where}/{quote(database or '', safe='')}{query}"


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
