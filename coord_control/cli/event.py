"""``coordctl event``: sends control events to the operators of a job.

Threads: the command's thread.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coord_control.cli.options import Control, JobName, Json, Key, Timeout
from coord_control.cli.output import print_json, print_table, say
from coord_control.cli.requests import connected, finish
from coord_control.cli.schemas import fields_text, operator_of, parsed_json, print_problems
from coord_control.control.commands import EventStage
from coord_control.errors import ControlEventRefused

__all__ = ["app"]

app = typer.Typer(help="List and send control events.", no_args_is_help=True)

_Operator = Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator's uid.", show_default=False)]


@app.command("types")
def types(
    job: JobName,
    operator: Annotated[
        str | None, typer.Argument(metavar="OPERATOR", help="The operator. Default: all.", show_default=False)
    ] = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """List the control events that the operators of JOB accept, with their fields."""
    with connected(control, as_json) as client:
        record = client.job(job)
        found = record.operators if operator is None else (operator_of(record, operator),)
        if as_json:
            print_json([{"operator": one.uid, "event_types": [t.to_json() for t in one.event_types]} for one in found])
            return
        rows = [(one.uid, each.name, fields_text(each.schema)) for one in found for each in one.event_types]
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
    wait: Annotated[
        EventStage,
        typer.Option(
            "--wait",
            envvar="COORD_EVENT_WAIT",
            help="Wait until it is accepted (it takes effect exactly once), applied (by the coordinator), or durable.",
        ),
    ] = EventStage.ACCEPTED,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", envvar="COORD_NO_WAIT", help="Only request it, without the answer.")
    ] = False,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Send a control event to OPERATOR of JOB, exactly once.

    Once accepted, the event takes effect exactly once, whatever fails. In an idle job it is applied at once and durable
    with the next epoch, which starts with new input, or with the event itself if the operator has wake=True. Without
    wake=True, do not use --wait durable on an idle job.
    """
    value = parsed_json(payload, "event")
    with connected(control, as_json) as client:
        command = client.send_event(job, operator, event_type, value, subtask=subtask, key=key)
        try:
            finish(client, command, wait=not no_wait, timeout=timeout, as_json=as_json, until=wait)
        except ControlEventRefused as error:
            if not as_json:
                print_problems(error.fields)
            raise
