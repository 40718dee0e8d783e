"""Whether a job runs, and where it lies: what the control database can tell to commands that also work without it.

A job may have no control plane, or one that is away at the moment; what is done to a job that does not run is done on
its storage, and is safe there: whoever owns the job is written there too.

Threads: the command's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import typer

from coord_control.cli.output import plain
from coord_control.cli.storage import absolute
from coord_control.control.client.control_client import ControlClient
from coord_control.durable.offline.mailboxes import Mailbox
from coord_control.errors import DatabaseError, DatabaseNotFound, JobNotFound, NoControlPlane, RecordNotFound
from coord_control.storage.records import JobRecord

__all__ = ["refuse_key", "root_of", "running_job", "tell_disposed", "tell_dropped", "tell_verified", "tell_way"]

_SAY_WHERE: Final = "say where the jobs are, with --root or COORD_ROOT"


@contextlib.contextmanager
def running_job(
    control: str | None, job: str, root: str | None, key: str | None = None
) -> Iterator[ControlClient | None]:
    """A client for a job that runs; None: it does not, as far as anybody can tell, and its storage is to be used.

    Args:
        root: where the caller says that the job lies: another job of this name, below another root, is not meant.
        key: of the request. If the job was asked with it before, there is a client as well: it finds that command.

    Raises:
        JobNotFound, typer.BadParameter: as :func:`root_of`, before anything is said about the job.
    """
    found = _asked(control, job, must=root is None)
    if found is None:
        yield None
        return
    client, record = found
    with client:
        is_meant = root is None or absolute(root) == absolute(record.root)
        can_ask = record.is_alive or (key is not None and client.command_of_key(job, key) is not None)
        yield client if is_meant and can_ask else None


def root_of(control: str | None, job: str, root: str | None) -> str:
    """The root of a job: the one that was given, or the one that the control database knows.

    Raises:
        JobNotFound: the control database knows no such job; the message names those with a similar name.
        typer.BadParameter: there is no control database to be asked.
    """
    if root is not None:
        return absolute(root)
    found = _asked(control, job, must=True)
    assert found is not None, "it must be known"
    client, record = found
    client.close()
    return record.root


def tell_way(client: ControlClient | None, job: str) -> None:
    """Say on standard error who does it."""
    way = "on its storage: it does not run" if client is None else "through its driver"
    typer.echo(plain(f"job {job}: {way}"), err=True)


def refuse_key(key: str | None) -> None:
    """Refuse the key of a request that is carried out on the storage, where a repeated request is carried out again."""
    if key is not None:
        raise typer.BadParameter(
            plain(
                f"--key {key} would not be kept: what a running job is asked is done once per key, and this is done "
                "on the storage. Leave --key out, or start the job first"
            )
        )


def tell_disposed(control: str | None, path: str) -> None:
    """Tell the control database that a savepoint was removed, if it knows that one."""
    _tell(control, lambda client: client.record_disposed(path))


def tell_verified(control: str | None, path: str, problems: Sequence[str]) -> None:
    """Tell the control database what became of reading all files of a savepoint, if it knows that one."""
    _tell(control, lambda client: client.record_verified(path, problems))


def tell_dropped(control: str | None, job: str, dropped: Mailbox) -> None:
    """Tell the control database what was given up of a job, if it knows that one."""
    if dropped.events:
        _tell(control, lambda client: client.record_dropped(job, dropped.operator, dropped.subtask, dropped.events))


def _tell(control: str | None, tell: Callable[[ControlClient], object]) -> None:
    try:
        with ControlClient(control) as client:
            tell(client)
    except (NoControlPlane, DatabaseNotFound, JobNotFound, RecordNotFound):
        pass
    except DatabaseError as error:
        typer.echo(plain(f"the control database was not told: {error}"), err=True)


def _asked(control: str | None, job: str, *, must: bool) -> tuple[ControlClient, JobRecord] | None:
    """The job as the control database knows it; None: it does not, and nothing else says that it ``must``."""
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(ControlClient(control))
            record = client.job(job)
        except JobNotFound as error:
            if must:
                raise JobNotFound(job, error.root, error.near, _SAY_WHERE) from error
            return None
        except (NoControlPlane, DatabaseError) as error:
            if must:
                raise typer.BadParameter(
                    plain(f"no control database says where job {job!r} is ({error}): {_SAY_WHERE}")
                ) from error
            if not isinstance(error, (NoControlPlane, DatabaseNotFound)):
                typer.echo(plain(f"the control database was not asked: {error}"), err=True)
            return None
        stack.pop_all()  # the caller closes it
        return client, record
