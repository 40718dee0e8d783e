"""Access control: who may read the pages, and who may act.

* Foreign pages in the same browser cannot read ours: a foreign name that points at this machine (DNS rebinding) is
  refused, because only addresses, ``localhost``, this machine's name and explicitly allowed names are accepted.
* Only our own files run in the page, and it cannot be framed.
* There are no cookies that a foreign page could make a browser send. Every action needs a token in its request.

Threads: the server's loop; the objects do not change.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coord_control.errors import PageSettingsInvalid
from coord_control.listen_address import KnownNames, asked_name

__all__ = ["Guard", "Token", "read_token"]

_LEAST_TOKEN: Final = 16
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Refuses requests for foreign names, and sends the security headers.

    Args:
        names: host names to accept in addition to addresses, ``localhost`` and the name of this machine.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = KnownNames(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websockets, nothing to start or to end

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store" if "etag" not in headers else "no-cache")
            await send(message)

        # Not from the request's URL: if the header is invalid, the URL contains our own address.
        name = asked_name(Headers(scope=scope).get("host", ""))
        if name in self._names:
            await self._app(scope, receive, send_guarded)
            return
        text = f"This server does not answer to the name {name or 'that was asked for'!r}; see --allow-host.\n"
        await PlainTextResponse(text, status_code=400)(scope, receive, send_guarded)


class Token:
    """The secret that is required to act."""

    def __init__(self, value: str) -> None:
        self._value = value.encode()

    def is_right(self, given: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self._value, given.encode("utf-8", "surrogatepass"))


def read_token(path: Path | None) -> str:
    """Return the token in a file, without surrounding white space, or a new token if there is no file.

    Raises:
        PageSettingsInvalid: the token cannot be read or is too short.
    """
    if path is None:
        return secrets.token_urlsafe(24)
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise PageSettingsInvalid(f"the token cannot be read: {error}; name a file that holds it") from error
    if len(token) < _LEAST_TOKEN:
        raise PageSettingsInvalid(
            f"the token in {path} is shorter than {_LEAST_TOKEN} characters; make one with: openssl rand -hex 24"
        )
    return token
