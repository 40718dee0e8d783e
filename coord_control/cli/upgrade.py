"""``coordctl upgrade``: another program for a running job, with a check before, a watch after, and a rollback.

Threads: the command's thread.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from coord_control.cli.duration_parser import parse_seconds
from coord_control.cli.options import Control, JobName, Json, Key
from coord_control.cli.output import plain, print_json, say
from coord_control.cli.requests import connected
from coord_control.cli.storage import storage_of
from coord_control.cli.upgrade_execution import UpgradeExecution
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import state_folder
from coord_control.control.supervisors import supervisor_of
from coord_control.control.upgrade_steps import ENDS
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.generations import newest_claim
from coord_control.durable.job_folder.upgrade_record import (
    Program,
    UpgradeRecord,
    UpgradeStep,
    read_upgrade,
    write_upgrade,
)
from coord_control.errors import JobNotRunning, NotUpgradable
from coord_control.exit_codes import ExitCode
from coord_control.storage.records import JobRecord

__all__ = ["upgrade"]

_EXIT_CODES: Final = {
    UpgradeStep.DONE: ExitCode.FINISHED,
    UpgradeStep.REFUSED: ExitCode.CONFIG,
    UpgradeStep.NOT_STOPPED: ExitCode.TEMPORARY,
    UpgradeStep.ROLLED_BACK: ExitCode.FAILED,
    UpgradeStep.LEFT: ExitCode.FAILED,
    UpgradeStep.STUCK: ExitCode.FAILED,
}
_SAID: Final = {
    UpgradeStep.DONE: "job {job} runs {new}; its savepoint before that: {savepoint}",
    UpgradeStep.REFUSED: "job {job} runs on with {old}; nothing was changed: {why}",
    UpgradeStep.NOT_STOPPED: "job {job} was not upgraded, and not stopped for it; its program is {old}: {why}",
    UpgradeStep.ROLLED_BACK: "job {job} runs {old} again, from {savepoint}; {new} has failed: {why}",
    UpgradeStep.LEFT: "job {job} was left with {new}, which has failed: {why}. Its savepoint before that: {savepoint}",
    UpgradeStep.STUCK: "job {job} needs you: {new} has failed, and so has the rollback: {why}. Look: "
    "coordctl restore {job} {savepoint} --roll-back-sinks --check; then restore it, and start {old}",
}


def upgrade(
    job: JobName,
    script: Annotated[
        Path,
        typer.Option(
            "--script",
            exists=True,
            dir_okay=False,
            readable=True,
            envvar="COORD_SCRIPT",
            metavar="PATH",
            help="The new program.",
        ),
    ],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the new program, behind --.")] = None,
    verify_for: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar="DURATION",
            envvar="COORD_VERIFY_FOR",
            help="How long the new program is watched before it counts as healthy.",
        ),
    ] = 600.0,
    start_within: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar="DURATION",
            envvar="COORD_START_WITHIN",
            help="How long a program may take until all of its queries run.",
        ),
    ] = 300.0,
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback/--no-rollback",
            envvar="COORD_ROLLBACK",
            help="Go back to the old program and the savepoint if the new one fails.",
        ),
    ] = True,
    accept_idle: Annotated[
        bool,
        typer.Option("--accept-idle", envvar="COORD_ACCEPT_IDLE", help="A query without input needs no new epoch."),
    ] = False,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state",
            envvar="COORD_ALLOW_NON_RESTORED_STATE",
            help="Allow queries and operators to be left behind, and new ones to begin empty.",
        ),
    ] = False,
    key: Key = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Replace the program of JOB, which runs under coordctl run --detach on this machine.

    The new program is compared with the newest checkpoint while the old one runs. Then the job is stopped with a
    savepoint, and the new program is started from it with the options of the old coordctl run, and watched: it must
    stay alive without restarts, every query must commit an epoch, and no backlog may grow. Otherwise the job and its
    sinks are set back to the savepoint, and the old program is started again.

    If this command is interrupted, the same command continues. With --key, it also returns the result of one that has
    ended; without, it begins another upgrade.

    Exit codes: 0 upgraded, 1 rolled back or needs you, 75 not stopped, 78 refused.
    """
    with connected(control, as_json) as client:
        found = client.job(job)
        folder = found.folder
        with _alone(job, folder):
            record = _continued(folder, job, script, args or [], key) or _begun(
                client,
                found,
                folder,
                UpgradeRecord(
                    id=secrets.token_hex(4),
                    key=key,
                    job=job,
                    host=socket.gethostname(),
                    by=client.actor,
                    began_at=datetime.datetime.now(datetime.UTC),
                    old=_NO_PROGRAM,
                    new=Program(script=str(script.resolve()), args=tuple(args or ()), folder=os.getcwd()),
                    rollback=rollback,
                    verify_seconds=verify_for,
                    accept_idle=accept_idle,
                    allow_non_restored_state=allow_non_restored_state,
                ),
            )
            if record.step not in ENDS:
                record = UpgradeExecution(client, folder, record, start_seconds=start_within, tell=_tell).run()
                details = {"step": record.step.value, "savepoint": record.savepoint}
                client.record_done(job, "upgrade", record.new.script, details)
    if as_json:
        print_json({"upgrade": record.model_dump(mode="json")})
    else:
        texts = record.model_dump(mode="json") | {"old": record.old.script, "new": record.new.script}
        say(_SAID[record.step].format(**texts))
    raise typer.Exit(_EXIT_CODES[record.step])


