"""What can be wrong with the control database, and with what is asked of a job through it."""

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
    "JobStillAlive",
    "JobStopRequested",
    "KeyReused",
    "RecordNotFound",
    "RecordRefused",
    "SchemaMismatch",
]


class ControlError(CoordControlError):
    """Something that is asked of a job through the control database."""

    fault = Fault.USER


class RecordNotFound(ControlError):
    """The history of a job has no such row, or not any more."""

    def __init__(self, what: str, job: str | None, near: Iterable[str] = ()) -> None:
        self.what, self.job, self.near = what, job, tuple(near)
        where = f" of job {job!r}" if job is not None else ""
        suggestion = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        super().__init__(f"the control database knows no {what}{where}{suggestion}")


class CommandNotFound(ControlError):
    """The control database knows no such command."""

    def __init__(self, command: str, near: Iterable[str] = ()) -> None:
        self.command, self.near = command, tuple(near)
        suggestion = (
            f"; did you mean {' or '.join(self.near)}?"
            if self.near
            else "; finished commands are removed when they are old"
        )
        super().__init__(f"there is no command {command!r}{suggestion}")


class KeyReused(ControlError):
    """An idempotency key names one command for ever; another command needs another key."""

    def __init__(self, job: str, key: str, command: str, difference: str) -> None:
        self.job, self.key, self.command, self.difference = job, key, command, difference
        super().__init__(
            f"job {job!r}: the key {key!r} belongs to command {command}, with another {difference}; repeat that "
            "command as it was, or take a new key"
        )


class CommandNotCancellable(ControlError):
    """A command that a driver carries out already, and that cannot be given up then."""

    def __init__(self, command: str, kind: str, state: str) -> None:
        self.command, self.kind, self.state = command, kind, state
        super().__init__(
            f"command {command} ({kind}) is {state}: a driver carries it out already, and only checkpoints and "
            "savepoints can be given up then"
        )


