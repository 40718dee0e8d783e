"""Checkpoints: their history by job, and statistics of durations and sizes.

The state of a checkpoint never goes back: late writes (of an agent that catches up after an outage) and repeated ones
(after a commit whose answer was lost) do not overwrite newer data. The cost of reading the history does not depend on
its length: listings read an index from its newest end, and counts are kept in a table (``checkpoint_counts``).

Threads: any.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, CompoundSelect, Row, Select, Subquery, delete, select, tuple_, union_all, update

from coord_control.conversion import convert
from coord_control.errors import RecordNotFound
from coord_control.protocol.statistics import QueryStatistics
from coord_control.storage import tables
from coord_control.storage.database import Database, Transaction
from coord_control.storage.jobs import find, read_job
from coord_control.storage.percentiles import spreads
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointReport,
    CheckpointState,
    CheckpointSummary,
    SubtaskRecord,
)
from coord_control.storage.recoveries import read_recoveries
from coord_control.storage.sequences import take_sequence

__all__ = ["Checkpoints", "checkpoint_record"]

_checkpoints, _details = tables.checkpoints.c, tables.checkpoint_details.c
_Conditions: TypeAlias = Sequence[ColumnElement[bool]]

#: In order; a row is never replaced by one with an earlier state.
_ORDER: Final = {
    CheckpointState.IN_PROGRESS: 0,
    CheckpointState.FAILED: 1,
    CheckpointState.COMPLETED: 2,
    CheckpointState.DISCARDED: 3,
}

#: Fields of the record that are neither a column of the same name nor in the document of measurements.
_OTHER: Final = ("job", "id", "queries", "sequence")
_FIELDS: Final = tuple(each.name for each in fields(CheckpointRecord) if each.name not in _OTHER)
_COLUMNS: Final = tuple(name for name in _FIELDS if name in _checkpoints)
_DOCUMENT: Final = tuple(name for name in _FIELDS if name not in _checkpoints)

#: What the summary is of, by its field; these have to be columns.
_MEASURED: Final = {
    "duration": _checkpoints.duration_seconds,
    "state_bytes": _checkpoints.state_bytes,
    "new_bytes": _checkpoints.new_bytes,
    "blocked_seconds": _checkpoints.blocked_seconds,
    "blocked_events": _checkpoints.blocked_events,
    "snapshot_seconds": _checkpoints.snapshot_seconds,
}


class Checkpoints:
    """The checkpoints and savepoints of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, job: str, checkpoint: CheckpointRecord) -> bool:
        """Write a checkpoint, unless the stored one has a later state.

        Its queries, and the subtasks of their operators, replace the stored ones, unless there are none.

        Returns:
            Whether it was written; False if the stored one has a later state.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.transaction() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            before = _save_row(transaction, job_id, checkpoint)
            if before is not None and _ORDER[before] > _ORDER[checkpoint.state]:
                return False
            if before != checkpoint.state:
                _count(transaction, job_id, checkpoint.kind.value, before, checkpoint.state)
            if checkpoint.queries:
                _save_details(transaction, job_id, checkpoint)
            if _is_change(before, checkpoint.state):
                _place(transaction, job_id, checkpoint.id)
            return True

    def discarded(self, job: str, checkpoints: Iterable[int]) -> int:
        """Mark completed checkpoints as removed from the storage; return how many were not marked before.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.transaction() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            completed = (
                select(_checkpoints.checkpoint, _checkpoints.kind)
                .where(
                    _checkpoints.job_id == job_id,
                    _checkpoints.checkpoint.in_(builtins.list(checkpoints)),
                    _checkpoints.state == CheckpointState.COMPLETED,
                )
                .order_by(_checkpoints.checkpoint)
                .with_for_update()
            )
            rows = transaction.execute(completed).all()
            for row in rows:
                _count(transaction, job_id, row.kind, CheckpointState.COMPLETED, CheckpointState.DISCARDED)
            transaction.execute(
                update(tables.checkpoints)
                .where(_checkpoints.job_id == job_id, _checkpoints.checkpoint.in_([row.checkpoint for row in rows]))
                .values(state=CheckpointState.DISCARDED)
            )
            savepoints = tables.savepoints.c
            transaction.execute(
                delete(tables.savepoints).where(
                    savepoints.job_name == job,
                    savepoints.checkpoint.in_([row.checkpoint for row in rows]),
                    savepoints.imported.is_(False),  # an imported one is a copy elsewhere
                )
            )
            return len(rows)

    def get(self, job: str, checkpoint: int) -> CheckpointRecord:
        """Return a checkpoint with its queries and operators.

        Raises:
            JobNotFound: there is no such job.
            RecordNotFound: the history has no such checkpoint.
        """
        with self._database.reading() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            row = _row(transaction, job, job_id, checkpoint)
            queries = _detail(transaction, job_id, checkpoint, _details.queries)
        return checkpoint_record(job, row, queries)

    def report(self, job: str, checkpoint: int) -> CheckpointReport:
        """Return a checkpoint with its subtasks, its job, and the job's newest recovery, all at one moment.

        Raises:
            JobNotFound: there is no such job.
            RecordNotFound: the history has no such checkpoint.
        """
        with self._database.reading() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            row = _row(transaction, job, job_id, checkpoint)
            queries = _detail(transaction, job_id, checkpoint, _details.queries)
            subtasks = _detail(transaction, job_id, checkpoint, _details.subtasks)
            recoveries = read_recoveries(transaction, job, job_id, limit=1)
            found = read_job(transaction, job, self._database.display_url)
        return CheckpointReport(
            job=found,
            checkpoint=checkpoint_record(job, row, queries),
            subtasks=_subtasks(subtasks),
            last_recovery=recoveries[0] if recoveries else None,
        )

    def subtasks(self, job: str, checkpoint: int) -> tuple[SubtaskRecord, ...]:
        """Return the subtasks of a checkpoint; none if there is no such checkpoint.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.reading() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            return _subtasks(_detail(transaction, job_id, checkpoint, _details.subtasks))

    def subtasks_of(self, checkpoints: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[SubtaskRecord, ...]]:
        """Return the subtasks of many checkpoints at once.

        Args:
            checkpoints: job and number; unknown ones have no subtasks.
        """
        wanted = dict.fromkeys(checkpoints, ())
        if not wanted:
            return {}
        jobs = tables.jobs.c
        with self._database.reading() as transaction:
            names = {job for job, _ in wanted}
            ids = {
                row.name: row.id for row in transaction.execute(select(jobs.id, jobs.name).where(jobs.name.in_(names)))
            }
            keys = {(ids[job], checkpoint): (job, checkpoint) for job, checkpoint in wanted if job in ids}
            place = tuple_(_details.job_id, _details.checkpoint)
            query = select(_details.job_id, _details.checkpoint, _details.subtasks).where(place.in_(keys))
            found = {keys[row.job_id, row.checkpoint]: _subtasks(row.subtasks) for row in transaction.execute(query)}
        return {**wanted, **found}

    def list(
        self,
        job: str,
        kind: CheckpointKind | None = None,
        state: CheckpointState | None = None,
        limit: int = 100,
        before_id: int | None = None,
        requested_by: str | None = None,
    ) -> tuple[CheckpointRecord, ...]:
        """Return checkpoints, newest first.

        Args:
            before_id: only those with a smaller id.
            requested_by: only those of this actor.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.reading() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            more = [] if before_id is None else [_checkpoints.checkpoint < before_id]
            more += [] if requested_by is None else [_checkpoints.requested_by == requested_by]
            query = _newest(job_id, kind, None if state is None else (state,), limit, more)
            return tuple(checkpoint_record(job, row) for row in transaction.execute(query))

    def latest(self, job: str) -> CheckpointRecord | None:
        """Return the newest completed checkpoint or savepoint on the storage, or None if there is none.

        Raises:
            JobNotFound: there is no such job.
        """
        newest = self.list(job, state=CheckpointState.COMPLETED, limit=1)
        return newest[0] if newest else None

    def summary(self, job: str, kind: CheckpointKind | None = None, window: int = 10_000) -> CheckpointSummary:
        """Return the counts of all checkpoints, and percentiles over the newest ``window`` that were completed.

        Raises:
            JobNotFound: there is no such job.
        """
        was_completed = (CheckpointState.COMPLETED, CheckpointState.DISCARDED)
        with self._database.reading() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            counts = _counts(transaction, job_id, kind)
            measured = _measured(transaction, job_id, kind, was_completed, window)
            spread = dict(zip(_MEASURED, spreads(transaction, measured), strict=True))
        return CheckpointSummary(counts=counts, window=window, **spread)


