"""The buttons and forms: each posts a form, which becomes a command to the job's driver.

A form contains the token, and a key that was generated with the page: pressing a button twice, or sending the form
again, is one command. Nothing else is evaluated before the token has been checked.

Threads: the server's loop; the database is asked on one of its threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import Command, SendEvent, command_payload
from coord_control.errors import CommandFailed, CommandTimeout, JobNotRunning
from coord_control.storage.records import CommandRecord
from coord_control.ui.access import Token
from coord_control.ui.request_forms import Entered, NotSent, forms_of

__all__ = ["Actions"]

#: A live value of 16 KiB that consists of characters which a form escapes, and more than most events need.
_MOST_BYTES: Final = 128 * 1024
_MOST_FIELDS: Final = 500
_OWN_SITES: Final = ("same-origin", "none")
#: How long a form waits for what its driver says, which is then shown with it.
_WAIT_SECONDS: Final = 2.0


class Actions:
    """Handles the forms.

    Args:
        show: returns the page of a job with what was entered, and what is wrong with it.
    """

    def __init__(self, client: ControlClient, token: Token, show: Callable[[str, Entered], Response]) -> None:
        self._client, self._token, self._show = client, token, show

    async def post(self, request: Request) -> Response:
        """Send the request of the pressed button, and redirect to the job's page, which shows its progress."""
        form = await _form(request)
        if request.headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            raise HTTPException(403, "The form was sent from a page of another site. Use the form on this job's page.")
        if not self._token.is_right(form.get("token", "")):
            raise HTTPException(403, "The token is not the one that coordctl ui was started with. No request was sent.")
        job = request.path_params["job"]
        try:
            command = await run_in_threadpool(self._ask, job, form)
        except NotSent as error:
            return await run_in_threadpool(self._show, job, error.entered)
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
        return self._submit(job, form)

    def _submit(self, job: str, form: Mapping[str, str]) -> CommandRecord:
        wanted = [each for each in forms_of(self._client.job(job)) if each.action == form.get("action")]
        if not wanted or wanted[0].model is None:
            raise HTTPException(400, "There is no such button. Load the job's page again.")
        command = wanted[0].request(form)
        asked = self._client.submit(job, command, key=_key(form.get("key"), command))
        # Most outcomes are there at once; whatever else happens, the page shows it.
        with contextlib.suppress(CommandTimeout, CommandFailed, JobNotRunning):
            if isinstance(command, SendEvent):
                self._client.wait_event(asked, timeout=_WAIT_SECONDS)
            else:
                self._client.wait(asked, timeout=_WAIT_SECONDS)
        return asked


def _key(key: str | None, command: Command[Any]) -> str | None:
    # Of the content as well: a form that was changed after going back is another request.
    if not key:
        return None
    content = json.dumps([command.kind, command_payload(command)], sort_keys=True)
    return f"page-{key}-{hashlib.sha256(content.encode()).hexdigest()[:32]}"


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
