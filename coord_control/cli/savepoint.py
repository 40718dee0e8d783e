"""``coordctl savepoint``: create, list, show, verify, export and dispose of savepoints and checkpoints on the storage.

None of it needs the job's driver, and on local paths nothing needs Spark, but for ``verify --state``.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from coord_control.cli import savepoint_views
from coord_control.cli.options import Force, Job, Json, Root
from coord_control.cli.output import human_bytes, print_json, print_table, reported
from coord_control.cli.storage import absolute, existing_job, reference, storage_of
from coord_control.durable.catalog import Catalog
from coord_control.durable.checkpoint_source import CheckpointSource, open_checkpoint
from coord_control.durable.disposal import dispose_without_owner
from coord_control.durable.files import join
from coord_control.durable.offline import OfflineSavepoint, adopt, save
from coord_control.durable.spark_files import export_query
from coord_control.durable.verifying import verify_files
from coord_control.exit_codes import ExitCode
from coord_control.ids import QueryName

__all__ = ["app"]

app = typer.Typer(help="Savepoints and checkpoints: create, look at, verify, export, remove.", no_args_is_help=True)

_AnyRoot = Annotated[
    str | None,
    typer.Option("--root", envvar="COORD_ROOT", metavar="PATH", help="The folder of all jobs; not for a REF by path."),
]
_Ref = Annotated[str, typer.Argument(help="Which one: an id, a label, latest, or a path.")]


@app.command("create")
def create(
    job: Annotated[str, typer.Argument(help="The job.")],
    root: _AnyRoot = None,
    target: Annotated[
        str | None,
        typer.Option(envvar="COORD_TARGET", metavar="PATH", help="The new folder; by default below the job's."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(envvar="COORD_LABEL", metavar="NAME", help="A name to find it by.")
    ] = None,
    adopted: Annotated[
        str | None,
        typer.Option(
            "--adopt",
            envvar="COORD_ADOPT",
            metavar="PATH",
            help="Save this Spark checkpoint directory, which belongs to no job; JOB and --query name it from now on.",
        ),
    ] = None,
    query: Annotated[
        str, typer.Option(envvar="COORD_QUERY", metavar="NAME", help="The name of the adopted query.")
    ] = "query",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Take a savepoint of JOB, which does not run: it was stopped, or is dead.

    It holds what the job would have recovered. With --adopt, of a Spark checkpoint directory instead.
    """
    with reported(as_json):
        if adopted is not None:
            if target is None:
                raise typer.BadParameter("--adopt needs a --target")
            folder, place = absolute(adopted), absolute(target)
            made = adopt(
                storage_of(folder),
                folder,
                place,
                storage_of(place),
                job=job,
                query=QueryName(query),
                label=label,
            )
        else:
            made = _save(job, absolute(_needed(root)), target, label, force)
        _show_made(made, as_json)


@app.command("list")
def list_(
    job: Annotated[str, typer.Argument(help="The job.")],
    root: Root,
    as_json: Json = False,
) -> None:
    """List the checkpoints and savepoints of JOB, with those that are not complete."""
    with reported(as_json):
        base = absolute(root)
        entries = Catalog(storage_of(base), existing_job(base, job), storage_of).entries()
        if as_json:
            print_json([savepoint_views.entry_json(entry) for entry in entries])
            return
        columns = ("id", "kind", "state", "label", "completed", "epochs", "files", "size", "path")
        print_table("", columns, [savepoint_views.entry_row(entry) for entry in entries])
        if not entries:
            typer.echo(f"job {job} has no checkpoint or savepoint in {base}")


@app.command("show")
def show(
    ref: _Ref,
    job: Job = None,
    root: _AnyRoot = None,
    sample: Annotated[
        int, typer.Option(min=0, envvar="COORD_SAMPLE", help="How many subtask states of each operator to show.")
    ] = 3,
    as_json: Json = False,
) -> None:
    """Show what a checkpoint or savepoint holds: offsets, state sizes, operators, what was in the channels."""
    with reported(as_json), _opened(ref, job, root, "somebody looks at it") as source:
        if as_json:
            print_json(savepoint_views.metadata_json(source, sample))
        else:
            savepoint_views.print_metadata(source, sample)