def checkpoint_record(job: str, row: Row[Any], queries: Sequence[Any] | None = None) -> CheckpointRecord:
    """Return a checkpoint of ``job`` as its row says; ``queries``: what its details say, when they were read."""
    values = {name: row._mapping[name] for name in _COLUMNS}
    values |= {name: row.statistics[name] for name in _DOCUMENT if name in row.statistics}
    return CheckpointRecord(
        **{**values, "state": CheckpointState(row.state), "kind": CheckpointKind(row.kind)},
        job=job,
        id=row.checkpoint,
        queries=convert(queries or [], tuple[QueryStatistics, ...]),
        sequence=row.settled_sequence,
    )


def _row(transaction: Transaction, job: str, job_id: int, checkpoint: int) -> Row[Any]:
    where = (_checkpoints.job_id == job_id, _checkpoints.checkpoint == checkpoint)
    row = transaction.execute(select(tables.checkpoints).where(*where)).one_or_none()
    if row is None:
        raise RecordNotFound(f"checkpoint {checkpoint}", job, _near(transaction, job_id))
    return row


def _detail(transaction: Transaction, job_id: int, checkpoint: int, column: ColumnElement[Any]) -> Any:
    where = (_details.job_id == job_id, _details.checkpoint == checkpoint)
    return transaction.execute(select(column).where(*where)).scalar()


