"""Records what happens in the driver: a listener of the job fills a buffer, which the agent writes to the database.

The job must never wait for the database. So any thread puts records into the buffer, and the agent's thread writes them
when the database can be reached, in the order in which things happened.

Threads: the listener's methods are called by any thread of the driver; everything else runs on the agent's thread.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from coord_control.control.agent.buffer import (
    Buffer,
    CheckpointDiscarded,
    CheckpointEnded,
    Fact,
    Recovered,
)
from coord_control.control.agent.driver_records import checkpoint_record, recovery_record, savepoint_record
from coord_control.errors import DatabaseError, RecordRefused
from coord_control.ids import CheckpointId
from coord_control.protocol.job_facts import JobFacts, JobListener, RecoveryFact
from coord_control.protocol.statistics import CheckpointStatistics, CheckpointStatus
from coord_control.storage.store import ControlStore

__all__ = ["Reporter"]

_log = logging.getLogger("coord_control.control")

_FACTS_AT_ONCE: Final = 100


class Reporter(JobListener):
    """The records of one job.

    Args:
        facts: the facts of the job.
        buffer: where records wait.
        wake: tells the agent to write the buffer soon.
    """

    def __init__(self, facts: JobFacts, buffer: Buffer, wake: Callable[[], None]) -> None:
        self._facts = facts
        self._buffer = buffer
        self._wake = wake
        self.current: int | None = None  #: the newest checkpoint in progress

    # A listener of the job.

    def on_checkpoint(self, statistics: CheckpointStatistics) -> None:
        """Record that a checkpoint has started, advanced or ended."""
        if statistics.status is CheckpointStatus.IN_PROGRESS:
            self._buffer.set_current(statistics)
            self.current = statistics.checkpoint
            return  # written with the next heartbeat; a client that waits reads the command's progress instead
        else:
            if self.current == statistics.checkpoint:
                self.current = None
            record = checkpoint_record(self._facts.name, self._facts.generation, statistics)
            self._buffer.add(CheckpointEnded(record, savepoint_record(record)))
        self._wake()

    def on_checkpoint_discarded(self, checkpoint: CheckpointId) -> None:
        """Record that a complete checkpoint was removed from the storage."""
        self._buffer.add(CheckpointDiscarded(self._facts.name, checkpoint))
        self._wake()

    def on_recovery(self, fact: RecoveryFact) -> None:
        """Record that a query has recovered."""
        self._buffer.add(Recovered(recovery_record(self._facts, fact)))
        self._wake()

    def on_query_changed(self) -> None:
        """Wake the agent: the next heartbeat writes the queries and operators."""
        self._wake()

    # The agent.

    def flush(self, store: ControlStore) -> None:
        """Write the buffer: facts, then checkpoints in progress, then samples.

        Facts are written in their order: clients rely on it that a completed command's checkpoint is in the history.

        Raises:
            DatabaseError: the database cannot be written; the rest stays in the buffer.
            GenerationSuperseded: a newer driver is running.
        """
        while facts := self._buffer.facts(_FACTS_AT_ONCE):
            for fact in facts:
                self._write(fact, store)
                self._buffer.written(fact)
        current = self._buffer.take_current()
        try:
            for statistics in current:
                record = checkpoint_record(self._facts.name, self._facts.generation, statistics)
                with self.unless_refused():
                    store.checkpoints.save(record.job, record.without_subtasks())
        except DatabaseError:
            self._buffer.put_back(current)
            raise
        while (sample := self._buffer.first_sample()) is not None:
            with self.unless_refused():
                store.samples.add(sample.queries, sample.operators)
            self._buffer.sample_written(sample)

    @contextlib.contextmanager
    def unless_refused(self) -> Iterator[None]:
        """Drop a record that the database refuses: retrying would not help, and it must not block the others."""
        try:
            yield
        except RecordRefused as error:
            self._buffer.dropped += 1
            _log.error("x a record does not fit into the control database and is lost: %s", error)

    def _write(self, fact: Fact, store: ControlStore) -> None:
        try:
            fact.write(store)
        except RecordRefused as error:
            with self.unless_refused():
                if (smaller := fact.if_refused()) is None:
                    raise
                _log.error("x the control database refuses a record, which loses its details: %s", error)
                smaller.write(store)