@app.command("verify")
def verify(
    ref: _Ref,
    job: Job = None,
    root: _AnyRoot = None,
    state: Annotated[
        bool, typer.Option("--state", envvar="COORD_VERIFY_STATE", help="Let Spark load each state too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every file and compare it with the manifest. Exit code 0: all is as it was; 65: it is not."""
    with reported(as_json), _opened(ref, job, root, "it is being verified") as source:
        problems = list(verify_files(source.files, source.path, source.metadata))
        fatal = [problem for problem in problems if problem.is_fatal]
        states = _load_states(source.path) if state and not fatal else None
        is_bad = bool(fatal) or any(each["problem"] for each in states or ())
        if as_json:
            savepoint_views.verified_json(source, problems, states)
        else:
            savepoint_views.print_verified(source, problems, states)
    if is_bad:
        raise typer.Exit(ExitCode.DATA)


@app.command("export")
def export(
    ref: _Ref,
    query: Annotated[str, typer.Argument(help="The query.")],
    target: Annotated[str, typer.Argument(help="The new Spark checkpoint directory.")],
    job: Job = None,
    root: _AnyRoot = None,
    new_id: Annotated[
        bool, typer.Option("--new-id", envvar="COORD_NEW_ID", help="Give the query a new id: it runs beside another.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a checkpoint directory for plain Spark of one query, at its epoch. Operators' states stay behind."""
    with reported(as_json), _opened(ref, job, root, "it is being exported") as source:
        name, place = QueryName(query), absolute(target)
        if name not in source.metadata.queries:
            raise typer.BadParameter(f"{query!r} is not among its queries {sorted(source.metadata.queries)}")
        placed = export_query(storage_of(place), source, name, place, new_id=new_id)
        epoch = source.metadata.queries[name].epoch
        if as_json:
            print_json({"path": place, "epoch": epoch, "linked": placed.linked, "copied": placed.copied})
        else:
            typer.echo(f"{place}: {query} after epoch {epoch}; name it as the query's checkpointLocation")


@app.command("dispose")
def dispose(
    ref: _Ref,
    job: Job = None,
    root: _AnyRoot = None,
    yes: Annotated[bool, typer.Option("--yes", envvar="COORD_YES", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a checkpoint or savepoint for good; not the newest checkpoint, nor one that is being read."""
    with reported(as_json):
        catalog = _catalog(ref, job, root)
        entry = catalog.resolve(reference(ref))
        if not yes:
            typer.confirm(f"remove {entry.kind} {entry.checkpoint} in {entry.path}?", abort=True, err=True)
        folder = join(absolute(root), job) if root and job else entry.path.rpartition("/")[0]
        is_gone = dispose_without_owner(storage_of(folder), folder, entry, storage_of)
        if as_json:
            print_json({"path": entry.path, "checkpoint": entry.checkpoint, "files_removed": is_gone})
        else:
            typer.echo(f"{entry.path} does not exist any more")
            if not is_gone:
                typer.echo("the job's next driver removes its files that no other checkpoint needs")


def _save(job: str, root: str, target: str | None, label: str | None, force: bool) -> OfflineSavepoint:
    place = None if target is None else absolute(target)
    return save(storage_of(root), existing_job(root, job), target=place, label=label, storage=storage_of, force=force)


def _show_made(made: OfflineSavepoint, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "path": made.path,
                "checkpoint": made.metadata.checkpoint,
                "epochs": {name: query.epoch for name, query in made.metadata.queries.items()},
                "linked_bytes": made.linked_bytes,
                "copied_bytes": made.copied_bytes,
                "replayed": dict(made.replayed),
            }
        )
        return
    epochs = ", ".join(f"{name} after epoch {query.epoch}" for name, query in made.metadata.queries.items())
    typer.echo(f"{made.path}: {epochs}")
    typer.echo(f"{human_bytes(made.linked_bytes)} linked, {human_bytes(made.copied_bytes)} copied")
    for name, epoch in made.replayed.items():
        typer.echo(
            f"{name}: epoch {epoch} was planned and not committed; it is not part of this savepoint, and a restore "
            "plans it anew, with whatever the sources have then"
        )


def _catalog(ref: str, job: str | None, root: str | None) -> Catalog:
    if job is not None and root is not None:
        base = absolute(root)
        return Catalog(storage_of(base), existing_job(base, job), storage_of)
    if "/" not in ref:
        raise typer.BadParameter(f"{ref!r} is an id or a label: say of which job, with --job and --root")
    # Savepoints can be anywhere; the list of no job has it.
    folder = absolute(ref)
    return Catalog(storage_of(folder), join(folder, "no-job"), storage_of)


@contextlib.contextmanager
def _opened(ref: str, job: str | None, root: str | None, purpose: str) -> Iterator[CheckpointSource]:
    path = _catalog(ref, job, root).resolve(reference(ref)).path
    with open_checkpoint(storage_of(path), path, purpose) as source:
        yield source


def _load_states(path: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "coord_control.spark.state_check", path]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise typer.BadParameter(f"Spark could not be asked ({last}); see the whole error: {' '.join(command)}")
    states: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return states


def _needed(root: str | None) -> str:
    if root is None:
        raise typer.BadParameter("say where the jobs are, with --root or COORD_ROOT")
    return root
