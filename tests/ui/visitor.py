"""Asks the pages as a browser would, without a socket."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any, Final

import httpx
from starlette.applications import Starlette

__all__ = ["Visitor", "text_of"]

_HOME: Final = "http://127.0.0.1:8765"


class Visitor:
    """Somebody with a browser; follows no redirects."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    def get(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("GET", path, more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, more))

    def text(self, path: str) -> str:
        """What a page says, without its markup."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return text_of(answer)

    async def _ask(self, method: str, path: str, more: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app)
        async with httpx.AsyncClient(transport=transport, base_url=_HOME) as client:
            return await client.request(method, path, **more)


def text_of(answer: httpx.Response) -> str:
    """The words of a page's main part, one space apart."""
    main = answer.text.partition("<main")[2].partition(">")[2].partition("</main>")[0]
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", main))).strip()
