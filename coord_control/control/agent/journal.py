"""What commands read from the control database and record in it.

Threads: any. :meth:`CommandJournal.record` waits for the database; the rest goes into the buffer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from coord_control.control.agent.buffer import Buffer, CommandEnded, SavepointDisposed, SavepointVerified
from coord_control.errors import CoordControlError, DatabaseError, JobClosed
from coord_control.protocol.job_facts import JobFacts
from coord_control.storage.records import CheckpointState, CommandRecord, Outcome
from coord_control.storage.store import ControlStore

__all__ = ["CommandJournal"]

_log = logging.getLogger("coord_control.control")

_RETRY_SECONDS: Final = 1.0


class CommandJournal:
    """The journal of the commands of one driver; see :class:`coord_control.control.execution.execution.Journal`.

    Args:
        closing: set when the agent closes: then nothing waits for the database any more.
    """

    def __init__(self, facts: JobFacts, store: ControlStore, buffer: Buffer, closing: threading.Event) -> None:
        self._facts, self._store, self._buffer, self._closing = facts, store, buffer, closing

    def record(self, command: CommandRecord, progress: dict[str, Any]) -> None:
        """Make progress durable; wait for the database as long as necessary.

        Raises:
            JobClosed: the agent is closing, or another driver has taken the command over.
        """
        while True:
            try:
                if self._store.commands.progress(command.id, self._facts.generation, progress):
                    return
                raise JobClosed(self._facts.name)
            except DatabaseError as error:
                _log.debug("= %s", error)
            if self._closing.wait(_RETRY_SECONDS):
                raise JobClosed(self._facts.name)

    def has_failed(self, checkpoint: int) -> bool:
        """Return whether a checkpoint has failed according to the history."""
        with contextlib.suppress(CoordControlError):  # unknown or unreadable: then the failure is not certain
            return self._store.checkpoints.get(self._facts.name, checkpoint).state is CheckpointState.FAILED
        return False

    def savepoint_disposed(self, path: str) -> None:
        """Record that a savepoint was removed."""
        self._buffer.add(SavepointDisposed(path))

    def savepoint_verified(self, path: str, problems: Sequence[str]) -> None:
        """Record that all files of a savepoint were read."""
        self._buffer.add(SavepointVerified(path, tuple(problems)))

    def ended(self, command: CommandRecord, outcome: Outcome) -> None:
        """Record the outcome of a command."""
        self._buffer.add(CommandEnded(command.id, self._facts.generation, outcome))
