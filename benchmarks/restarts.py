"""A query that fails once on request, and when it failed and ran again: the inner part of :mod:`benchmarks.recovery`.

The task that finds the file ``fail`` removes it, notes the time and raises. The first task of a later stage notes the
time too. Executors import this module.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyspark import TaskContext

import coord_control as cc
from benchmarks import query

__all__ = ["Trap"]

Out = TypeVar("Out")

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Trap:
    """Where the tasks of one query look. Its methods are used on both sides, in one machine's monotonic time."""

    folder: str

    def set(self) -> None:
        """Have the next task fail; only with :meth:`wait` after it."""
        for name in ("failed", "again"):
            self._path(name).unlink(missing_ok=True)
        self._path("fail").touch()

    def wait(self, check: Callable[[], None]) -> float:
        """Return the seconds from the failure to the first task after it.

        Args:
            check: called while it waits; raises when there is nothing to wait for any more.
        """
        while not self._path("again").exists():
            check()
            time.sleep(_POLL_SECONDS)
        failed, again = (float(self._path(name).read_text().split()[0]) for name in ("failed", "again"))
        return again - failed

    def plain(self, batches: query.Batches) -> query.Batches:
        """The function of the query without coordination."""
        self._step()
        yield from query.plain(batches)

    def coordinated(self, subtask: cc.Subtask[query.Memory], batches: query.Batches) -> query.Batches:
        """The function of the query with an operator."""
        self._step()
        yield from query.busy(subtask, batches)

    def _step(self) -> None:
        context = TaskContext.get()
        assert context is not None
        stage = context.stageId()
        with contextlib.suppress(FileNotFoundError):
            self._path("fail").unlink()  # one task wins
            self._note("failed", f"{time.monotonic()} {stage}")
            raise RuntimeError("failed on request")
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            if int(self._path("failed").read_text().split()[1]) < stage:
                self._note("again", f"{time.monotonic()}")

    def _note(self, name: str, text: str) -> None:
        # Under another name first, so that the file is never seen incomplete. link() has one winner.
        temporary = self._path(f"{name}.{os.getpid()}")
        temporary.write_text(text)
        try:
            os.link(temporary, self._path(name))
        finally:
            temporary.unlink()

    def _path(self, name: str) -> Path:
        return Path(self.folder, name)
