"""``coordctl event``: sends control events to the operators of a job.

Threads: the command's thread.
"""

from __future__ import annotations

import difflib
import json
import sys
from typing import Annotated, Any

import typer

from coord_control.cli.options import Control, JobName, Json, Key, Timeout, Wait
from coord_control.cli.output import plain, print_json, print_table, say
from coord_control.cli.requests import connected, finish
from coord_control.errors import ControlEventRefused, OperatorNotFound
from coord_control.storage.records import JobRecord, OperatorRecord

__all__ = ["app"]

app = typer.Typer(help="List and send control events.", no_args_is_help=True)

_Operator = Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator's uid.", show_default=False)]


@app.command("types")
def types(
    job: JobName,
    operator: Annotated[
        str | None, typer.Argument(metavar="[OPERATOR]", help="The operator. Default: all.", show_default=False)
    ] = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """List the control events that the operators of JOB accept, with their fields."""
    with connected(control, as_json) as client:
        record = client.job(job)
        found = record.operators if operator is None else (_operator(record, operator),)
        if as_json:
            print_json([{"operator": one.uid, "event_types": [t.to_json() for t in one.event_types]} for one in found])
            return
        rows = [(one.uid, each.name, _fields(each.schema)) for one in found for each in one.event_types]
        print_table("", ("operator", "event", "fields"), rows)
        if not rows:
            say(f"job {job} declares no control events")


@app.command("send")
def send(
    job: JobName,
    operator: _Operator,
    event_type: Annotated[
        str, typer.Argument(metavar="TYPE", help="A type listed by: coordctl event types JOB OPERATOR.")
    ],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="The event, for example '{\"minutes\": 45}'; - reads standard input.")
    ],
    subtask: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", envvar="COORD_SUBTASK", help="Send to this subtask only. Default: all."),
    ] = None,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Send a control event to OPERATOR of JOB, exactly once.

    The command completes when the effect is durable: no recovery undoes or repeats it. In an idle job the event is
    stored and takes effect with the next epoch; use --no-wait to return at once.
    """
    value = _parsed(sys.stdin.read() if payload == "-" else payload)
    with connected(control, as_json) as client:
        command = client.send_event(job, operator, event_type, value, subtask=subtask, key=key)
        try:
            finish(client, command, wait=wait, timeout=timeout, as_json=as_json)
        except ControlEventRefused as error:
            if not as_json:
                for each in error.fields:
                    typer.echo(plain(f"  {_place(each)}: {each.get('msg', '')}"), err=True)
            raise


def _operator(job: JobRecord, uid: str) -> OperatorRecord:
    known = {operator.uid: operator for operator in job.operators}
    if uid not in known:
        raise OperatorNotFound("operator", uid, f"job {job.name!r}", known, difflib.get_close_matches(uid, known, n=3))
    return known[uid]


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    return ", ".join(
        f"{name}: {each.get('type', 'any')}" + ("" if name in required else "?")
        for name, each in schema.get("properties", {}).items()
        if isinstance(each, dict)
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"the event is not valid JSON ({error}); quote it: '{{\"minutes\": 45}}'") from None


def _place(field: Any) -> str:
    place = field.get("loc", ())
    return ".".join(map(str, place)) if isinstance(place, (list, tuple)) else str(place)