def _subtasks(document: Any) -> tuple[SubtaskRecord, ...]:
    return convert(document or [], tuple[SubtaskRecord, ...])


def _newest(
    job: int,
    kind: CheckpointKind | None,
    states: Sequence[CheckpointState] | None,
    limit: int,
    more: _Conditions,
) -> Select[Any]:
    wanted = select(tables.checkpoints)
    if kind is None and states is None:
        query = wanted.where(_checkpoints.job_id == job, *more)
        return query.order_by(_checkpoints.checkpoint.desc()).limit(limit)
    ids = _ids(job, kind, states or builtins.list(CheckpointState), limit, more)
    return (
        wanted.join(ids, (_checkpoints.checkpoint == ids.c.checkpoint) & (_checkpoints.job_id == job))
        .order_by(ids.c.checkpoint.desc())
        .limit(limit)
    )


def _measured(
    transaction: Transaction, job: int, kind: CheckpointKind | None, states: Sequence[CheckpointState], window: int
) -> CompoundSelect[Any]:
    """Return the query for what was measured of the newest ones, in no order: there may be many."""
    ids = _ids(job, kind, states, window, ())
    oldest = select(ids.c.checkpoint).order_by(ids.c.checkpoint.desc()).offset(window - 1).limit(1)
    first = transaction.execute(oldest).scalar()
    branches = [
        select(*_MEASURED.values()).where(
            _checkpoints.job_id == job,
            _checkpoints.kind == each.value,
            _checkpoints.state == state,
            _checkpoints.checkpoint >= (0 if first is None else first),
        )
        for each in _kinds(kind)
        for state in states
    ]
    return union_all(*branches)


def _kinds(kind: CheckpointKind | None) -> Sequence[CheckpointKind]:
    return builtins.list(CheckpointKind) if kind is None else (kind,)


def _ids(
    job: int, kind: CheckpointKind | None, states: Sequence[CheckpointState], limit: int, more: _Conditions
) -> Subquery:
    branches = [_branch(job, each, state, limit, more) for each in _kinds(kind) for state in states]
    return union_all(*branches).subquery()


def _branch(job: int, kind: CheckpointKind, state: CheckpointState, limit: int, more: _Conditions) -> Select[Any]:
    # The newest of one kind and state: one end of the index, whatever else there is.
    query = select(_checkpoints.checkpoint).where(
        _checkpoints.job_id == job, _checkpoints.kind == kind.value, _checkpoints.state == state, *more
    )
    newest = query.order_by(_checkpoints.checkpoint.desc()).limit(limit).subquery()
    return select(newest.c.checkpoint)  # a limit inside UNION needs a query around it


