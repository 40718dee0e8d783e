"""Who may look, and who may act.

* Nobody's page in the same browser can read ours: a foreign name that is made to point at this machine (DNS rebinding)
  is refused, because only addresses, ``localhost``, this machine's name and names that were allowed are answered to.
* Nothing but our own files runs in the page, and it can be put into no frame.
* There are no cookies, so that there is nothing that a foreign page could make a browser send along. Who wants to act
  sends a token with each request.

Threads: the server's loop; nothing changes after it was made.
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
from coord_control.listening import KnownNames, asked_name

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
    """Refuses requests for foreign names, and tells browsers what the pages may do.

    Args:
        names: that are answered to, beside addresses, ``localhost`` and the name of this machine.
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

        # Not from the request's URL: where the header makes no sense, that has our own address.
        name = asked_name(Headers(scope=scope).get("host", ""))
        if name in self._names:
            await self._app(scope, receive, send_guarded)
            return
        text = f"This server does not answer to the name {name or 'that was asked for'!r}; see --allow-host.\n"
        await PlainTextResponse(text, status_code=400)(scope, receive, send_guarded)


class Token:
    """What somebody must know in order to act."""

    def __init__(self, value: str) -> None:
        self._value = value.encode()

    def is_right(self, given: str) -> bool:
        """Compare, in a time that does not tell how much of it was right."""
        return hmac.compare_digest(self._value, given.encode("utf-8", "surrogatepass"))


def read_token(path: Path | None) -> str:
    """Return the token of a file, without the white space around it; without a file a new one.

    Raises:
        PageSettingsInvalid: it cannot be read, or is too short.
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
