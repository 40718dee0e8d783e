"""``coordctl ask``: asks operators, which changes nothing.

Threads: the command's thread.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.options import Control, JobName, Json
from coord_control.cli.output import human_bytes, print_json, print_table, say
from coord_control.cli.requests import connected
from coord_control.cli.schemas import fields_text, operator_of, parsed_json, print_problems
from coord_control.control.client.control_client import ControlClient
from coord_control.coordinators.requests import MAX_STATES, StatesPage
from coord_control.errors import CommandRefused
from coord_control.storage.records import JobRecord

__all__ = ["ask"]


def ask(
    job: JobName,
    operator: Annotated[
        str | None,
        typer.Argument(
            metavar="OPERATOR", help="The operator's uid. Default: list what can be asked.", show_default=False
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST", help="The request. Default: the only one that it answers.", show_default=False
        ),
    ] = None,
    payload: Annotated[
        str,
        typer.Argument(metavar="JSON", help="The fields of the request; - reads standard input."),
    ] = "{}",
    state: Annotated[
        bool,
        typer.Option(
            "--state", envvar="COORD_ASK_STATE", help="Show the committed states of coordinator and subtasks."
        ),
    ] = False,
    subtask: Annotated[
        list[int] | None,
        typer.Option(
            "--subtask",
            min=0,
            metavar="N",
            envvar="COORD_SUBTASK",
            help="With --state: only this subtask; may be repeated.",
        ),
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            metavar="N",
            envvar="COORD_AFTER",
            help="With --state: only subtasks above this one, and not the coordinator.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=0, max=MAX_STATES, envvar="COORD_LIMIT", help="With --state: how many subtasks."
        ),
    ] = 20,
    timeout: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_TIMEOUT",
            help="How long the answer may take, also while the query is being restarted.",
        ),
    ] = 10.0,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Ask OPERATOR of JOB something, and print its answer as JSON. It changes nothing.

    The program declares which requests an operator answers. --state works for every operator and shows its last
    committed states, which no recovery undoes.
    """
    if state and request is not None:
        raise typer.BadParameter("--state is a request itself: leave REQUEST out")
    value = parsed_json(payload, "request")
    with connected(control, as_json) as client:
        if operator is None:
            _list(client.job(job), as_json=as_json)
            return
        if state:
            page = client.states(job, operator, subtasks=subtask or (), after=after, limit=limit, timeout=timeout)
            _show(page, is_first=after is None, as_json=as_json)
            return
        try:
            print_json(client.ask_by_name(job, operator, request or _only(client, job, operator), value, timeout))
        except CommandRefused as error:
            if not as_json:
                print_problems(error.fields)
            raise


def _list(job: JobRecord, *, as_json: bool) -> None:
    found = [(each.uid, request) for each in job.operators for request in each.request_types]
    if as_json:
        print_json([{"operator": uid, **request.to_json()} for uid, request in found])
        return
    rows = [(uid, each.name, fields_text(each.schema), fields_text(each.answer)) for uid, each in found]
    print_table("", ("operator", "request", "fields", "answer"), rows)
    if not rows:
        say(f"job {job.name} declares no requests; --state works for each operator")


def _only(client: ControlClient, job: str, operator: str) -> str:
    known = [each.name for each in operator_of(client.job(job), operator).request_types]
    if len(known) != 1:
        what = f"one of {', '.join(known)}" if known else "none is declared; use --state"
        raise typer.BadParameter(f"name the request: {what}")
    return known[0]


def _show(page: StatesPage, *, is_first: bool, as_json: bool) -> None:
    if as_json:
        print_json(page.model_dump(mode="json"))
        return
    epoch = "no epoch is committed" if page.epoch is None else f"committed up to epoch {page.epoch}"
    say(f"{epoch}, {page.parallelism} subtasks")
    if is_first:
        say(f"coordinator ({human_bytes(page.coordinator_size)}): {_text(page.coordinator, page.coordinator_size)}")
    rows = [
        (each.subtask, each.waiting, human_bytes(each.size), _text(each.state, each.size)) for each in page.subtasks
    ]
    print_table("", ("subtask", "waiting events", "stored", "state"), rows)
    if page.next_after is not None:
        say(f"more: --after {page.next_after}")


def _text(state: Any, size: int) -> str:
    if state is None:
        return "none" if size == 0 else "too large to show"
    return json.dumps(state, ensure_ascii=False)
