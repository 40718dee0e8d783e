"""``coordctl savepoint create``, ``dispose`` and ``import``: through a running driver, otherwise on the storage.

Threads: the command's thread.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coord_control.cli.job_places import refuse_key, root_of, running_job, tell_disposed, tell_done, tell_way
from coord_control.cli.options import (
    AnyRoot,
    Control,
    Force,
    JobName,
    Json,
    Key,
    Label,
    Target,
    Timeout,
    Wait,
    Yes,
)
from coord_control.cli.output import confirm, human_bytes, print_json, reported, say, warn
from coord_control.cli.references import CheckpointWords, Reference, checkpoint_named
from coord_control.cli.requests import connected, finish
from coord_control.cli.storage import absolute, existing_job, storage_of
from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.reader import current_user
from coord_control.durable.checkpoints.removal import dispose_without_owner
from coord_control.durable.files.filesystem import join
from coord_control.durable.offline.offline_savepoint import OfflineSavepoint, adopt, save
from coord_control.ids import QueryName
from coord_control.storage.records import CommandRecord

__all__ = ["create", "dispose", "import_"]

_Adopted = Annotated[
    str | None,
    typer.Option(
        "--adopt",
        envvar="COORD_ADOPT",
        metavar="PATH",
        help="Save this plain Spark checkpoint directory, as query --query of JOB.",
    ),
]


def create(
    job: JobName,
    root: AnyRoot = None,
    target: Target = None,
    label: Label = None,
    adopted: _Adopted = None,
    query: Annotated[
        str, typer.Option(envvar="COORD_QUERY", metavar="NAME", help="The name of the adopted query.")
    ] = "query",
    force: Force = False,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Take a savepoint of JOB: through its driver if it is running, otherwise on its storage.

    On the storage, it contains the state that the job would recover. With --adopt, save a Spark checkpoint directory
    instead.
    """
    place = None if target is None else absolute(target)
    with reported(as_json):
        if adopted is not None:
            _show_made(_adopt(job, absolute(adopted), place, query, label), as_json)
            return
        with running_job(control, job, root, key) as client:
            tell_way(client, job)
            if client is not None:
                command = client.trigger_savepoint(job, target=place, label=label, key=key)
                finish(client, command, wait=wait, timeout=timeout, as_json=as_json)
                return
        if key is not None:
            warn(f"--key {key} is ignored: job {job} is not running, and the same command takes another savepoint")
        root = root_of(control, job, root)
        made = _save(job, root, place, label, force)
        tell_done(control, job, root, "trigger_savepoint", made.path)
        _show_made(made, as_json)


def dispose(
    named: CheckpointWords,
    root: AnyRoot = None,
    yes: Yes = False,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Remove a checkpoint or savepoint permanently, unless it is the newest checkpoint or in use.

    The driver of JOB removes it if it is running; otherwise it is removed on the storage.
    """
    with reported(as_json):
        checkpoint = checkpoint_named(named)
        if (job := checkpoint.job) is None:
            refuse_key(key)
            _dispose_on_storage(checkpoint, None, yes, control, as_json)
            return
        with running_job(control, job, root, key) as client:
            tell_way(client, job)
            if client is not None:
                command = _asked(client, job, checkpoint.ref, yes, key)
                finish(client, command, wait=wait, timeout=timeout, as_json=as_json)
                return
        refuse_key(key)
        _dispose_on_storage(checkpoint, root_of(control, job, root), yes, control, as_json)


def import_(
    path: Annotated[str, typer.Argument(help="The savepoint's folder: a path, or a URI that Spark can read.")],
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Add a savepoint from elsewhere to the control database. It is not copied."""
    with connected(control, as_json) as client:
        found = client.import_savepoint(absolute(path), storage=storage_of)
        if as_json:
            print_json(found.to_json())
        else:
            say(f"{found.path}: savepoint {found.checkpoint} of job {found.job}, {human_bytes(found.size)}")


def _asked(client: ControlClient, job: str, ref: str, yes: bool, key: str | None) -> CommandRecord:
    if not yes:
        confirm(f"have the driver of job {job} remove {ref}?")
    return client.dispose(job, ref, key=key)


def _dispose_on_storage(named: Reference, root: str | None, yes: bool, control: str | None, as_json: bool) -> None:
    entry = named.catalog(root).resolve(named.ref)
    if not yes:
        confirm(f"remove {entry.kind} {entry.checkpoint} in {entry.path}?")
    folder = join(absolute(root), named.job) if root and named.job else entry.path.rpartition("/")[0]
    is_gone = dispose_without_owner(storage_of(folder), folder, entry, storage_of)
    tell_disposed(control, entry.path)
    if as_json:
        print_json({"path": entry.path, "checkpoint": entry.checkpoint, "files_removed": is_gone})
        return
    say(f"removed {entry.path}")
    if not is_gone:
        say("the job's next driver removes the files that no other checkpoint needs")


def _adopt(job: str, folder: str, place: str | None, query: str, label: str | None) -> OfflineSavepoint:
    if place is None:
        raise typer.BadParameter("--adopt needs a --target")
    return adopt(
        storage_of(folder),
        folder,
        place,
        storage_of(place),
        job=job,
        query=QueryName(query),
        label=label,
        requested_by=current_user(),
    )


def _save(job: str, root: str, place: str | None, label: str | None, force: bool) -> OfflineSavepoint:
    return save(
        storage_of(root),
        existing_job(root, job),
        target=place,
        label=label,
        storage=storage_of,
        requested_by=current_user(),
        force=force,
    )


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
    say(f"{made.path}: {epochs}")
    say(f"{human_bytes(made.linked_bytes)} linked, {human_bytes(made.copied_bytes)} copied")
    for name, epoch in made.replayed.items():
        say(
            f"{name}: epoch {epoch} was planned but not committed; a restore runs it again with the same rows and "
            "events"
        )