_NO_PROGRAM: Final = Program(script="", folder="")


def _continued(folder: str, job: str, script: Path, args: list[str], key: str | None) -> UpgradeRecord | None:
    """Return the upgrade that this command continues, or None if it begins one."""
    record = read_upgrade(storage_of(folder), folder)
    if record is None:
        return None
    if record.step in ENDS:
        return record if key is not None and record.key == key else None
    if (record.new.script, record.new.args) != (str(script.resolve()), tuple(args)):
        begun = " ".join([record.new.script, *record.new.args])
        raise NotUpgradable(job, f"an upgrade to {begun} is at step {record.step}", "repeat its command to continue it")
    if record.host != socket.gethostname():
        raise NotUpgradable(job, f"an upgrade of it was begun on {record.host}", "continue it there")
    _tell(f"continuing the upgrade {record.id} at step {record.step}")
    return record


def _begun(client: ControlClient, job: JobRecord, folder: str, record: UpgradeRecord) -> UpgradeRecord:
    """Find what runs the job now, and write down what is to be done."""
    if not job.is_alive:
        raise JobNotRunning(job.name, job.heartbeat_at.isoformat(timespec="seconds"))
    files = storage_of(folder)
    claim = newest_claim(files, join(folder, "generations"))
    token = None if claim is None else claim[0].holder.supervisor
    supervisor = None if token is None else supervisor_of(token)
    if supervisor is None:
        raise NotUpgradable(
            job.name,
            f"its driver on {job.host} was not started by a coordctl run of this user on this machine",
            "stop it with coordctl stop --savepoint, and start it with coordctl run --detach; or upgrade it there",
        )
    if supervisor.log_file is None:
        raise NotUpgradable(
            job.name,
            "its coordctl run is not in the background, and what started it might start the old program again",
            "start it with coordctl run --detach, or replace the program where it is started",
        )
    old = supervisor.program
    if old.script == record.new.script and record.rollback:
        raise NotUpgradable(
            job.name,
            f"it runs {old.script} already, so there is no old program to go back to",
            "put the new one under another name, or use --no-rollback",
        )
    new = record.new.model_copy(update={"folder": old.folder, "options": old.options})
    record = record.model_copy(update={"old": old, "new": new})
    write_upgrade(files, folder, record)
    return record


@contextlib.contextmanager
def _alone(job: str, folder: str) -> Iterator[None]:
    """Keep another process of this machine from upgrading the job meanwhile."""
    name = f"{job}-{hashlib.sha256(folder.encode()).hexdigest()[:12]}"
    path = state_folder() / "upgrades" / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotUpgradable(job, "another process on this machine is upgrading it", "wait for its end") from None
        yield


def _tell(text: str) -> None:
    typer.echo(plain(text), err=True)
