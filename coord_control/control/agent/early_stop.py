"""A stop command that ends a job before it begins, because it has killed an earlier driver.

While the job is being made no query runs, and the agent may find such a command: the job's constructor then ends the
job. Found later, it is carried out like any other.

Threads: the agent's, and that which makes the job.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from coord_control.storage.records import CommandRecord

__all__ = ["EarlyStop"]


class EarlyStop:
    """What the agent has found while the job is being made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = True
        self._found: CommandRecord | None = None

    @property
    def is_open(self) -> bool:
        """Whether the job is being made."""
        return self._is_open

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Keep that from changing in the block, which is given :attr:`is_open`."""
        with self._lock:
            yield self._is_open

    def found(self, command: CommandRecord) -> None:
        """Let ``command`` end the job; called in the block of :meth:`held`."""
        self._found = command

    def over(self) -> CommandRecord | None:
        """The job is made; return the command that ends it, if there is one."""
        with self._lock:
            self._is_open = False
            return self._found
