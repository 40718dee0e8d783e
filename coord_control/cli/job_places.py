"""Whether a job is running, and its root: for commands that also work without a control database.

A job may have no control plane, or an unreachable one. Commands to a stopped job work on its storage, which is safe,
because the storage also records the owner of the job.

Threads: the command's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import typer

from coord_control.cli.output import plain
from coord_control.cli.references import Reference
from coord_control.cli.storage import absolute, storage_of
from coord_control.control.client.control_client import ControlClient
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource, open_checkpoint
from coord_control.durable.job_folder.generations import NO_GENERATION
from coord_control.errors import DatabaseError, DatabaseNotFound, JobNotFound, NoControlPlane, RecordNotFound
from coord_control.ids import Generation
from coord_control.storage.records import JobRecord

__all__ = [
    "known_generation",
    "opened",
    "refuse_key",
    "root_of",
    "running_job",
    "tell_disposed",
    "tell_done",
    "tell_verified",
    "tell_way",
]

_NAME_ROOT: Final = "name the folder of the jobs with --root or COORD_ROOT"


@contextlib.contextmanager
def running_job(
    control: str | None, job: str, root: str | None, key: str | None = None
) -> Iterator[ControlClient | None]:
    """Open a client if the job is running or restarting; yield None if neither is known, so that its storage is used.

    Args:
        root: the root from the command line; a job of this name below another root is ignored.
        key: the key of the request. If the job has a command with it, there is a client even if the job is stopped.

    Raises:
        JobNotFound, typer.BadParameter: as :func:`root_of`, before any output.
    """
    found = _asked(control, job, must=root is None)
    if found is None:
        yield None
        return
    client, record = found
    with client:
        is_meant = root is None or absolute(root) == absolute(record.root)
        has_driver = record.is_alive or record.waits_for_driver
        can_ask = has_driver or (key is not None and client.command_of_key(job, key) is not None)
        yield client if is_meant and can_ask else None


def root_of(control: str | None, job: str, root: str | None) -> str:
    """Return the root of a job: ``root``, or the one in the control database.

    Raises:
        JobNotFound: the control database has no such job; the message names similar ones.
        typer.BadParameter: there is no control database.
    """
    if root is not None:
        return absolute(root)
    found = _asked(control, job, must=True)
    assert found is not None, "guaranteed by must"
    client, record = found
    client.close()
    return record.root


@contextlib.contextmanager
def opened(named: Reference, root: str | None, control: str | None, purpose: str) -> Iterator[CheckpointSource]:
    """Find a checkpoint or savepoint, and protect it from removal while the block reads it.

    Args:
        purpose: the reason that an attempt to remove it reports.

    Raises:
        JobNotFound, typer.BadParameter: as :func:`root_of`.
        CheckpointNotFound, DamagedRecord, UnsupportedFormat: there is none that can be read.
    """
    base = None if named.job is None else root_of(control, named.job, root)
    path = named.catalog(base).resolve(named.ref).path
    with open_checkpoint(storage_of(path), path, purpose) as source:
        yield source


def known_generation(control: str | None, job: str) -> Generation:
    """Return the newest generation of a job in the control database, or none if that does not know the job or cannot
    be reached."""
    found = _asked(control, job, must=False)
    if found is None:
        return NO_GENERATION
    client, record = found
    client.close()
    return Generation(record.generation)


def tell_way(client: ControlClient | None, job: str) -> None:
    """Print on standard error whether the driver or this process executes the request."""
    way = (
        "no running driver in the control database, using its storage"
        if client is None
        else "running, asking its driver"
        if client.job(job).is_alive
        else "coordctl run restarts it, if it still runs; asking its next driver"
    )
    typer.echo(plain(f"job {job}: {way}"), err=True)


def refuse_key(key: str | None) -> None:
    """Refuse a key for a request on the storage, where a repeated request is executed again."""
    if key is not None:
        raise typer.BadParameter(
            plain(
                f"--key {key} needs a running job: a request on the storage is executed each time. Leave --key out, or "
                "start the job first"
            )
        )


def tell_disposed(control: str | None, path: str) -> None:
    """Record in the control database that a savepoint was removed, if it contains that savepoint."""
    _tell(control, lambda client: client.record_disposed(path))


def tell_verified(control: str | None, path: str, problems: Sequence[str]) -> None:
    """Record the result of verifying a savepoint in the control database, if it contains that savepoint."""
    _tell(control, lambda client: client.record_verified(path, problems))


def tell_done(
    control: str | None, job: str, root: str, action: str, subject: str, details: dict[str, Any] | None = None
) -> None:
    """Record in the audit trail what was done on the storage of a job, if the control database contains that job."""

    def tell(client: ControlClient) -> None:
        if absolute(client.job(job).root) == absolute(root):  # otherwise it is another job of that name
            client.record_done(job, action, subject, details)

    _tell(control, tell)


def _tell(control: str | None, tell: Callable[[ControlClient], object]) -> None:
    try:
        with ControlClient(control) as client:
            tell(client)
    except (NoControlPlane, DatabaseNotFound, JobNotFound, RecordNotFound):
        pass
    except DatabaseError as error:
        typer.echo(plain(f"not recorded in the control database: {error}"), err=True)


def _asked(control: str | None, job: str, *, must: bool) -> tuple[ControlClient, JobRecord] | None:
    """Return a client and the record of a job, or None if there is no record and it is not a ``must``."""
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(ControlClient(control))
            record = client.job(job)
        except JobNotFound as error:
            if must:
                raise JobNotFound(job, error.root, error.near, _NAME_ROOT) from error
            return None
        except (NoControlPlane, DatabaseError) as error:
            if must:
                raise typer.BadParameter(
                    plain(f"no control database knows the folder of job {job!r} ({error}): {_NAME_ROOT}")
                ) from error
            if not isinstance(error, (NoControlPlane, DatabaseNotFound)):
                typer.echo(plain(f"continuing without the control database: {error}"), err=True)
            return None
        stack.pop_all()  # the caller closes it
        return client, record
