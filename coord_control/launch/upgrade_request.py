"""Upgrades of jobs that run under ``coordctl run --detach`` on this machine.

``coordctl upgrade`` and Dagster's ``upgrade_streaming_job`` are this. It is no command to the driver, because what
starts the programs is this machine: the process that upgrades lives until the new program is known to be healthy.
A request that is repeated after that process was killed continues the same upgrade.

Threads: the caller's; one upgrade of a job at a time on a machine.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import absolute_url, state_folder
from coord_control.durable.checkpoints.checkpoint_folder import Storage
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.generations import newest_claim
from coord_control.durable.job_folder.upgrade_record import (
    Program,
    UpgradeRecord,
    UpgradeStep,
    read_upgrade,
    write_upgrade,
)
from coord_control.errors import JobNotRunning, NotUpgradable
from coord_control.launch.local_launcher import LocalLauncher
from coord_control.launch.supervisors import supervisor_of
from coord_control.launch.upgrade_execution import UpgradeExecution
from coord_control.launch.upgrade_steps import ENDS
from coord_control.storage.records import JobRecord

__all__ = ["UpgradeRequest", "abandon_upgrade", "said", "upgrade_job"]

_SAID: Final = {
    UpgradeStep.DONE: "job {job} runs {new}; its savepoint before that: {savepoint}",
    UpgradeStep.REFUSED: "job {job} runs on with {old}; nothing was changed: {why}",
    UpgradeStep.NOT_STOPPED: "job {job} was not upgraded, and not stopped for it; its program is {old}: {why}",
    UpgradeStep.ROLLED_BACK: "job {job} runs {old} again, from {savepoint}; {new} has failed: {why}",
    UpgradeStep.LEFT: "job {job} was left as it is in its upgrade from {old} to {new}: {why}. Its savepoint before "
    "that: {savepoint}",
    UpgradeStep.STUCK: "job {job} needs you: {new} has failed, and so has the rollback: {why}. {next}",
}
_RESTORE: Final = "restore it: coordctl restore {job} {savepoint} --roll-back-sinks; then start {old}"
#: What is left to do after a rollback that failed at a step.
_NEXT: Final = {
    UpgradeStep.STOP_NEW: f"End {{new}} first; then {_RESTORE}",
    UpgradeStep.SET_BACK: f"Neither program runs. R{_RESTORE[1:]}",
    UpgradeStep.START_OLD: "The job and its sinks stand at {savepoint}, and no program runs: start {old}",
}


@dataclass(frozen=True, slots=True)
class UpgradeRequest:
    """What is to run instead, and how it is watched.

    Attributes:
        script: absolute path of the new program.
        environment: variables of both programs, in addition to those of this process.
        verify_seconds: how long the new program is watched before it counts as healthy.
        start_seconds: how long a program may take until all of its queries run.
        rollback: go back to the old program and the savepoint if the new one fails.
        accept_idle: a query without input needs no new epoch.
        allow_non_restored_state: queries and operators may be left behind, and new ones begin empty.
        key: a repeated request with the same key returns the result of an upgrade that has ended.
    """

    script: str
    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    verify_seconds: float = 600.0
    start_seconds: float = 300.0
    rollback: bool = True
    accept_idle: bool = False
    allow_non_restored_state: bool = False
    key: str | None = None


def upgrade_job(
    client: ControlClient, job: str, request: UpgradeRequest, *, storage: Storage, tell: Callable[[str], None]
) -> UpgradeRecord:
    """Replace the program of a job; return how that has ended.

    If the process is killed meanwhile, the same call continues.

    Args:
        storage: gives the storage of a path.
        tell: receives what is done.

    Raises:
        JobNotFound: the control database does not know the job.
        JobNotRunning: it has no driver.
        NotUpgradable: it cannot be upgraded from here, or another upgrade of it is in progress.
        LaunchFailed: the user's state folder cannot be written.
        DatabaseError, StoreUnavailable: for now; the same call continues.
    """
    found = client.job(job)
    folder = found.folder
    files = storage(folder)
    with _alone(job, folder):
        record = _continued(read_upgrade(files, folder), job, request, tell)
        if record is None:
            record = _begun(client, found, files, request)
        if record.step in ENDS:
            return record
        environment = {"COORD_CONTROL": absolute_url(client.settings.url), **request.environment}
        execution = UpgradeExecution(
            client,
            folder,
            record,
            LocalLauncher(environment),
            environment,
            storage=storage,
            start_seconds=request.start_seconds,
            tell=tell,
        )
        record = execution.run()
        _audit(client, record)
    return record


def abandon_upgrade(client: ControlClient, job: str, *, storage: Storage) -> UpgradeRecord:
    """End an upgrade that cannot be continued, such as one of a machine that is gone; change nothing else.

    Raises:
        JobNotFound: the control database does not know the job.
        NotUpgradable: no upgrade of it is in progress, or a process of this machine is carrying it out.
        StoreUnavailable: for now.
    """
    folder = client.job(job).folder
    files = storage(folder)
    with _alone(job, folder):
        record = read_upgrade(files, folder)
        if record is None or record.step in ENDS:
            raise NotUpgradable(job, "no upgrade of it is in progress", "there is nothing to abandon")
        why = "; ".join(filter(None, (record.why, f"{client.actor} abandoned it at step {record.step}")))
        record = record.model_copy(update={"step": UpgradeStep.LEFT, "why": why})
        write_upgrade(files, folder, record)
        _audit(client, record)
    return record


def said(record: UpgradeRecord) -> str:
    """Return how an upgrade has ended, as a sentence, with what is left to do."""
    texts = record.model_dump(mode="json") | {"old": record.old.script, "new": record.new.script}
    texts["savepoint"] = record.savepoint or "none"
    left = _NEXT.get(record.failed_at) if record.failed_at is not None else None
    return _SAID[record.step].format(**texts, next="" if left is None else left.format(**texts))


def _continued(
    record: UpgradeRecord | None, job: str, request: UpgradeRequest, tell: Callable[[str], None]
) -> UpgradeRecord | None:
    """Return the upgrade that a request continues, or repeats; None if it begins one."""
    if record is None:
        return None
    begun = " ".join([record.new.script, *record.new.args])
    is_same = (record.new.script, record.new.args) == (request.script, request.args)
    if record.step in ENDS:
        if request.key is None or record.key != request.key:
            return None
        if not is_same:
            raise NotUpgradable(job, f"key {request.key} belongs to an upgrade to {begun}", "use another key")
        return record
    if not is_same:
        way_out = "repeat its command to continue it, or end it with coordctl upgrade --abandon"
        raise NotUpgradable(job, f"an upgrade to {begun} is at step {record.step}", way_out)
    if record.host != socket.gethostname():
        way_out = "continue it there, or, if that machine is gone, end it with coordctl upgrade --abandon"
        raise NotUpgradable(job, f"an upgrade of it was begun on {record.host}", way_out)
    tell(f"continuing the upgrade {record.id} at step {record.step}")
    names = ("verify_seconds", "rollback", "accept_idle", "allow_non_restored_state")
    if changed := [name for name in names if getattr(record, name) != getattr(request, name)]:
        values = ", ".join(f"{name} = {getattr(record, name)}" for name in changed)
        tell(f"it keeps the options with which it was begun: {values}")
    return record


def _begun(client: ControlClient, job: JobRecord, files: Files, request: UpgradeRequest) -> UpgradeRecord:
    """Find what runs the job now, and write down what is to be done."""
    old = _running_program(job, files)
    if old.script == request.script and request.rollback:
        raise NotUpgradable(
            job.name,
            f"it runs {old.script} already, so there is no old program to go back to",
            "put the new one under another name, or use --no-rollback",
        )
    record = UpgradeRecord(
        id=secrets.token_hex(4),
        key=request.key,
        job=job.name,
        host=socket.gethostname(),
        by=client.actor,
        began_at=datetime.datetime.now(datetime.UTC),
        old=old,
        new=Program(script=request.script, args=request.args, folder=old.folder, options=old.options),
        rollback=request.rollback,
        verify_seconds=request.verify_seconds,
        accept_idle=request.accept_idle,
        allow_non_restored_state=request.allow_non_restored_state,
    )
    write_upgrade(files, job.folder, record)
    return record


def _running_program(job: JobRecord, files: Files) -> Program:
    if not job.is_alive:
        raise JobNotRunning(job.name, job.heartbeat_at.isoformat(timespec="seconds"))
    claim = newest_claim(files, join(job.folder, "generations"))
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
    return supervisor.program


def _audit(client: ControlClient, record: UpgradeRecord) -> None:
    details = {"step": record.step.value, "savepoint": record.savepoint}
    client.record_done(record.job, "upgrade", record.new.script, details)


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
