"""A machine of the cluster that stands still, in the middle of a task, until Spark has given it up.

Two sides use files in a folder of the trial. The test asks for an attempt that stops where it has done all of its work
and only lacks its acknowledgement; the driver then takes nothing but savepoints, and tells which one is under way; the
attempt tells how it was answered when it went on. No attempt gets past that point before everything stands still, so
the epoch cannot end without the one that was chosen.

Threads: the attempt's and the test's own; the files say all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

from coord_control.errors import CoordControlError
from coord_control.protocol.messages import Acknowledge
from coord_control.spark.wire.connection import Connection

__all__ = ["Freezer", "Stop", "is_only_saving", "stop_if_asked", "under_way"]

_POLL_SECONDS: Final = 0.02


class Stop:
    """The files, as the test sees them."""

    def __init__(self, folder: Path) -> None:
        self._folder = _folder(folder)
        self._folder.mkdir(exist_ok=True)

    def save(self) -> None:
        """From now on the driver takes savepoints only."""
        self._file("saving").touch()

    def ask(self) -> None:
        """Let one attempt stop."""
        self._file("asked").touch()

    def stopped(self) -> int | None:
        """The process id of the attempt that has; None: not yet."""
        try:
            return int(self._file("stopped").read_text())
        except FileNotFoundError:
            return None

    def pass_others(self) -> None:
        """All but that one go on."""
        self._file("others").touch()

    def let_go(self) -> None:
        """That one goes on too, when its process does."""
        self._file("go").touch()

    def answer(self) -> str | None:
        """How its acknowledgement was answered: accepted, or the error; None: not yet."""
        try:
            return self._file("answer").read_text()
        except FileNotFoundError:
            return None

    def savepoint(self) -> int | None:
        """The savepoint that the driver has begun last; None: that was a checkpoint."""
        with contextlib.suppress(FileNotFoundError):
            kind, _, number = self._file("under-way").read_text().partition(" ")
            return int(number) if kind == "savepoint" else None
        return None

    def forget(self) -> None:
        """Ready for another time. What asks goes first."""
        for name in ("asked", "saving", "stopped", "others", "go", "answer"):
            self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._folder / name


class Freezer:
    """Processes that stand still."""

    def __init__(self) -> None:
        self._frozen: list[psutil.Process] = []

    def freeze(self, top: int) -> None:
        """Stop a process, and all below it."""
        root = psutil.Process(top)
        while new := [process for process in (root, *root.children(recursive=True)) if process not in self._frozen]:
            for process in new:
                self._frozen.append(process)
                _signal(process, signal.SIGSTOP)

    def wake_python(self) -> None:
        """Only what runs the subtasks."""
        self._wake(process for process in self._frozen if not _is_java(process))

    def wake(self, process_id: int) -> None:
        """Only this one."""
        self._wake(process for process in self._frozen if process.pid == process_id)

    def wake_all(self) -> None:
        self._wake(self._frozen)

    def _wake(self, processes: Iterable[psutil.Process]) -> None:
        for process in list(processes):
            _signal(process, signal.SIGCONT)
            self._frozen.remove(process)


def stop_if_asked(folder: Path) -> None:
    """In an attempt that has done its work: the first one stops until it is let go, others until that one stands."""
    files = _folder(folder)
    if not (files / "asked").exists():
        return
    draft = files / f".{uuid.uuid4().hex}"
    draft.write_text(str(os.getpid()))
    try:
        os.link(draft, files / "stopped")
        awaited = "go"
    except FileExistsError:
        awaited = "others"
    finally:
        draft.unlink()
    while (files / "asked").exists() and not (files / awaited).exists():
        time.sleep(_POLL_SECONDS)
    if awaited == "go":
        _tell_the_answer(files)


def is_only_saving(folder: Path) -> bool:
    """In the driver: whether a savepoint is wanted now."""
    return (_folder(folder) / "saving").exists()


def under_way(folder: Path, kind: str, number: int) -> None:
    """In the driver: this one has begun."""
    files = _folder(folder)
    if files.exists():
        draft = files / f".{uuid.uuid4().hex}"
        draft.write_text(f"{kind} {number}")
        draft.replace(files / "under-way")


def _tell_the_answer(files: Path) -> None:
    # The user's function has ended when its subtask is acknowledged, and hears nothing of it.
    name, original = "acknowledge", Connection.acknowledge

    def acknowledge(connection: Connection, ack: Acknowledge) -> None:
        setattr(Connection, name, original)
        answer = "accepted"
        try:
            original(connection, ack)
        except CoordControlError as error:
            answer = f"{type(error).__name__}: {error}"
            raise
        finally:
            draft = files / f".{uuid.uuid4().hex}"
            draft.write_text(answer)
            draft.replace(files / "answer")

    setattr(Connection, name, acknowledge)


def _folder(folder: Path) -> Path:
    return folder / "freezing"


def _is_java(process: psutil.Process) -> bool:
    try:
        return "java" in process.name()
    except psutil.Error:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
