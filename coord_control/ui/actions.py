"""The buttons: each posts a form, which becomes a command to the job's driver.

A form contains the token, and a key that was generated with the page: pressing a button twice, or sending the form
again, is one command. Nothing else is evaluated before the token has been checked.

Threads: the server's loop; the database is asked on one of its threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coord_control.control.client.control_client import ControlClient
from coord_control.storage.records import CommandRecord
from coord_control.ui.access import Token

__all__ = ["Actions"]

_MOST_BYTES: Final = 8_192
_MOST_FIELDS: Final = 10
_OWN_SITES: Final = ("same-origin", "none")


class Actions:
    """Handles the forms."""

    def __init__(self, client: ControlClient, token: Token) -> None:
        self._client, self._token = client, token

    async def post(self, request: Request) -> Response:
        """Send the request of the pressed button, and redirect to the job's page, which shows its progress."""
        form = await _form(request)
        if request.headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            raise HTTPException(403, "The form was sent from a page of another site. Use the form on this job's page.")
        if not self._token.is_right(form.get("token", "")):
            raise HTTPException(403, "The token is not the one that coordctl ui was started with. No request was sent.")
        job = request.path_params["job"]
        command = await run_in_threadpool(self._ask, job, form)
        return RedirectResponse(f"/jobs/{quote(job, safe='')}?asked={command.id}#asked", status_code=303)

    def _ask(self, job: str, form: Mapping[str, str]) -> CommandRecord:
        action, _, number = form.get("action", "").partition(":")
        label = form.get("label", "").strip() or None
        key = f"page-{form['key']}-{action}{number}" if form.get("key") else None
        if action == "checkpoint":
            return self._client.trigger_checkpoint(job, label=label, key=key)
        if action == "savepoint":
            return self._client.trigger_savepoint(job, label=label, key=key)
        if action == "abort" and number.isascii() and number.isdigit():
            return self._client.abort(job, checkpoint=int(number), key=key)
        raise HTTPException(400, "There is no such button. Load the job's page again.")


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, "The form is too large.")
    try:
        return dict(parse_qsl(body.decode("utf-8"), max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