class JobNotRunning(ControlError):
    """A command was refused because no driver could take it; it is recorded as refused."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, job: str, since: str, reason: str = "", command: str | None = None) -> None:
        self.job, self.since, self.reason, self.command = job, since, reason, command
        why = f" ({reason})" if reason else ""
        super().__init__(f"job {job!r} is not running since {since}{why}; start it with: coordctl run <its script>")


class JobStillAlive(ControlError):
    """A job whose history was to be removed has a living driver."""

    retry = True

    def __init__(self, job: str, host: str) -> None:
        self.job, self.host = job, host
        super().__init__(f"job {job!r} has a driver on {host}; stop it before its history is removed")


class JobNameTaken(ControlError):
    """A job of the same name, in another folder, is running; the control database keeps one job per name."""

    retry = True

    def __init__(self, job: str, folder: str, host: str) -> None:
        self.job, self.folder, self.host = job, folder, host
        super().__init__(
            f"the control database knows a job {job!r} that runs on {host} in {folder}; this one runs on without a "
            "control plane until that one has ended. Give one of them another name, or another control database"
        )


class JobStopRequested(CoordControlError, SystemExit):
    """The job was asked to stop, and its last driver died before it had; so this one ends before it begins.

    It is a ``SystemExit`` with code 0: a script that lets it pass ends as one whose job was stopped."""

    fault = Fault.USER

    def __init__(self, job: str, requested_by: str, requested_at: str) -> None:
        self.job, self.requested_by, self.requested_at = job, requested_by, requested_at
        super().__init__(
            f"job {job!r} was asked to stop by {requested_by or 'somebody'} at {requested_at}, and its driver died on "
            "the way: it is stopped now. Start it again to run it"
        )
        self.code = 0


class GenerationSuperseded(ControlError):
    """The control database knows a newer driver of the job: this one must stop."""

    fault = Fault.EXTERNAL

    def __init__(self, job: str, generation: int, newest: int, holder: str = "") -> None:
        self.job, self.generation, self.newest, self.holder = job, generation, newest, holder
        where = f" on {holder}" if holder else ""
        super().__init__(
            f"job {job!r}: generation {newest} of its driver{where} has taken over from generation {generation}; look: "
            f"coordctl generations {job}"
        )


class DatabaseError(CoordControlError):
    """The control database itself. ``database`` is its address without a password."""

    fault = Fault.EXTERNAL
    database: str


class DatabaseUnavailable(DatabaseError):
    """The database cannot be used now; nothing of the transaction was written, unless its commit was under way."""

    retry = True
    template: ClassVar[str] = (
        "the control database {database} cannot be used now: {cause}; jobs keep running without it. Check that it runs "
        "and can be reached from here"
    )

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(self.template.format(database=database, cause=cause))


class DatabaseBusy(DatabaseUnavailable):
    """Somebody else holds what is needed for longer than we wait."""

    template = (
        "the control database {database} is busy: {cause}; try again, and look for a process that keeps a transaction "
        "open if it stays so"
    )


class DatabaseFull(DatabaseUnavailable):
    """The database has no space left."""

    template = (
        "the control database {database} has no space left: {cause}; nothing of this transaction was written. Free "
        "space on its disk"
    )


class DatabaseReadOnly(DatabaseError):
    """The database can be read only."""

    fault = Fault.USER

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(
            f"the control database {database} cannot be written: {cause}; check the owner and mode of the file and its "
            "folder, or that the server is not a standby"
        )


class DatabaseForbidden(DatabaseError):
    """The database refuses the user, or what the user wants to do."""

    fault = Fault.USER

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(
            f"the control database {database} does not allow this: {cause}; check the user, the password "
            "(COORD_CONTROL_PASSWORD or COORD_CONTROL_PASSWORD_FILE) and its rights (coordctl db grants)"
        )


class DatabaseDamaged(DatabaseError):
    """The file of an embedded database is none, or is damaged."""

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(
            f"{database} is not a control database, or is damaged: {cause}; move the file away (a new one is made) or "
            "put a copy back: checkpoints themselves are on the storage of the jobs and are not touched by this"
        )


class DatabaseNotFound(DatabaseError):
    """There is no database at this address."""

    fault = Fault.USER

    def __init__(self, database: str, near: Iterable[str] = ()) -> None:
        self.database, self.near = database, tuple(near)
        suggestion = (
            f"did you mean {' or '.join(self.near)}?" if self.near else "the first job that is started with it makes it"
        )
        super().__init__(f"there is no control database at {database}; {suggestion}")


class DatabaseUrlInvalid(DatabaseError):
    """The address of a control database cannot be used."""

    fault = Fault.USER

    def __init__(self, database: str, problem: str) -> None:
        self.database, self.problem = database, problem
        super().__init__(
            f"{database!r} cannot be a control database: {problem}; write sqlite:////absolute/path/control.db or "
            "postgresql://user@host/database"
        )


class DatabaseDriverMissing(DatabaseError):
    """The package that speaks with this kind of database is not installed."""

    fault = Fault.USER

    def __init__(self, database: str, package: str) -> None:
        self.database, self.package = database, package
        super().__init__(f'{database} needs the package {package}: pip install "coord-control[postgresql]"')


class SchemaMismatch(DatabaseError):
    """The tables are not those that this release works with; nothing was read or written."""

    fault = Fault.USER

    def __init__(self, database: str, found: str | None, needed: str, oldest: str) -> None:
        self.database, self.found, self.needed = database, found, needed
        if found is None:
            problem = (
                f"has no tables yet (version {needed} is needed): a job that is just starting makes them, try again in "
                "a moment; if none is, run: coordctl db upgrade"
            )
        elif found < oldest:
            problem = (
                f"has version {found} of the tables, from before the first release, and they cannot be upgraded: stop "
                "its jobs, move this database away or name an empty one (--control, COORD_CONTROL), and run: coordctl "
                "db upgrade; jobs that are started then enter the checkpoints of their storage again"
            )
        elif found < needed:
            problem = f"has version {found} of the tables, and this release needs {needed}; run: coordctl db upgrade"
        else:
            problem = f"has version {found} of the tables, and this release knows {needed}: upgrade coord-control"
        super().__init__(f"the control database {database} {problem}")


class RecordRefused(DatabaseError):
    """A value breaks a rule of the tables: too long, out of range, or with characters that no database keeps."""

    fault = Fault.USER

    def __init__(self, database: str, cause: object) -> None:
        self.database, self.cause = database, str(cause)
        super().__init__(f"the control database {database} refuses a value: {cause}; nothing was written")
