"""``<job>/upgrade.json``: the newest upgrade of a job, and how far it is.

It is written before each step, so the same command, run after a crash, continues with the step that may not have
been done. The steps themselves can be repeated.

Threads: any; one process upgrades a job at a time.
"""

from __future__ import annotations

import datetime
import enum
from typing import Final, Literal

import pydantic

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.files.json_records import read_json_record

__all__ = ["Program", "UpgradeRecord", "UpgradeStep", "read_upgrade", "write_upgrade"]

FORMAT_VERSION: Final = 1


class UpgradeStep(enum.StrEnum):
    """The step that an upgrade is at; the table is in ``launch/upgrade_steps.py``."""

    CHECK = "check"  #: the new program is compared with the newest checkpoint; the old one runs
    STOP = "stop"  #: the old program is stopped with a savepoint
    START = "start"  #: the new program is started from the savepoint
    VERIFY = "verify"  #: the new program is watched
    STOP_NEW = "stop_new"  #: the new program has failed, and is stopped
    SET_BACK = "set_back"  #: the job is set back to the savepoint
    START_OLD = "start_old"  #: the old program is started again

    DONE = "done"  #: the new program runs
    REFUSED = "refused"  #: the new program does not fit; the old one runs on
    NOT_STOPPED = "not_stopped"  #: the savepoint failed; the old program runs on
    ROLLED_BACK = "rolled_back"  #: the old program runs from the savepoint
    LEFT = "left"  #: it has failed or was abandoned, or something else has run the job; everything was left as it is
    STUCK = "stuck"  #: the rollback failed too; the job needs the user


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")


class Program(_Model):
    """What a supervisor runs.

    Attributes:
        script: its absolute path.
        folder: the working directory.
        options: those of ``coordctl run`` that concern any script.
    """

    script: str
    args: tuple[str, ...] = ()
    folder: str
    options: tuple[str, ...] = ()


class UpgradeRecord(_Model):
    """One upgrade of a job.

    Attributes:
        id: names its savepoint, its commands and its log files.
        key: the idempotency key of the request, if it had one.
        host: where it is carried out: both programs run there.
        accept_idle: a query may go without an epoch while the new program is watched.
        savepoint: the folder of its savepoint, once it is taken.
        stopped: the generation that was stopped with it.
        generation: the first one of the new program that ran.
        why: what has failed.
        failed_at: the last step that failed.
    """

    format_version: Literal[1] = FORMAT_VERSION
    id: str
    key: str | None = None
    job: str
    host: str
    by: str
    began_at: datetime.datetime
    old: Program
    new: Program
    rollback: bool
    verify_seconds: float
    accept_idle: bool = False
    allow_non_restored_state: bool = False
    step: UpgradeStep = UpgradeStep.CHECK
    savepoint: str | None = None
    stopped: int | None = None
    generation: int | None = None
    why: str = ""
    failed_at: UpgradeStep | None = None


def read_upgrade(files: Files, job_folder: str) -> UpgradeRecord | None:
    """Return the newest upgrade of a job, or None if there was none.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be read.
    """
    return read_json_record(files, _path(job_folder), UpgradeRecord, FORMAT_VERSION)


def write_upgrade(files: Files, job_folder: str, record: UpgradeRecord) -> None:
    """Replace the record of the job's newest upgrade.

    Raises:
        StoreUnavailable: it may have been written or not.
    """
    files.replace(_path(job_folder), record.model_dump_json(indent=2).encode())


def _path(job_folder: str) -> str:
    return join(job_folder, "upgrade.json")
