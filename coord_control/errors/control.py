"""Errors of the control database, and of requests to a job through it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from coord_control.errors.base import CoordControlError, Fault

__all__ = [
    "CommandNotCancellable",
    "CommandNotFound",
    "ControlError",
    "DatabaseBusy",
    "DatabaseDamaged",
    "DatabaseDriverMissing",
    "DatabaseError",
    "DatabaseForbidden",
    "DatabaseFull",
    "DatabaseNotFound",
    "DatabaseReadOnly",
    "DatabaseUnavailable",
    "DatabaseUrlInvalid",
    "GenerationSuperseded",
    "JobNameTaken",
    "JobNotRunning",
    "JobRootMismatch",
    "JobStillAlive",
    "JobStopRequested",
    "KeyReused",
    "LaunchFailed",
    "NotPromotable",
    "NotUpgradable",
    "RecordNotFound",
    "RecordRefused",
    "SchemaMismatch",
]


class ControlError(CoordControlError):
    """A request to a job through the control database failed."""

    fault = Fault.USER


class LaunchFailed(ControlError):
    """A program cannot be started.

    Attributes:
        problem: the cause.
        output: what the command that was to start it has written, if anything.
    """

    def __init__(self, problem: str, output: str = "") -> None:
        self.problem, self.output = problem, output
        super().__init__(f"{problem}: {output}" if output else problem)


class NotUpgradable(ControlError):
    """A job cannot be upgraded from here, or is being upgraded already; nothing was changed."""

    def __init__(self, job: str, problem: str, way_out: str) -> None:
        self.job, self.problem, self.way_out = job, problem, way_out
        super().__init__(f"job {job!r} cannot be upgraded: {problem}; {way_out}")


class NotPromotable(ControlError):
    """A fork cannot take the place of its parent, or not yet; the parent was not stopped for it."""

    def __init__(self, fork: str, problem: str, way_out: str, *, retry: bool = False) -> None:
        self.fork, self.problem, self.way_out, self.retry = fork, problem, way_out, retry
        super().__init__(f"job {fork!r} cannot be promoted: {problem}; {way_out}")


class RecordNotFound(ControlError):
    """The history of a job has no such record, or no longer has it."""

    def __init__(self, what: str, job: str | None, near: Iterable[str] = ()) -> None:
        self.what, self.job, self.near = what, job, tuple(near)
        where = f" of job {job!r}" if job is not None else ""
        suggestion = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        super().__init__(f"the control database has no {what}{where}{suggestion}")


class CommandNotFound(ControlError):
    """The control database has no such command."""

    def __init__(self, command: str, near: Iterable[str] = ()) -> None:
        self.command, self.near = command, tuple(near)
        suggestion = (
            f"; did you mean {' or '.join(self.near)}?"
            if self.near
            else "; finished commands are removed after some time"
        )
        super().__init__(f"there is no command {command!r}{suggestion}")


class KeyReused(ControlError):
    """An idempotency key belongs to one command permanently; another command needs another key."""

    def __init__(self, job: str, key: str, command: str, difference: str) -> None:
        self.job, self.key, self.command, self.difference = job, key, command, difference
        super().__init__(
            f"job {job!r}: the key {key!r} belongs to command {command}, which has a different {difference}; repeat "
            "that command unchanged, or use a new key"
        )


class CommandNotCancellable(ControlError):
    """A driver is already executing the command, and commands of its kind cannot be cancelled then."""

    def __init__(self, command: str, kind: str, state: str) -> None:
        self.command, self.kind, self.state = command, kind, state
        super().__init__(
            f"command {command} ({kind}) is {state}: a driver is already executing it, and only one that takes "
            "a checkpoint or savepoint can be cancelled then"
        )


class JobNotRunning(ControlError):
    """A command was refused, and recorded as refused, because the job has no live driver."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, job: str, since: str, reason: str = "", command: str | None = None) -> None:
        self.job, self.since, self.reason, self.command = job, since, reason, command
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"job {job!r} has not been running since {since}{why}; start it with: coordctl run <its script>"
        )


class JobStillAlive(ControlError):
    """The history of a job cannot be removed while the job has a live driver."""

    retry = True

    def __init__(self, job: str, host: str) -> None:
        self.job, self.host = job, host
        super().__init__(f"job {job!r} has a driver on {host}; stop it before its history is removed")


class JobNameTaken(ControlError):
    """A job of the same name is running in another folder; the control database keeps one job per name."""

    retry = True

    def __init__(self, job: str, folder: str, host: str) -> None:
        self.job, self.folder, self.host = job, folder, host
        super().__init__(
            f"another job named {job!r} is running on {host} in {folder}; this one continues without a control plane "
            "until that one has ended. Rename one of them, or use another control database"
        )


class JobRootMismatch(ControlError):
    """The folder of a job has seen fewer drivers than the control database: it is new, was emptied, or is not mounted.

    Args:
        folder: the folder of this driver; ``generation`` is its number there.
        known_folder: the folder in the control database, which has seen ``known_generation``.
    """

    def __init__(self, job: str, folder: str, generation: int, known_folder: str, known_generation: int) -> None:
        self.job, self.folder, self.generation = job, folder, generation
        self.known_folder, self.known_generation = known_folder, known_generation
        where = (
            "was emptied, or is not mounted"
            if folder == known_folder
            else f"is not that of its history, {known_folder}"
        )
        super().__init__(
            f"job {job!r} has a history of {known_generation} drivers in the control database, and its folder {folder} "
            f"has seen {generation}: it {where}. Start it with its root; or continue from a savepoint with: coordctl "
            f"restore {job} <savepoint> --root <new root>; or give a new job another name; or remove the "
            f"history with: coordctl forget {job}"
        )


