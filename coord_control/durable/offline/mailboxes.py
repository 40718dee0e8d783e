"""Read the mailboxes of a job's subtasks on its storage at any time, and drop them while the job does not run.

A drop is one more record in the epoch store, written as a driver would write it: the job is owned, the record is
durable, and the claim still counts, before anything is reported. A crash before the write changes nothing; after it the
next driver finds the mailbox empty; and to drop it twice finds nothing the second time. Checkpoints that were taken
before keep what they hold.

Threads: the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.epochs.generation_log import GenerationLog
from coord_control.durable.files.filesystem import Files
from coord_control.durable.job_folder.lineage import Lineage, recorded_lineage, spark_position
from coord_control.durable.job_folder.lineage_record import LineageRecord, query_folder
from coord_control.durable.offline.offline_savepoint import own_job
from coord_control.durable.restore.prepared_restore import queries_of
from coord_control.errors import MailboxNotFound
from coord_control.ids import Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.mailbox import drop, mailboxes
from coord_control.protocol.records import EventBatch, Record, count, size
from coord_control.protocol.recovery import Facts

__all__ = ["Mailbox", "drop_mailbox", "waiting"]

#: Nothing else is dropped: the next driver may still need an older commit.
_KEEP_ALL: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Mailbox:
    """What waits for one subtask.

    Attributes:
        types: the names of the operator's events, by index.
    """

    query: QueryName
    operator: OperatorUid
    subtask: SubtaskIndex
    batches: tuple[EventBatch, ...]
    types: tuple[str, ...]

    @property
    def events(self) -> int:
        """How many there are."""
        return count(self.batches)

    @property
    def bytes(self) -> int:
        """Their size as JSON."""
        return size(self.batches)

    def first(self, most: int) -> list[tuple[str, Any]]:
        """Type and content of the oldest events."""
        found: list[tuple[str, Any]] = []
        for batch in self.batches:
            if len(found) >= most:
                break
            events = json.loads(b"[" + batch.payload + b"]")
            found += [(self.types[batch.type_index], event) for event in events[: most - len(found)]]
        return found


def waiting(files: Files, job_folder: str) -> list[Mailbox]:
    """Look at the mailboxes that are not empty, as the job's next recovery would find them; nothing is written.

    Raises:
        DamagedRecord, MissingRecord, UnsupportedFormat: what was recorded cannot be used.
    """
    found: list[Mailbox] = []
    for lineage, record in _lineages(files, job_folder):
        facts = Facts(tuple(_read(files, lineage)), *spark_position(files, lineage.checkpoint))
        for uid, operator in sorted(record.operators.items()):
            for subtask, batches in sorted(mailboxes(facts, OperatorUid(uid)).items()):
                found.append(Mailbox(lineage.query, OperatorUid(uid), subtask, batches, operator.down))
    return found


def drop_mailbox(
    files: Files, job_folder: str, operator: OperatorUid, subtask: SubtaskIndex, *, force: bool = False
) -> Mailbox:
    """Drop the events that wait for a subtask of a job that does not run.

    Args:
        force: as for :func:`.offline_savepoint.own_job`.

    Returns:
        The mailbox with the dropped events; it is empty if nothing waited.

    Raises:
        MailboxNotFound: there is no such subtask, or its job was restored and has not run since.
        JobRunning: the job has a driver, or may have.
        Fenced: a driver of the job was started meanwhile; the mailbox may be dropped or not.
        DamagedRecord, MissingRecord, UnsupportedFormat: what was recorded cannot be used; nothing was dropped.
    """
    lineage, record = _of_operator(files, job_folder, operator)
    if not 0 <= subtask < record.operators[operator].parallelism:
        raise MailboxNotFound(operator, subtask, f"its subtasks are 0..{record.operators[operator].parallelism - 1}")
    with own_job(files, job_folder, force=force) as claim:
        lineage, record = _of_operator(files, job_folder, operator)  # read again now that we own the job
        if lineage.restored is not None:
            why = "the job was restored and has not run since; start it once, so that what it restored is its own"
            raise MailboxNotFound(operator, subtask, why)
        committed, planned = spark_position(files, lineage.checkpoint)
        store = EpochStore(files, lineage.epochs, claim.generation, _KEEP_ALL)
        found = drop(Facts(tuple(store.open()), committed, planned), operator, subtask)
        if found is not None:
            store.append([found[0]])
        claim.verify(job_folder.rstrip("/").rpartition("/")[2])
    dropped = () if found is None else found[1]
    return Mailbox(lineage.query, operator, subtask, dropped, record.operators[operator].down)


def _lineages(files: Files, job_folder: str) -> Iterator[tuple[Lineage, LineageRecord]]:
    for query in queries_of(files, job_folder):
        found = recorded_lineage(files, query_folder(job_folder, query), query)
        if found is not None and found[1].operators:
            yield found


def _of_operator(files: Files, job_folder: str, operator: OperatorUid) -> tuple[Lineage, LineageRecord]:
    known: list[str] = []
    for lineage, record in _lineages(files, job_folder):
        if operator in record.operators:
            return lineage, record
        known += record.operators
    raise MailboxNotFound(operator, None, f"the operators of {job_folder} are {sorted(known)}")


def _read(files: Files, lineage: Lineage) -> list[Record]:
    # The newest generation that has written anything: without owning the job, which may be running.
    generations = sorted((int(name) for name in files.list(lineage.epochs) if name.isdecimal()), reverse=True)
    for generation in generations:
        contents = GenerationLog(files, lineage.epochs, Generation(generation)).read()
        if contents is not None:
            return contents.records
    return []
