"""``coordctl ui``: a live page about all jobs.

Threads: the command's thread runs the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from coord_control.cli.options import Control
from coord_control.cli.output import reported, say, warn
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.errors import PackageMissing, PageSettingsInvalid
from coord_control.exit_codes import ExitCode
from coord_control.listen_address import is_loopback

__all__ = ["ui"]

#: Report an unreachable database quickly, because the page reloads itself anyway.
_PATIENCE_SECONDS: Final = 2.0
_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")


def ui(
    listen: Annotated[
        str, typer.Option("--listen", envvar="COORD_UI_LISTEN", metavar="HOST:PORT", help="Address to listen on.")
    ] = "127.0.0.1:8765",
    actions: Annotated[
        bool,
        typer.Option(
            "--actions",
            envvar="COORD_UI_ACTIONS",
            help="Add buttons to take and abort checkpoints and savepoints. They need the token.",
        ),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="COORD_UI_TOKEN_FILE",
            metavar="FILE",
            show_default=False,
            help="The file with the token for the buttons. Default: generate a token and print it once.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            envvar="COORD_UI_ALLOW_HOST",
            metavar="NAME",
            show_default=False,
            help="Extra host name to accept (DNS-rebinding protection).",
        ),
    ] = None,
    control: Control = None,
) -> None:
    """Serve a live page about all jobs: checkpoints, blocked events, recoveries, commands.

    The page is read-only, unless --actions is given. Press Ctrl-C to stop.
    """
    with reported(as_json=False):
        if token_file is not None and not actions:
            raise PageSettingsInvalid("--token-file needs --actions")
        settings = ControlSettings.load(control)
        patience = min(settings.retry_seconds, _PATIENCE_SECONDS)
        try:
            with ControlClient(settings=settings.model_copy(update={"retry_seconds": patience})) as client:
                _serve(client, listen, token_file, actions, allow_host or [])
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _serve(client: ControlClient, listen: str, token_file: Path | None, actions: bool, names: list[str]) -> None:
    try:
        from coord_control.ui.access import read_token
        from coord_control.ui.app import make_app
        from coord_control.ui.server import address_of, bound, serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
            raise
        raise PackageMissing("coordctl ui", error.name, "ui") from error
    token = read_token(token_file) if actions else None
    client.actor = f"{client.actor} (page)"  # for the audit trail
    with bound(listen) as listener:
        say(f"serving {client.url} at {address_of(listener)}")
        if token is not None and token_file is None:
            say(f"token for the buttons, which is not shown again: {token}")
        if not is_loopback(listener.getsockname()[0]):
            warn(
                "anyone who can reach this address can read the page, and nothing is encrypted: put a proxy with TLS "
                "and a login in front of it"
            )
        serve(make_app(client, token=token, names=names), listener)
