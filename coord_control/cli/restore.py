"""``coordctl restore``: restores a job from a checkpoint or savepoint, through its driver or on its storage."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from coord_control.cli.job_places import known_generation, refuse_key, root_of, running_job, tell_done, tell_way
from coord_control.cli.options import (
    AcceptSkippedEpochs,
    AllowMissingInput,
    AnyRoot,
    Control,
    Force,
    JobName,
    Json,
    Key,
    RollBackSinks,
    Timeout,
    Wait,
)
from coord_control.cli.output import checks_table, human_bytes, print_json, reported, say
from coord_control.cli.requests import finish
from coord_control.cli.spark_commands import repartition_states
from coord_control.cli.storage import existing_job, reference, storage_of
from coord_control.control.commands import Restore, requested
from coord_control.control.commands.restore import next_step_of_fork
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.generations import NO_GENERATION
from coord_control.durable.offline.offline_restore import OfflineRestore, check_restore, restore_job
from coord_control.durable.offline.undo import undo_restore
from coord_control.durable.restore.checks import Check, refusal
from coord_control.exit_codes import exit_code_of

__all__ = ["restore"]

_STOP_FIRST: Final = "{} needs a stopped job: coordctl stop {}, then restore, then start it again"


def restore(
    job: JobName,
    ref: Annotated[
        str | None, typer.Argument(help="What to restore: an id, a label, latest, or a path.", show_default=False)
    ] = None,
    root: AnyRoot = None,
    fork: Annotated[
        str | None,
        typer.Option(
            "--as",
            envvar="COORD_RESTORE_AS",
            metavar="NAME",
            help="Fork: start a new job of this name from it; the original is unchanged.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", envvar="COORD_CHECK", help="Only check whether it would work; change nothing.")
    ] = False,
    undo: Annotated[
        bool,
        typer.Option(
            "--undo",
            envvar="COORD_UNDO",
            help="Undo the newest restore; possible until an epoch has been processed since.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify",
            envvar="COORD_VERIFY",
            help="Read all files and compare their checksums, not only their sizes.",
        ),
    ] = True,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state",
            envvar="COORD_ALLOW_NON_RESTORED_STATE",
            help="Allow queries and operators of the checkpoint to be left behind, and new ones to begin empty.",
        ),
    ] = False,
    allow_missing_input: AllowMissingInput = False,
    roll_back_sinks: RollBackSinks = False,
    accept_skipped_epochs: AcceptSkippedEpochs = False,
    shuffle_partitions: Annotated[
        int | None,
        typer.Option(
            "--shuffle-partitions",
            envvar="COORD_SHUFFLE_PARTITIONS",
            metavar="N",
            min=1,
            help="Repartition the states of aggregations, joins and so on into N partitions with Spark (RocksDB only).",
        ),
    ] = None,
    force: Force = False,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Restore JOB from the checkpoint or savepoint REF.

    A job that runs under coordctl run is restored by its driver: it checks REF, stops, restores, and is started again.
    A stopped job is restored on its storage; start its driver afterwards as usual.

    The current state of the job and the checkpoint are kept. Repeating the command restores the job again, unless
    --key marks it as the same request; --key needs a running job. A restored job keeps the ids of its queries, a fork
    (--as) gets new ones: the printed checks say what that means for the sinks. Queries, operators and sources are
    compared when the driver starts; if one does not match, no query runs, the driver reports the reason, and --undo,
    without REF, undoes the restore. The restore is refused if files that its sources would read again are gone, unless
    --allow-missing-input is given. --shuffle-partitions starts a local Spark.

    A sink that skips epochs that it has received would lose what the restored job writes in them. Such a restore is
    refused, unless --roll-back-sinks sets the sinks back as well, or --accept-skipped-epochs is given.

    Exit codes: 0 done (or would work), 65 damaged, 75 the job has a driver, 78 refused.
    """
    with reported(as_json):
        if undo:
            refuse_key(key)
            _undo(control, job, ref, root_of(control, job, root), force=force, as_json=as_json)
            return
        if ref is None:
            raise typer.BadParameter("name what to restore: an id, a label, latest, or a path")
        request = requested(
            Restore,
            ref=reference(ref),
            allow_non_restored_state=allow_non_restored_state,
            allow_missing_input=allow_missing_input,
            roll_back_sinks=roll_back_sinks,
            accept_skipped_epochs=accept_skipped_epochs,
            verify=verify,
            force=force,
            as_name=fork,
        )
        if not check:
            with running_job(control, job, root, key) as client:
                tell_way(client, job)
                if client is not None:
                    if shuffle_partitions is not None:
                        raise typer.BadParameter(_STOP_FIRST.format("--shuffle-partitions", job))
                    command = client.submit(job, request, key=key)
                    finish(client, command, wait=wait, timeout=timeout, as_json=as_json)
                    return
            refuse_key(key)
        root = root_of(control, job, root)
        files = storage_of(root)
        if "/" not in request.ref:  # an id or a label belongs to the job; a path may be anywhere
            existing_job(root, job)
        if check:
            path, checks = check_restore(
                files, storage_of, request, root=root, job=job, shuffle_partitions=shuffle_partitions
            )
            _show_check(path, checks, as_json)
            return
        restored = restore_job(
            files,
            storage_of,
            request,
            root=root,
            job=job,
            shuffle_partitions=shuffle_partitions,
            repartition=repartition_states,
            above=NO_GENERATION if fork else known_generation(control, job),
        )
        tell_done(control, job, root, "restore", restored.record.path, None if fork is None else {"as_name": fork})
        _show_restore(restored, as_json)


def _undo(control: str | None, job: str, ref: str | None, root: str, *, force: bool, as_json: bool) -> None:
    if ref is not None:
        raise typer.BadParameter("--undo undoes the newest restore; leave REF out")
    existing_job(root, job)
    undone = undo_restore(storage_of(root), join(root, job), force=force)
    tell_done(control, job, root, "undo_restore", undone.path)
    if as_json:
        print_json({"undone": undone.model_dump(mode="json")})
    else:
        say(f"job {job} is back where it was before it was restored from {undone.path}")


def _show_check(path: str, checks: list[Check], as_json: bool) -> None:
    refused = refusal(path, checks)
    if as_json:
        print_json({"path": path, "refused": refused is not None, "checks": [check.to_json() for check in checks]})
    else:
        checks_table(checks)
        say(f"{path} {'cannot' if refused else 'can'} be restored; nothing was changed")
    if refused:
        raise typer.Exit(exit_code_of(refused))


def _show_restore(restored: OfflineRestore, as_json: bool) -> None:
    record = restored.record
    if as_json:
        print_json(
            {
                "restore": record.model_dump(mode="json"),
                "linked_bytes": restored.linked_bytes,
                "copied_bytes": restored.copied_bytes,
                "checks": [check.to_json() for check in restored.checks],
            }
        )
        return
    checks_table(restored.checks)
    kind = "forked" if record.is_fork else "restored"
    say(f"job {restored.job} was {kind} from {record.path}")
    say(f"{human_bytes(restored.linked_bytes)} linked, {human_bytes(restored.copied_bytes)} copied")
    say(next_step_of_fork(restored.job) if record.is_fork else "start its driver now: the job resumes from there")