def _save_row(transaction: Transaction, job: int, checkpoint: CheckpointRecord) -> CheckpointState | None:
    """Return the previous state of the row, or None if it is new."""
    values = _values(job, checkpoint)
    insert = transaction.insert(tables.checkpoints).values(values)
    insert = insert.on_conflict_do_nothing(index_elements=["job_id", "checkpoint"])
    if transaction.execute(insert.returning(_checkpoints.checkpoint)).first() is not None:
        return None
    where = (_checkpoints.job_id == job, _checkpoints.checkpoint == checkpoint.id)
    state = transaction.execute(select(_checkpoints.state).where(*where).with_for_update()).scalar_one()
    before = CheckpointState(state)
    if _ORDER[before] <= _ORDER[checkpoint.state]:
        # What only one of several writers knows is not lost when another one does not say it.
        known = {name: value for name, value in values.items() if value is not None}
        transaction.execute(update(tables.checkpoints).where(*where).values(known))
    return before


def _is_change(before: CheckpointState | None, after: CheckpointState) -> bool:
    """Return whether it has just ended; failed -> completed counts as a second end."""
    was_open = before in (None, CheckpointState.IN_PROGRESS, CheckpointState.FAILED)
    return was_open and before is not after and after is not CheckpointState.IN_PROGRESS


def _place(transaction: Transaction, job: int, checkpoint: int) -> None:
    where = (_checkpoints.job_id == job, _checkpoints.checkpoint == checkpoint)
    sequence = take_sequence(transaction)
    transaction.execute(update(tables.checkpoints).where(*where).values(settled_sequence=sequence))


def _values(job: int, checkpoint: CheckpointRecord) -> dict[str, Any]:
    values = {name: getattr(checkpoint, name) for name in _COLUMNS}
    statistics = {name: getattr(checkpoint, name) for name in _DOCUMENT}
    return {
        **values,
        "job_id": job,
        "checkpoint": checkpoint.id,
        "kind": checkpoint.kind.value,
        "statistics": statistics,
    }


def _count(
    transaction: Transaction, job: int, kind: str, before: CheckpointState | None, after: CheckpointState
) -> None:
    table = tables.checkpoint_counts
    for state, change in ((before, -1), (after, 1)):
        if state is not None:
            insert = transaction.insert(table).values(job_id=job, kind=kind, state=state, checkpoints=max(change, 0))
            transaction.execute(
                insert.on_conflict_do_update(
                    index_elements=["job_id", "kind", "state"], set_={"checkpoints": table.c.checkpoints + change}
                )
            )


def _counts(transaction: Transaction, job: int, kind: CheckpointKind | None) -> dict[str, int]:
    table = tables.checkpoint_counts
    query = select(table.c.state, table.c.checkpoints).where(table.c.job_id == job)
    if kind is not None:
        query = query.where(table.c.kind == kind.value)
    counts = {state.value: 0 for state in CheckpointState}
    for row in transaction.execute(query):
        counts[row.state] += row.checkpoints
    return {"total": sum(counts.values()), **counts}


def _save_details(transaction: Transaction, job: int, checkpoint: CheckpointRecord) -> None:
    subtasks = [
        {"operator": operator.operator, **msgspec.to_builtins(subtask)}
        for query in checkpoint.queries
        for operator in query.operators
        for subtask in operator.subtasks
    ]
    subtasks.sort(key=lambda each: (each["operator"], each["subtask"]))
    insert = transaction.insert(tables.checkpoint_details).values(
        job_id=job, checkpoint=checkpoint.id, queries=checkpoint.without_subtasks().queries, subtasks=subtasks
    )
    known = {"queries": insert.excluded.queries} | ({"subtasks": insert.excluded.subtasks} if subtasks else {})
    transaction.execute(insert.on_conflict_do_update(index_elements=["job_id", "checkpoint"], set_=known))


def _near(transaction: Transaction, job: int) -> builtins.list[str]:
    ids = select(_checkpoints.checkpoint).where(_checkpoints.job_id == job)
    newest = transaction.execute(ids.order_by(_checkpoints.checkpoint.desc()).limit(3)).scalars()
    return [str(each) for each in newest]
