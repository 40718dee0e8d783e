"""The supervisors (``coordctl run``) of this user on this machine: what each runs, and whether it lives.

Each has a file in the user's state folder, named by its token, which the claims of its drivers contain as well. It
locks the file for as long as it lives, whatever ends it. So ``coordctl upgrade`` finds the command line of a running
job, and can tell a supervisor that has ended from one that has not begun yet.

Threads: the command's thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from coord_control.control.settings import state_folder
from coord_control.durable.job_folder.upgrade_record import Program

__all__ = ["OwnSupervisor", "SupervisorRecord", "living_supervisors", "supervisor_of"]

#: Files of supervisors that were killed are removed after this time.
_LEFT_SECONDS: Final = 7 * 86400.0

#: The most that a process id has.
_DIGITS: Final = 20

_TOKEN: Final = re.compile(r"[0-9a-f]+")


class SupervisorRecord(BaseModel):
    """What a supervisor says about itself.

    Attributes:
        token: by which the claims of its drivers name it.
        log_file: of a detached one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    token: str
    pid: int
    program: Program
    log_file: str | None = None


class OwnSupervisor:
    """The file of this process; nothing if the state folder cannot be written: a job runs without it too."""

    def __init__(self, record: SupervisorRecord) -> None:
        self._record = record
        self._path: Path | None = None
        self._file: int | None = None
        with contextlib.suppress(OSError, RuntimeError):  # there may be no home
            self._path = _folder() / record.token
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write()
            _remove_left()

    def moved(self) -> None:
        """Note that a fork of the process that has made it is the supervisor."""
        self._record = self._record.model_copy(update={"pid": os.getpid()})
        with contextlib.suppress(OSError):
            self._write()

    def close(self) -> None:
        """Remove the file: the supervisor ends."""
        if self._file is None or self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._file)
        self._file = None

    def _write(self) -> None:
        if self._file is None:
            return
        # A process id may have more digits than the one before; a reader must not see half of a record.
        content = self._record.model_copy(update={"pid": 0}).model_dump_json()
        os.pwrite(self._file, self._record.model_dump_json().ljust(len(content) + _DIGITS).encode(), 0)


def supervisor_of(token: str) -> SupervisorRecord | None:
    """Return a supervisor that lives here, or None."""
    return next((found for found in living_supervisors() if found.token == token), None)


def living_supervisors() -> Iterator[SupervisorRecord]:
    """Yield the supervisors of this user and this machine."""
    for path in _paths():
        if _is_locked(path):
            with contextlib.suppress(OSError, ValidationError):  # it has just ended, or is just beginning
                yield SupervisorRecord.model_validate_json(path.read_bytes())


def _is_locked(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _remove_left() -> None:
    for path in _paths():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_SECONDS and not _is_locked(path):
                path.unlink()


def _paths() -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in _folder().iterdir() if _TOKEN.fullmatch(path.name)]
    return []


def _folder() -> Path:
    return state_folder() / "supervisors"
