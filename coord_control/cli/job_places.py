"""Whether a job runs, and where it lies: what the control database can tell to commands that also work without it.

A job may have no control plane, or one that is away at the moment; what is done to a job that does not run is done on
its storage, and is safe there: whoever owns the job is written there too.

Threads: the command's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import typer

from coord_control.cli.output import plain
from coord_control.cli.storage import absolute
from coord_control.control.client import ControlClient
from coord_control.errors import DatabaseError, DatabaseNotFound, JobNotFound, NoControlPlane, RecordNotFound
from coord_control.storage.records import JobRecord

__all__ = ["known_job", "root_of", "running_job", "tell_verified", "tell_way"]


@contextlib.contextmanager
def running_job(control: str | None, job: str, root: str | None) -> Iterator[ControlClient | None]:
    """A client for a job that runs; None: it does not, as far as anybody can tell, and its storage is to be used.

    Args:
        root: where the caller says that the job lies: another job of this name, below another root, is not meant.
    """
    found = _asked(control, job)
    if found is None:
        yield None
        return
    client, record = found
    with client:
        is_meant = record.is_alive and (root is None or absolute(root) == absolute(record.root))
        yield client if is_meant else None


def known_job(control: str | None, job: str) -> JobRecord | None:
    """What the control database knows of a job; None: nothing, or there is no such database."""
    found = _asked(control, job)
    if found is None:
        return None
    client, record = found
    client.close()
    return record


def root_of(control: str | None, job: str, root: str | None) -> str:
    """The root of a job: the one that was given, or the one that the control database knows.

    Raises:
        typer.BadParameter: neither.
    """
    if root is not None:
        return absolute(root)
    record = known_job(control, job)
    if record is None:
        raise typer.BadParameter(
            f"the control database knows no job {plain(job)!r}: say where the jobs are, with --root or COORD_ROOT"
        )
    return record.root


def tell_way(client: ControlClient | None, job: str) -> None:
    """Say on standard error who does it."""
    way = "on its storage: it does not run" if client is None else "through its driver"
    typer.echo(plain(f"job {job}: {way}"), err=True)


def tell_verified(control: str | None, path: str, problems: Sequence[str]) -> None:
    """Tell the control database what became of reading all files of a savepoint, if it knows that one."""
    try:
        with ControlClient(control) as client:
            client.record_verified(path, problems)
    except (NoControlPlane, DatabaseNotFound, RecordNotFound):
        pass
    except DatabaseError as error:
        typer.echo(plain(f"the control database was not told: {error}"), err=True)


def _asked(control: str | None, job: str) -> tuple[ControlClient, JobRecord] | None:
    try:
        client = ControlClient(control)
    except NoControlPlane:
        return None
    try:
        return client, client.job(job)
    except (DatabaseNotFound, JobNotFound):
        pass
    except DatabaseError as error:
        typer.echo(plain(f"the control database was not asked: {error}"), err=True)
    client.close()
    return None
