"""The application: routes and error pages.

Threads: the server's loop calls the routes; the reading ones run on its threads.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from coord_control.control.client.control_client import ControlClient
from coord_control.errors import (
    CommandNotFound,
    CoordControlError,
    DatabaseError,
    JobNotFound,
    JobNotRunning,
    KeyReused,
    RecordNotFound,
    RequestInvalid,
)
from coord_control.ui.access import Guard, Token
from coord_control.ui.actions import Actions
from coord_control.ui.rendering import page
from coord_control.ui.request_forms import Entered
from coord_control.ui.views import ORDERS, checkpoint_page, job_page, jobs_page

__all__ = ["make_app"]

_STATIC: Final = Path(__file__).parent / "static"
_LARGEST: Final = 2**63 - 1

_STATUS: Final[tuple[tuple[type[CoordControlError], int], ...]] = (
    (JobNotFound, 404),
    (RecordNotFound, 404),
    (CommandNotFound, 404),
    (RequestInvalid, 400),
    (KeyReused, 409),
    (JobNotRunning, 409),
    (DatabaseError, 503),
)
_TITLES: Final = {400: "Invalid request", 403: "Not allowed", 404: "Not found", 409: "Not done"}


def make_app(client: ControlClient, *, token: str | None = None, names: Iterable[str] = ()) -> Starlette:
    """Return the application.

    Args:
        client: the client to read from and to send requests with. The caller closes it after the server has ended.
        token: the secret that is required to act, or None for read-only pages.
        names: host names to accept in addition to addresses, ``localhost`` and the name of this machine.
    """
    pages = _Pages(client, can_act=token is not None)
    routes: list[Route | Mount] = [
        Route("/healthz", _healthy),
        Route("/", pages.jobs),
        Route("/jobs/{job}", pages.job),
        Route("/jobs/{job}/checkpoints/{checkpoint:int}", pages.checkpoint),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    if token is not None:
        routes.append(
            Route("/jobs/{job}/actions", Actions(client, Token(token), pages.not_sent).post, methods=["POST"])
        )
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, names=tuple(names))],
        exception_handlers={CoordControlError: _told, HTTPException: _refused},
    )


class _Pages:
    """The reading half. The functions are not coroutines: the server runs them on threads."""

    def __init__(self, client: ControlClient, *, can_act: bool) -> None:
        self._client, self._can_act = client, can_act

    def jobs(self, request: Request) -> Response:
        return page("jobs.html", view=jobs_page(self._client), database=self._client.url)

    def job(self, request: Request) -> Response:
        view = job_page(
            self._client,
            request.path_params["job"],
            before=_number(request.query_params.get("before")),
            asked=request.query_params.get("asked"),
        )
        return page("job.html", view=view, **self._form())

    def not_sent(self, job: str, entered: Entered) -> Response:
        """Return the page of a job with a form that was not sent, because of what is wrong with it."""
        return page("job.html", status=422, view=job_page(self._client, job, entered=entered), **self._form())

    def checkpoint(self, request: Request) -> Response:
        number = request.path_params["checkpoint"]
        if number > _LARGEST:
            raise HTTPException(404, "There is no checkpoint of this number.")
        order = request.query_params.get("by", "subtask")
        order = order if order in ORDERS else "subtask"
        view = checkpoint_page(self._client, request.path_params["job"], number, order=order)
        return page("checkpoint.html", view=view, **self._form())

    def _form(self) -> dict[str, Any]:
        return {"can_act": self._can_act, "key": uuid.uuid4().hex}


def _healthy(request: Request) -> Response:
    return PlainTextResponse("ok\n")  # the health of this process only: the pages report database outages


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) < 19
    return int(text or 0) if is_number else None


def _told(request: Request, error: Exception) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    title = _TITLES.get(status, "The control database cannot be read" if status == 503 else "This did not work")
    return page("error.html", status=status, title=title, message=str(error))


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these only"
    title = _TITLES.get(error.status_code, "This did not work")
    response = page("error.html", status=error.status_code, title=title, message=error.detail)
    response.headers.update(error.headers or {})
    return response