class JobStopRequested(CoordControlError, SystemExit):
    """A stop of the job was requested, but its last driver died before it stopped; so this driver does not start it.

    It is a ``SystemExit`` with code 0: a script that does not catch it ends like one whose job was stopped."""

    fault = Fault.USER

    def __init__(self, job: str, requested_by: str, requested_at: str) -> None:
        self.job, self.requested_by, self.requested_at = job, requested_by, requested_at
        super().__init__(
            f"job {job!r} was stopped at {requested_at}{f' by {requested_by}' if requested_by else ''}, and its driver "
            "died before it could confirm it: the job is stopped now. Start it again to run it"
        )
        self.code = 0


class GenerationSuperseded(ControlError):
    """The control database has a newer driver of the job: this one must stop."""

    fault = Fault.EXTERNAL

    def __init__(self, job: str, generation: int, newest: int, holder: str = "") -> None:
        self.job, self.generation, self.newest, self.holder = job, generation, newest, holder
        where = f" on {holder}" if holder else ""
        super().__init__(
            f"job {job!r}: generation {newest} of its driver{where} has taken over from generation {generation}; see: "
            f"coordctl generations {job}"
        )


class DatabaseError(CoordControlError):
    """The control database failed. ``database`` is its address without the password."""

    fault = Fault.EXTERNAL
    database: str


class DatabaseUnavailable(DatabaseError):
    """The database is unavailable; the transaction was not written, unless it failed during its commit."""

    retry = True
    template: ClassVar[str] = (
        "the control database {database} is unavailable: {cause}; jobs keep running without it. Check that it is "
        "running and reachable from here"
    )

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(self.template.format(database=database, cause=cause))


class DatabaseBusy(DatabaseUnavailable):
    """Another transaction held a lock for longer than the timeout."""

    template = (
        "the control database {database} is busy: {cause}; try again, and if it stays busy look for a process that "
        "keeps a transaction open"
    )


class DatabaseFull(DatabaseUnavailable):
    """The database has no space left."""

    template = (
        "the control database {database} has no space left: {cause}; the transaction was rolled back. Free disk space"
    )


class DatabaseReadOnly(DatabaseError):
    """The database is read-only."""

    fault = Fault.USER

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(
            f"the control database {database} is read-only: {cause}; check the owner and mode of the file and its "
            "folder, or that the server is not a standby"
        )


class DatabaseForbidden(DatabaseError):
    """The database refuses the login, or the user lacks a privilege."""

    fault = Fault.USER

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(
            f"the control database {database} does not allow this: {cause}; check the user, the password "
            "(COORD_CONTROL_PASSWORD or COORD_CONTROL_PASSWORD_FILE) and its rights (coordctl db grants)"
        )


class DatabaseDamaged(DatabaseError):
    """The file is not a SQLite database, or is corrupt."""

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(
            f"{database} is not a control database, or is corrupt: {cause}; move the file away (a new one is created) "
            "or restore a backup. Checkpoints are not affected: they are on the jobs' storage"
        )


class DatabaseNotFound(DatabaseError):
    """There is no database at this address."""

    fault = Fault.USER

    def __init__(self, database: str, near: Iterable[str] = ()) -> None:
        self.database, self.near = database, tuple(near)
        suggestion = (
            f"did you mean {' or '.join(self.near)}?"
            if self.near
            else "the first job that starts with this address creates it"
        )
        super().__init__(f"there is no control database at {database}; {suggestion}")


class DatabaseUrlInvalid(DatabaseError):
    """The address of a control database is invalid."""

    fault = Fault.USER

    def __init__(self, database: str, problem: str) -> None:
        self.database, self.problem = database, problem
        super().__init__(
            f"{database!r} is not a valid control database: {problem}; write sqlite:////absolute/path/control.db or "
            "postgresql://user@host/database"
        )


class DatabaseDriverMissing(DatabaseError):
    """The client package of this kind of database is not installed."""

    fault = Fault.USER

    def __init__(self, database: str, package: str) -> None:
        self.database, self.package = database, package
        super().__init__(f'{database} needs the package {package}: pip install "coord-control[postgresql]"')


class SchemaMismatch(DatabaseError):
    """The schema does not match this release; nothing was read or written."""

    fault = Fault.USER

    def __init__(self, database: str, found: str | None, needed: str, oldest: str) -> None:
        self.database, self.found, self.needed = database, found, needed
        if found is None:
            problem = (
                f"has no tables yet (version {needed} is needed): if a job is just starting, it creates them, so try "
                "again in a moment; otherwise run: coordctl db upgrade"
            )
        elif found < oldest:
            problem = (
                f"has version {found} of the tables, from before the first release, and they cannot be upgraded: stop "
                "its jobs, move this database away or name an empty one (--control, COORD_CONTROL), and run: coordctl "
                "db upgrade; jobs that start after that record the checkpoints on their storage again"
            )
        elif found < needed:
            problem = f"has version {found} of the tables, and this release needs {needed}; run: coordctl db upgrade"
        else:
            problem = (
                f"has version {found} of the tables, and this release only supports {needed}: upgrade coord-control"
            )
        super().__init__(f"the control database {database} {problem}")


class RecordRefused(DatabaseError):
    """A value violates a constraint: too long, out of range, or with characters that no database stores."""

    fault = Fault.USER

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(f"the control database {database} refuses a value: {cause}; nothing was written")
