"""A reader's lease on a checkpoint, which protects it from removal.

A hold is a small file next to the ``_metadata``. The order makes it safe without a lock: the reader first holds and
then reads ``_metadata``; the remover first deletes ``_metadata`` and then looks for holds before it touches any other
file. So either the reader finds that the checkpoint is gone, or the remover finds the hold.

A hold counts until it is released, until its process is known to be dead, or until it expires: a machine that went away
must not keep a checkpoint forever. The reader's clock says when, and the remover compares that with its own. The lease
is hours longer than what it protects, so that clocks may differ by as much.

Threads: any.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias

import pydantic

from coord_control.durable.checkpoints.metadata_file import METADATA_NAME
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.holder import Aliveness, Holder, may_live
from coord_control.errors import DamagedRecord, StoreError, StoreUnavailable

__all__ = ["DEFAULT_LEASE_SECONDS", "HOLDS_NAME", "HoldRecord", "active_hold", "hold"]

HOLDS_NAME: Final = "_holds"

#: Longer than any restore should take, and short enough for a machine that never comes back.
DEFAULT_LEASE_SECONDS: Final = 6 * 3600.0

#: A read-only archive needs no hold: it cannot be removed either.
_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

_REMEDY: Final = "It marks the checkpoint as being read; remove this file if it is not"

Clock: TypeAlias = Callable[[], datetime.datetime]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class HoldRecord(pydantic.BaseModel):
    """The content of a hold."""

    model_config = pydantic.ConfigDict(frozen=True)

    format_version: Literal[1] = 1
    holder: Holder
    purpose: str
    expires_at: pydantic.AwareDatetime

    def may_count(self, now: datetime.datetime) -> bool:
        """Return whether its holder may still be reading."""
        if now >= self.expires_at:
            return False
        return may_live(self.holder) is not Aliveness.DEAD

    def __str__(self) -> str:
        processes = ", ".join(str(process.pid) for process in self.holder.processes)
        return f"{self.purpose} (process {processes} on {self.holder.host}, until {self.expires_at:%Y-%m-%d %H:%M} UTC)"


@contextlib.contextmanager
def hold(
    files: Files,
    path: str,
    purpose: str = "it is being restored",
    *,
    lease_seconds: float = DEFAULT_LEASE_SECONDS,
    clock: Clock = _now,
) -> Iterator[None]:
    """Keep a checkpoint or savepoint from being removed. Read its ``_metadata`` inside the block.

    Args:
        path: its folder.
        purpose: the reason that an attempt to remove it reports.
        lease_seconds: the hold expires after this time.

    Raises:
        StoreUnavailable: the hold cannot be written, although the storage is not read-only.
    """
    record = HoldRecord(
        holder=Holder.of([os.getpid()]),
        purpose=purpose,
        expires_at=clock() + datetime.timedelta(seconds=lease_seconds),
    )
    # Where nothing is, there is nothing to hold, and nothing will come back.
    name = _create(files, path, record) if files.exists(join(path, METADATA_NAME)) else None
    try:
        yield
    finally:
        if name is not None:
            with contextlib.suppress(StoreError):  # it expires
                files.delete_all(path, [name])


def _create(files: Files, path: str, record: HoldRecord) -> str | None:
    name = f"{HOLDS_NAME}/{uuid.uuid4().hex}"
    try:
        files.create(join(path, name), record.model_dump_json(indent=2).encode())
    except StoreUnavailable as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _READ_ONLY:
            return None
        raise
    return name


def active_hold(files: Files, path: str, clock: Clock = _now) -> HoldRecord | None:
    """Return a hold on a checkpoint or savepoint that may still count, or None if it is not being read.

    Raises:
        DamagedRecord: a hold cannot be read, so the checkpoint may be in use.
    """
    now = clock()
    for name in files.list(join(path, HOLDS_NAME)):
        try:
            record = HoldRecord.model_validate_json(files.read(join(path, HOLDS_NAME, name)))
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise DamagedRecord(join(path, HOLDS_NAME, name), str(error), _REMEDY) from error
        if record.may_count(now):
            return record
    return None
