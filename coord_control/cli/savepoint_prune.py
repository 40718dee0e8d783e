"""``coordctl savepoint prune``: removes the older savepoints of a job, by the rule that Dagster's schedules use too.

Threads: the command's thread.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

import typer

from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.job_places import root_of, running_job, tell_disposed, tell_way
from coord_control.cli.options import AnyRoot, By, Control, JobName, Json, Yes
from coord_control.cli.output import confirm, human_bytes, human_time, print_json, print_table, reported, say, warn
from coord_control.cli.storage import existing_job, storage_of
from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.superfluous_savepoints import Retention, TakenSavepoint, names_in_use, superfluous
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry
from coord_control.durable.checkpoints.removal import dispose_without_owner
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.errors import CoordControlError, DatabaseError, JobNotRunning
from coord_control.exit_codes import ExitCode

__all__ = ["prune"]


def prune(
    job: JobName,
    keep: Annotated[
        int, typer.Option("--keep", envvar="COORD_KEEP", metavar="N", min=1, help="Keep the newest N of them.")
    ],
    older_than: Annotated[
        float | None,
        typer.Option(
            parser=parse_seconds,
            envvar="COORD_OLDER_THAN",
            metavar=DURATION,
            help="Remove only savepoints that are at least this much older than the newest one, such as 7d.",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label", envvar="COORD_LABELS", metavar="GLOB", help="Only those with such a label, as in 'nightly-*'."
        ),
    ] = None,
    requested_by: By = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", envvar="COORD_DRY_RUN", help="Only show what would be removed.")
    ] = False,
    root: AnyRoot = None,
    yes: Yes = False,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Remove the older savepoints of JOB permanently; its checkpoints are not touched.

    Of the savepoints that --label and --by select, the newest --keep stay. So do those younger than --older-than, the
    one that the newest restore came from, and any that is being read. The driver removes them if the job is running;
    otherwise they are removed on the storage.

    Exit codes: 0 done, 75 one could not be removed; repeat the command.
    """
    older = None if older_than is None else timedelta(seconds=older_than)
    with reported(as_json), running_job(control, job, root) as client:
        base = root_of(control, job, root)
        folder = existing_job(base, job)
        files = storage_of(base)
        entries = {
            int(entry.checkpoint): entry
            for entry in Catalog(files, folder, storage_of).entries()
            if _is_meant(entry, label, requested_by)
        }
        in_use = set() if client is None else names_in_use(client, job)
        if (restored := newest_restore(files, folder)) is not None:
            in_use.add(restored.path)
        taken = map(TakenSavepoint.of_entry, entries.values())
        doomed = [entries[each.id] for each in superfluous(taken, Retention(keep, older), in_use)]
        if doomed and not dry_run:
            tell_way(client, job)
            if not yes:
                _show(doomed)
                confirm(f"remove these {len(doomed)} of {len(entries)} savepoints?")

        def remove(entry: CheckpointEntry) -> None:
            if client is not None:
                _ask(client, job, entry)
            else:
                dispose_without_owner(files, folder, entry, storage_of)
                tell_disposed(control, entry.path)

        kept = {} if dry_run else _remove_all(doomed, remove)
    _tell(job, doomed, kept, len(entries), dry_run=dry_run, as_json=as_json)
    if kept:
        raise typer.Exit(ExitCode.TEMPORARY)


def _is_meant(entry: CheckpointEntry, label: str | None, requested_by: str | None) -> bool:
    return (
        entry.kind == "savepoint"
        and entry.is_completed
        and (label is None or (entry.label is not None and fnmatch.fnmatchcase(entry.label, label)))
        and (requested_by is None or entry.requested_by == requested_by)
    )


def _ask(client: ControlClient, job: str, entry: CheckpointEntry) -> None:
    client.wait(client.dispose(job, str(entry.checkpoint)))


def _remove_all(doomed: list[CheckpointEntry], remove: Callable[[CheckpointEntry], None]) -> dict[str, str]:
    """Remove them, and return why some could not be, by path."""
    kept: dict[str, str] = {}
    for entry in doomed:
        try:
            remove(entry)
        except (DatabaseError, JobNotRunning):
            raise  # the next one would fail in the same way
        except CoordControlError as error:
            kept[entry.path] = str(error)
    return kept


def _tell(
    job: str, doomed: list[CheckpointEntry], kept: dict[str, str], found: int, *, dry_run: bool, as_json: bool
) -> None:
    gone = [entry for entry in doomed if entry.path not in kept]
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "removed": [{"checkpoint": each.checkpoint, "path": each.path, "label": each.label} for each in gone],
                "not_removed": [{"path": path, "problem": problem} for path, problem in kept.items()],
                "left": found - len(gone),
            }
        )
        return
    if dry_run:
        _show(doomed)
        say(f"{len(doomed)} of {found} savepoints of job {job} would be removed; nothing was changed")
        return
    for path, problem in kept.items():
        warn(f"{path} is kept: {problem}")
    for entry in gone:
        say(f"removed {entry.path}")
    say(f"{len(gone)} of {found} savepoints of job {job} were removed")


def _show(doomed: list[CheckpointEntry]) -> None:
    rows = [
        (each.checkpoint, each.label, human_time(each.completed_at), human_bytes(each.size), each.path)
        for each in doomed
    ]
    print_table("", ("id", "label", "completed", "file size", "path"), rows)
