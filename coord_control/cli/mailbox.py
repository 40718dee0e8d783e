"""``coordctl mailbox``: shows and drops the events that wait for the subtasks of a job.

Threads: the command's thread.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from coord_control.cli.job_places import root_of, tell_done
from coord_control.cli.options import AnyRoot, Control, Force, JobName, Json, Yes
from coord_control.cli.output import confirm, human_bytes, print_json, print_table, reported, say
from coord_control.cli.storage import existing_job, storage_of
from coord_control.durable.offline.mailboxes import Mailbox, drop_mailbox, waiting
from coord_control.ids import OperatorUid, SubtaskIndex

__all__ = ["app"]

app = typer.Typer(help="Show and drop events that wait for subtasks.", no_args_is_help=True)


@app.command("show")
def show(
    job: JobName,
    root: AnyRoot = None,
    control: Control = None,
    sample: Annotated[
        int, typer.Option(min=0, envvar="COORD_SAMPLE", help="Number of events of each mailbox to show, oldest first.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show the events that wait for each subtask of JOB, as its next recovery would find them. The job may run."""
    with reported(as_json):
        base = root_of(control, job, root)
        found = waiting(storage_of(base), existing_job(base, job))
        if as_json:
            print_json([_to_json(mailbox, sample) for mailbox in found])
            return
        rows = [(each.query, each.operator, each.subtask, each.events, human_bytes(each.bytes)) for each in found]
        print_table("", ("query", "operator", "subtask", "events", "size"), rows)
        for mailbox in found:
            for name, event in mailbox.first(sample):
                say(f"{mailbox.operator}[{mailbox.subtask}] {name} {json.dumps(event)}")
        if not found:
            say(f"no events are waiting for subtasks of job {job}")


@app.command("drop")
def drop(
    job: JobName,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator.")],
    subtask: Annotated[int, typer.Argument(min=0, metavar="SUBTASK", help="The subtask's number.")],
    root: AnyRoot = None,
    control: Control = None,
    yes: Yes = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Discard all events that wait for one subtask of JOB, which must be stopped. They are lost.

    The coordinator is not notified. Older checkpoints still contain the events.
    """
    with reported(as_json):
        base = root_of(control, job, root)
        folder = existing_job(base, job)
        if not yes:
            confirm(f"discard all events that wait for subtask {subtask} of operator {operator} of job {job}?")
        dropped = drop_mailbox(storage_of(base), folder, OperatorUid(operator), SubtaskIndex(subtask), force=force)
        if dropped.events:
            tell_done(control, job, base, "drop_mailbox", f"{operator}[{subtask}]", {"events": dropped.events})
        if as_json:
            print_json(_to_json(dropped, 0))
        else:
            say(f"{operator}[{subtask}]: {dropped.events} events discarded, {human_bytes(dropped.bytes)}")


def _to_json(mailbox: Mailbox, sample: int) -> dict[str, object]:
    return {
        "query": mailbox.query,
        "operator": mailbox.operator,
        "subtask": mailbox.subtask,
        "events": mailbox.events,
        "bytes": mailbox.bytes,
        "first": [{"type": name, "event": event} for name, event in mailbox.first(sample)],
    }
