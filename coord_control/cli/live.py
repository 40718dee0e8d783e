"""``coordctl set`` and ``coordctl get``: the live values of a job.

Threads: the command's thread.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from coord_control.cli.options import Control, JobName, Json, Key, Timeout, Wait
from coord_control.cli.output import print_json, say
from coord_control.cli.requests import connected, finish
from coord_control.control.commands import LiveResult

__all__ = ["get", "set_"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The live value.", show_default=False)]


def set_(
    job: JobName,
    name: _Name,
    fields: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE...", help="What to change; FIELD:=JSON for null, or a text like a number."),
    ],
    expect: Annotated[
        int | None,
        typer.Option(
            "--expect",
            min=1,
            metavar="VERSION",
            envvar="COORD_EXPECT",
            help="Change it only if it has this version. Default: any.",
        ),
    ] = None,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Change fields of a live value of JOB, exactly once.

    The command completes when the change is accepted: it is durable, and in force from the next epoch of each query.
    """
    values = dict(map(_parsed, fields))
    with connected(control, as_json) as client:
        command = client.set(job, name, values, expect=expect, key=key)
        finish(client, command, wait=wait, timeout=timeout, as_json=as_json)


def get(
    job: JobName,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The live value. Default: all.", show_default=False)
    ] = None,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Show a live value of JOB: who has set it, and since which epoch each query has seen it.

    Without NAME, all of them as the control database knows them, also those of a job that does not run.
    """
    with connected(control, as_json) as client:
        if name is not None:
            finish(client, client.get(job, name), wait=True, timeout=timeout, as_json=as_json)
            return
        found = client.job(job)
        if as_json:
            print_json([value.to_json() for value in found.live_values])
            return
        if not found.live_values:
            say(f"job {job} has no live values")
        elif not found.is_alive:
            say("as of the driver's last heartbeat:")
        for value in found.live_values:
            say(LiveResult.recorded(value).text(job))


def _parsed(text: str) -> tuple[str, Any]:
    field, sign, value = text.partition("=")
    if not sign or not field.strip(":"):
        raise typer.BadParameter(f"{text!r} is not FIELD=VALUE, for example minutes=45")
    if not field.endswith(":"):
        return field, value  # the model makes a number of it, or a date
    try:
        return field[:-1], json.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is not valid JSON ({error})") from None
