"""``coordctl savepoint``: lists, shows, verifies and exports savepoints and checkpoints on the storage.

These commands need no driver, and on local paths no Spark, except ``verify --state``. Commands that change something
are in :mod:`.savepoint_changes` and :mod:`.savepoint_prune`, and the one that reads states in
:mod:`.savepoint_state`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import typer

from coord_control.cli import savepoint_changes, savepoint_prune, savepoint_state, savepoint_views
from coord_control.cli.job_places import opened, root_of, tell_verified
from coord_control.cli.options import AnyRoot, By, Control, Json, OptionalJob
from coord_control.cli.output import print_json, print_table, reported, say
from coord_control.cli.references import (
    CheckpointCommand,
    CheckpointWords,
    checkpoint_and,
    checkpoint_named,
    checkpoint_words,
)
from coord_control.cli.storage import absolute, existing_job, storage_of
from coord_control.control.client.control_client import ControlClient
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.state_lookup import find_query
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.restore.export import export_query
from coord_control.environment import require_spark
from coord_control.exit_codes import ExitCode
from coord_control.ids import QueryName

__all__ = ["app"]

app = typer.Typer(
    help="Create, list, look inside, verify, export and remove savepoints and checkpoints.", no_args_is_help=True
)

app.command("create")(savepoint_changes.create)
app.command("dispose", cls=CheckpointCommand)(savepoint_changes.dispose)
app.command("prune")(savepoint_prune.prune)
app.command("import")(savepoint_changes.import_)
app.command("state", cls=CheckpointCommand)(savepoint_state.state)


@app.command("list")
def list_(
    job: OptionalJob = None,
    requested_by: By = None,
    root: AnyRoot = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """List the checkpoints and savepoints of JOB on its storage, including incomplete ones.

    Without JOB, list the savepoints of all jobs in the control database.
    """
    with reported(as_json):
        if job is None:
            if requested_by is not None:
                raise typer.BadParameter("name the JOB: --by filters the savepoints on its storage")
            _list_known(control, as_json)
            return
        base = root_of(control, job, root)
        entries = Catalog(storage_of(base), existing_job(base, job), storage_of).entries()
        if requested_by is not None:
            entries = [entry for entry in entries if entry.requested_by == requested_by]
        if as_json:
            print_json([savepoint_views.entry_json(entry) for entry in entries])
            return
        columns = ("id", "kind", "state", "label", "requested by", "completed", "epochs", "files", "file size", "path")
        print_table("", columns, [savepoint_views.entry_row(entry) for entry in entries])
        if not entries:
            say(f"job {job} has no {'such ' if requested_by else ''}checkpoint or savepoint in {base}")


@app.command("show", cls=CheckpointCommand)
def show(
    named: CheckpointWords,
    root: AnyRoot = None,
    control: Control = None,
    sample: Annotated[
        int, typer.Option(min=0, envvar="COORD_SAMPLE", help="Number of subtask states of each operator to show.")
    ] = 3,
    as_json: Json = False,
) -> None:
    """Show the contents of a checkpoint or savepoint: offsets, state sizes, operators, events in transit."""
    with reported(as_json), opened(checkpoint_named(named), root, control, "it is being shown") as source:
        if as_json:
            print_json(savepoint_views.metadata_json(source, sample))
        else:
            savepoint_views.print_metadata(source, sample)


@app.command("verify", cls=CheckpointCommand)
def verify(
    named: CheckpointWords,
    root: AnyRoot = None,
    control: Control = None,
    state: Annotated[
        bool, typer.Option("--state", envvar="COORD_VERIFY_STATE", help="Also load each state with Spark.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every file and compare its checksum with the manifest. Exit codes: 0 all intact, 65 damaged."""
    with reported(as_json), opened(checkpoint_named(named), root, control, "it is being verified") as source:
        problems = list(verify_files(source.files, source.path, source.metadata))
        fatal = [problem for problem in problems if problem.is_fatal]
        states = _load_states(source.path) if state and not fatal else None
        is_bad = bool(fatal) or any(each["problem"] for each in states or ())
        if as_json:
            savepoint_views.verified_json(source, problems, states)
        else:
            savepoint_views.print_verified(source, problems, states)
        tell_verified(control, source.path, [str(problem) for problem in fatal])
    if is_bad:
        raise typer.Exit(ExitCode.DATA)


@app.command("export", cls=CheckpointCommand)
def export(
    named: Annotated[list[str], checkpoint_words("QUERY", "TARGET")],
    root: AnyRoot = None,
    control: Control = None,
    new_id: Annotated[
        bool,
        typer.Option(
            "--new-id", envvar="COORD_NEW_ID", help="Give the query a new id, to run it in parallel with the original."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Export QUERY to TARGET, a new checkpoint directory for plain Spark. The states of its operators are left out."""
    checkpoint, (query, target) = checkpoint_and(named, 2)
    with reported(as_json), opened(checkpoint, root, control, "it is being exported") as source:
        place, epoch = absolute(target), find_query(source.metadata, query).epoch
        placed = export_query(storage_of(place), source, QueryName(query), place, new_id=new_id)
        if as_json:
            print_json({"path": place, "epoch": epoch, "linked": placed.linked, "copied": placed.copied})
        else:
            say(f"{place}: {query} after epoch {epoch}; use it as the query's checkpointLocation")


def _list_known(control: str | None, as_json: bool) -> None:
    with ControlClient(control) as client:
        found = client.savepoints()
        if as_json:
            print_json([each.to_json() for each in found])
            return
        columns = ("job", "id", "label", "created", "size", "imported", "verified", "path")
        print_table("", columns, [savepoint_views.known_row(each) for each in found])
        if not found:
            say(f"there are no savepoints in {client.url}; add one with: coordctl savepoint import PATH")


def _load_states(path: str) -> list[dict[str, Any]]:
    require_spark("--state")
    command = [sys.executable, "-m", "coord_control.spark.process.state_check", path]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise typer.BadParameter(f"Spark could not be run ({last}); for the whole error run: {' '.join(command)}")
    states: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return states
